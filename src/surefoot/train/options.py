"""What a training run is asked: frozen dataclasses that refuse what they cannot mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from surefoot.errors import OptionError
from surefoot.options import MAX_SEED

Answers = Literal["given", "target"]
Precision = Literal["auto", "bfloat16", "float32"]


def _require(condition: bool, found: str, expected: str) -> None:
    if not condition:
        raise OptionError(f"{found}; expected {expected}")


def _count(name: str, value: int | None, low: int, high: int = 2**31 - 1) -> None:
    if value is not None:
        valid = isinstance(value, int) and not isinstance(value, bool)
        _require(valid and low <= value <= high, f"{name} is {value!r}", f"an integer from {low} to {high}")


def _number(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None:
        valid = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        _require(valid and low <= value <= high, f"{name} is {value!r}", f"a number in [{low:g}, {high:g}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """What is trained on.

    Attributes:
        answers: ``given`` trains on the texts as they are; ``target`` has the target write the answers first, which a
            drafter for it learns more from.
        length: tokens of a training sequence.
        prompt_tokens: of a text that the target goes on with: so many tokens of each sequence are kept.
        answer_tokens: most tokens of an answer the target writes to a prompt.
        temperature: at which the target writes.
        greedy_share: of the answers, the share that is written at temperature 0.
        held_out: sequences kept aside for the offline acceptance.
        max_sequences: train on at most this many sequences.
    """

    answers: Answers = "given"
    length: int = 256
    prompt_tokens: int = 64
    answer_tokens: int = 256
    temperature: float = 0.8
    greedy_share: float = 0.2
    held_out: int = 32
    max_sequences: int | None = None

    def __post_init__(self) -> None:
        _require(self.answers in ("given", "target"), f"answers is {self.answers!r}", "'given' or 'target'")
        _count("length", self.length, 8, 2**20)
        _count("prompt_tokens", self.prompt_tokens, 1)
        _require(
            self.answers == "given" or self.prompt_tokens < self.length,
            f"prompt_tokens is {self.prompt_tokens} and length {self.length}",
            "a length that leaves room for what the target writes",
        )
        _count("answer_tokens", self.answer_tokens, 1)
        _number("temperature", self.temperature, 0, 100)
        _number("greedy_share", self.greedy_share, 0, 1)
        _count("held_out", self.held_out, 1)
        _count("max_sequences", self.max_sequences, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long and how fast is learnt.

    Attributes:
        epochs: times every sequence is trained on, each time at other places.
        steps: steps in all, in place of ``epochs``.
        batch: sequences of one step.
        at_once: of these, sequences that are computed side by side.
        learning_rate: AdamW's at its highest: it rises in the warm-up and falls along a cosine to 0.
        warmup: the share of all steps in which it rises.
        weight_decay: AdamW's.
        clip: the largest norm of all gradients together; larger ones are scaled down to it.
        seed: of the weights, the order of the sequences and the places trained at.
        precision: of the matrix products; ``auto`` takes bfloat16 where the device computes it natively.
    """

    epochs: float = 4.0
    steps: int | None = None
    batch: int = 8
    at_once: int = 4
    learning_rate: float = 1e-3
    warmup: float = 0.04
    weight_decay: float = 0.0
    clip: float = 1.0
    seed: int = 0
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        _number("epochs", self.epochs, 0, 1e6)
        _require(self.epochs > 0, f"epochs is {self.epochs!r}", "a number above 0")
        _count("steps", self.steps, 1)
        _count("batch", self.batch, 1)
        _count("at_once", self.at_once, 1)
        _number("learning_rate", self.learning_rate, 0, 10)
        _require(self.learning_rate > 0, f"learning_rate is {self.learning_rate!r}", "a number above 0")
        _number("warmup", self.warmup, 0, 1)
        _number("weight_decay", self.weight_decay, 0, 10)
        _number("clip", self.clip, 0, 1e6)
        _require(self.clip > 0, f"clip is {self.clip!r}", "a number above 0")
        _count("seed", self.seed, 0, MAX_SEED)
        names = ("auto", "bfloat16", "float32")
        _require(self.precision in names, f"precision is {self.precision!r}", "one of " + ", ".join(names))

    def num_steps(self, num_sequences: int) -> int:
        """Steps in all, over so many sequences."""
        return self.steps or max(1, math.ceil(self.epochs * num_sequences / self.batch))

    def rate_at(self, step: int, num_steps: int) -> float:
        """The learning rate of step ``step = 0, 1, ...``: a linear warm-up, then half a cosine down to 0."""
        rising = max(1, round(self.warmup * num_steps))
        if step < rising:
            return self.learning_rate * (step + 1) / rising
        done = (step - rising) / max(1, num_steps - rising)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashOptions:
    """The shape of a DFlash drafter, and how its blocks are trained.

    Attributes:
        layers: layers of the drafter.
        heads: query heads; as many as the target has by default.
        kv_heads: key-value heads; as many as the target has by default.
        head_dim: size of a head; the target's by default.
        inner_size: width of its feed-forward; three times the target's hidden size by default.
        block_size: tokens of a block, the one it begins with included.
        taps: layers of the target it reads, evenly spread from the second to the third before the end.
        tap_layer: a layer of the target it reads, from 0; may be repeated, in place of ``taps``.
        mask_token_id: the id that stands for tokens not yet known. By default the first row of the embedding beyond the
            tokenizer, else the padding token; it must not occur in the data.
        rope_theta: base of its rotary positions.
        init: a DFlash drafter of the same shape whose weights it begins with.
        anchors: blocks of a sequence in one step.
        gamma: how slowly the weight of later tokens of a block falls; by default as published for the block's size.
    """

    layers: int = 2
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    inner_size: int | None = None
    block_size: int = 8
    taps: int = 3
    tap_layer: tuple[int, ...] | None = None
    mask_token_id: int | None = None
    rope_theta: float = 10000.0
    init: Path | None = None
    anchors: int = 32
    gamma: float | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "kv_heads", "head_dim", "inner_size", "taps", "anchors"):
            _count(name, getattr(self, name), 1)
        _count("block_size", self.block_size, 2, 1024)
        _count("mask_token_id", self.mask_token_id, 0)
        for layer in self.tap_layer or ():
            _count("tap_layer", layer, 0)
        _number("rope_theta", self.rope_theta, 1, 1e12)
        _number("gamma", self.gamma, 1e-3, 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What changes nothing about the weights that come out.

    Attributes:
        save_every: steps between two states on the disk; what is lost when the process is killed.
        evaluate_every: steps between two looks at the held-out sequences.
        prefetch: parts of ``at_once`` sequences whose features are computed ahead in a thread of their own; 0 computes
            them in between.
        check_prompts: held-out prompts answered at the end in the real loop, to compare with the offline acceptance; 0
            compares nothing.
    """

    save_every: int = 100
    evaluate_every: int = 200
    prefetch: int = 0
    check_prompts: int = 4

    def __post_init__(self) -> None:
        _count("save_every", self.save_every, 1)
        _count("evaluate_every", self.evaluate_every, 1)
        _count("prefetch", self.prefetch, 0, 1024)
        _count("check_prompts", self.check_prompts, 0)
