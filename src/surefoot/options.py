"""Every option, once: frozen dataclasses that refuse what they cannot mean. The only reader of ``os.environ``."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from surefoot.errors import OptionError

Exactness = Literal["auto", "require"]
Acceptance = Literal["match", "reject"]
DraftSampling = Literal["shared", "argmax"]
DTypeName = Literal["auto", "float32", "bfloat16", "float16", "float64"]

GREEDY_EPSILON = 1e-5
"""Temperatures below this are 0. The one place where greedy decoding is decided."""

MAX_SEED = 2**63 - 1


def _check(condition: bool, found: str, expected: str) -> None:
    if not condition:
        raise OptionError(f"{found}; expected {expected}")


def _check_number(name: str, value: float, low: float, high: float, expected: str) -> None:
    valid = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    _check(valid and low <= value <= high, f"{name} is {value!r}", expected)


def _check_count(name: str, value: int, low: int) -> None:
    valid = isinstance(value, int) and not isinstance(value, bool)
    _check(valid and value >= low, f"{name} is {value!r}", f"an integer of at least {low}")


def _check_ids(name: str, ids: tuple[int, ...]) -> None:
    for token in ids:
        _check_count(f"an id in {name}", token, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn and when a request ends.

    Attributes:
        temperature: 0 is greedy; anything below 0.00001 counts as 0.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the likeliest tokens until their probability reaches this share, in (0, 1].
        min_p: drop tokens less likely than this share of the likeliest one, in [0, 1].
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or output; 1 is off.
        presence_penalty: subtracted once from the logits of tokens in the output, in [-2, 2].
        frequency_penalty: subtracted per occurrence in the output, in [-2, 2].
        logit_bias: added to the logits of single ids, each in [-100, 100].
        forbidden_tokens: ids never emitted.
        allowed_tokens: when given, the only ids that may be emitted.
        min_tokens: EOS and stop ids are forbidden before this many tokens, and stop strings do not end there.
        max_tokens: end after this many tokens; 0 emits none.
        stop: strings that end a request; its text ends before the one that is found first. They are looked for in the
            text as it is shown: a special token has none, so name it in ``stop_token_ids``.
        stop_token_ids: ids that end a request besides the model's EOS ids.
        ignore_eos: do not stop at the model's EOS ids.
        seed: keys all randomness; by default one is drawn, which the result reports.
        sample_index: tells samples of one prompt and seed apart.
        logprobs: report each token's log probability under the raw logits, and this many of the likeliest; None
            reports nothing.
        prompt_logprobs: the same for the prompt's tokens.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    forbidden_tokens: tuple[int, ...] = ()
    allowed_tokens: tuple[int, ...] | None = None
    min_tokens: int = 0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    sample_index: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, 0, 100, "a number in [0, 100]")
        _check_count("top_k", self.top_k, 0)
        _check_number("top_p", self.top_p, 0, 1, "a number in (0, 1]")
        _check(self.top_p > 0, f"top_p is {self.top_p!r}", "a number in (0, 1]")
        _check_number("min_p", self.min_p, 0, 1, "a number in [0, 1]")
        _check_number("repetition_penalty", self.repetition_penalty, 0, 100, "a number in (0, 100]")
        _check(self.repetition_penalty > 0, "repetition_penalty is 0", "a number in (0, 100]; 1 is off")
        _check_number("presence_penalty", self.presence_penalty, -2, 2, "a number in [-2, 2]")
        _check_number("frequency_penalty", self.frequency_penalty, -2, 2, "a number in [-2, 2]")
        for token, bias in self.logit_bias.items():
            _check_count("an id in logit_bias", token, 0)
            _check_number(f"logit_bias of id {token}", bias, -100, 100, "a number in [-100, 100]")
        _check_ids("forbidden_tokens", self.forbidden_tokens)
        _check_ids("stop_token_ids", self.stop_token_ids)
        if self.allowed_tokens is not None:
            _check_ids("allowed_tokens", self.allowed_tokens)
            _check(len(self.allowed_tokens) > 0, "allowed_tokens is empty", "at least one id, or None for all")
        _check_count("min_tokens", self.min_tokens, 0)
        _check_count("max_tokens", self.max_tokens, 0)
        _check_count("sample_index", self.sample_index, 0)
        _check(not isinstance(self.stop, str), f"stop is {self.stop!r}", "a tuple of strings")
        for text in self.stop:
            _check(isinstance(text, str) and text != "", f"stop holds {text!r}", "strings that are not empty")
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None:
                _check_count(name, count, 0)
        if self.seed is not None:
            _check_count("seed", self.seed, 0)
            _check(self.seed <= MAX_SEED, f"seed is {self.seed}", f"at most {MAX_SEED}")

    @property
    def greedy(self) -> bool:
        """Whether the temperature counts as 0."""
        return self.temperature < GREEDY_EPSILON


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeOptions:
    """How a request speculates.

    Attributes:
        method: how to guess: ``none``, ``lookup``, or the method of the drafter that was loaded; None takes that one.
        num_draft: tokens drafted per round; 0 decodes plainly.
        tree_width: guesses that may stand side by side after a token. Above 1 drafters that know several (dflash) draft
            trees of num_draft tokens, and the others chains as ever.
        acceptance: ``match`` (the target draws with noise keyed by position; output is the same with and without
            speculation) or ``reject`` (rejection sampling: the same law, other tokens).
        draft_sampling: how drafts are chosen at temperature > 0: under the target's own noise (shared) or the likeliest
            (argmax); by default shared.
    """

    method: str | None = None
    num_draft: int = 4
    tree_width: int = 1
    acceptance: Acceptance = "match"
    draft_sampling: DraftSampling | None = None

    def __post_init__(self) -> None:
        _check(self.method is None or isinstance(self.method, str), f"method is {self.method!r}", "a name or None")
        _check_count("num_draft", self.num_draft, 0)
        _check(self.num_draft <= 64, f"num_draft is {self.num_draft}", "at most 64")
        _check_count("tree_width", self.tree_width, 1)
        _check(self.acceptance in ("match", "reject"), f"acceptance is {self.acceptance!r}", "'match' or 'reject'")
        _check(
            self.draft_sampling in (None, "shared", "argmax"),
            f"draft_sampling is {self.draft_sampling!r}",
            "'shared', 'argmax' or None",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How a model is loaded.

    Attributes:
        dtype: ``auto`` keeps the checkpoint's.
        device: ``auto`` takes an accelerator where torch has one, else the CPU; or any torch device string.
        exact: whether rows must be exact. On a CPU with the native kernels they are. Elsewhere ``auto`` takes the fast
            path and reports what it is; ``require`` pads rows and attends row by row, plain decoding too, and fails
            where the self-test finds a difference.
        prefill_chunk: tokens per prefill forward.
        trainable: keep the weights as torch parameters, and compute with torch.
    """

    dtype: DTypeName = "auto"
    device: str = "auto"
    exact: Exactness = "auto"
    prefill_chunk: int = 512
    trainable: bool = False

    def __post_init__(self) -> None:
        dtypes = ("auto", "float32", "bfloat16", "float16", "float64")
        _check(self.dtype in dtypes, f"dtype is {self.dtype!r}", f"one of {', '.join(dtypes)}")
        _check(self.exact in ("auto", "require"), f"exact is {self.exact!r}", "'auto' or 'require'")
        _check_count("prefill_chunk", self.prefill_chunk, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the process's environment asks for.

    Attributes:
        hub_offline: ``HF_HUB_OFFLINE``: nothing is fetched.
        no_color: ``NO_COLOR``: no colours anywhere.
        force_color: ``FORCE_COLOR``: colours where the output is no terminal, too.
        config_file: ``SUREFOOT_CONFIG``: the settings file, in place of the one in the user's directory.
        config_home: ``XDG_CONFIG_HOME``: where users keep settings; None is ``~/.config``.
        native: ``SUREFOOT_NATIVE``: 0 leaves the CPU kernels unused, and torch computes.
        instructions: ``SUREFOOT_INSTRUCTIONS``: the instruction set of the kernels; None is the best there is.
    """

    hub_offline: bool = False
    no_color: bool = False
    force_color: bool = False
    config_file: str | None = None
    config_home: str | None = None
    native: bool = True
    instructions: str | None = None

    @classmethod
    def read(cls) -> Environment:
        """Reads the variables named above; an empty one counts as not set."""
        offline = os.environ.get("HF_HUB_OFFLINE", "").strip().lower()
        return cls(
            hub_offline=offline in ("1", "true", "yes", "on"),
            no_color=bool(os.environ.get("NO_COLOR")),
            force_color=bool(os.environ.get("FORCE_COLOR")),
            config_file=os.environ.get("SUREFOOT_CONFIG") or None,
            config_home=os.environ.get("XDG_CONFIG_HOME") or None,
            native=os.environ.get("SUREFOOT_NATIVE", "").strip().lower() not in ("0", "false", "no", "off"),
            instructions=os.environ.get("SUREFOOT_INSTRUCTIONS") or None,
        )
