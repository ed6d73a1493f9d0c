"""How good a drafter is: on held-out sequences without decoding, and in the real loop, which must agree.

A round accepts the guesses before the first wrong one, so a block counts ``sum over k of prod over i <= k of correct``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from surefoot.engine import Engine
from surefoot.errors import OptionError
from surefoot.options import SamplingParams, SpeculativeOptions
from surefoot.train.data import Sequences
from surefoot.train.features import FeatureReader
from surefoot.train.method import LessonT, Method

TOLERANCE = 0.2
"""Accepted tokens per round by which the real loop may differ from the prediction before a defect is suspected."""
HELD_OUT = 3
"""What a stream of randomness is for; see ``data``."""
MOST_PROMPT = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """What was accepted of blocks.

    Attributes:
        blocks: how many were looked at.
        accepted: guesses accepted per block, the mean.
        by_position: the share of blocks whose first ``k`` guesses are all right, ``k = 1, 2, ...``.
    """

    blocks: int
    accepted: float
    by_position: tuple[float, ...]

    def as_json(self) -> dict[str, object]:
        """Itself as plain JSON values."""
        return asdict(self)


def acceptance_of(correct: Tensor) -> Acceptance:
    """The acceptance of blocks whose guesses are right or not: bool ``[blocks, K]``."""
    kept = correct.to(torch.int64).cumprod(-1).double()
    shares = kept.mean(0).tolist() if len(kept) else [0.0] * correct.shape[-1]
    return Acceptance(blocks=len(kept), accepted=sum(shares), by_position=tuple(shares))


def offline_acceptance(method: Method[LessonT], reader: FeatureReader, held_out: Sequences, seed: int) -> Acceptance:
    """The acceptance on held-out sequences, at places that the seed alone decides."""
    found = []
    for index in range(len(held_out)):
        part = held_out.part(index, index + 1)
        lesson = method.lesson(part, [np.random.default_rng([HELD_OUT, seed, index])])
        found.append(method.correct(lesson, reader.read(part.ids)))
    return acceptance_of(torch.cat(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCheck:
    """Tokens per round in the real loop beside the number its own text predicts.

    Attributes:
        prompts: answers compared.
        tokens: of all of them.
        rounds: the loop's.
        measured, predicted: tokens per round, the target's own one included.
    """

    prompts: int
    tokens: int
    rounds: int
    measured: float
    predicted: float

    @property
    def agrees(self) -> bool:
        """Whether the two differ by no more than what rounding and ties explain."""
        return abs(self.measured - self.predicted) <= TOLERANCE

    def as_json(self) -> dict[str, object]:
        """Itself as plain JSON values."""
        return {**asdict(self), "agrees": self.agrees}


def check_loop(
    engine: Engine, method: Method[LessonT], reader: FeatureReader, held_out: Sequences, num_prompts: int
) -> LoopCheck:
    """Answers held-out prompts greedily with the drafter, and predicts the rounds from the answers alone.

    A prediction follows the loop: from each place where a round begins to the place after what it would accept. A
    difference means that training and drafting do not see the same: a mask, a position or a layer is wrong in one.

    Raises:
        OptionError: the drafter failed, so that the loop went on without it.
    """
    size = min(MOST_PROMPT, held_out.length // 2)
    params = SamplingParams(max_tokens=held_out.length - size, ignore_eos=True)
    speculative = SpeculativeOptions(num_draft=min(64, method.num_drafts))
    tokens = rounds = predicted = 0
    prompts = [row[:size].tolist() for row in held_out.ids[:num_prompts]]
    for prompt in prompts:
        result = engine.generate(prompt, params, speculative=speculative)
        if result.stats.fallbacks:
            raise OptionError("the drafter failed on a held-out prompt; expected it to serve. See the warning")
        tokens += len(result.tokens) - 1  # the prefill draws the first
        rounds += result.stats.rounds
        text = np.array([[*prompt, *result.tokens]], dtype=np.int32)
        whole = Sequences(ids=text, learnt=np.ones(text.shape, dtype=np.bool_))
        correct = method.correct_everywhere(whole, reader.read(text))
        predicted += sum(1 for _ in _rounds(correct, size, text.shape[1]))
    return LoopCheck(
        prompts=len(prompts),
        tokens=tokens,
        rounds=rounds,
        measured=tokens / max(1, rounds),
        predicted=tokens / max(1, predicted),
    )


def _rounds(correct: Tensor, start: int, stop: int) -> Iterator[int]:
    """Where rounds begin: the first at ``start``, each later one after what the one before accepted and its own token.
    Row ``i`` of ``correct`` belongs to a block that begins at ``i + 1``."""
    accepted: Sequence[int] = correct.to(torch.int64).cumprod(-1).sum(-1).tolist()
    place = start
    while place < stop - 1:
        yield place
        place += accepted[place - 1] + 1
