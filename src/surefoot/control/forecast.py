"""Predicts what speculation is worth: measured costs of rounds, and how often drafts are accepted.

The arithmetic is that of Leviathan et al. 2022 (arXiv 2211.17192, theorem 3.8) with measured seconds in the place of
ratios: a round pays where its tokens are worth more plain rounds than it takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from surefoot.control.cost import RoundCosts
from surefoot.stats import Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """How chains of drafts fared over some ``rounds``; positions as in :class:`surefoot.stats.Stats`."""

    rounds: int
    drafted_by_position: tuple[int, ...]
    accepted_by_position: tuple[int, ...]

    @classmethod
    def of(cls, stats: Iterable[Stats]) -> Acceptance:
        """The sum over several requests."""
        requests = list(stats)
        depth = max((len(one.drafted_by_position) for one in requests), default=0)
        return cls(
            rounds=sum(one.rounds for one in requests),
            drafted_by_position=_summed([one.drafted_by_position for one in requests], depth),
            accepted_by_position=_summed([one.accepted_by_position for one in requests], depth),
        )

    @property
    def tokens_per_round(self) -> float:
        """Emitted tokens a round with the target's own one; 1 without rounds."""
        return 1 + sum(self.accepted_by_position) / self.rounds if self.rounds else 1.0

    @property
    def rates(self) -> tuple[float, ...]:
        """The share of the tokens drafted at each position that were emitted; 0 where none was drafted."""
        pairs = zip(self.accepted_by_position, self.drafted_by_position, strict=True)
        return tuple(accepted / drafted if drafted else 0.0 for accepted, drafted in pairs)

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of the rounds that drafted 0, 1, 2, ... tokens."""
        if not self.rounds:
            return (1.0,)
        at_least = (self.rounds, *self.drafted_by_position, 0)
        return tuple((here - next_one) / self.rounds for here, next_one in pairwise(at_least))


def _summed(counts: Sequence[Sequence[int]], depth: int) -> tuple[int, ...]:
    return tuple(sum(one[i] for one in counts if i < len(one)) for i in range(depth))


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A predicted speedup with its parts; all seconds are per round but ``reading``, which comes once.

    Attributes:
        num_tokens: tokens the rounds emit; the prefill draws one more, and its seconds are not counted.
        tokens_per_round: with the target's own one.
        draft, score, overhead: what a speculative round consists of.
        plain_score, plain_overhead: what a plain round consists of.
        reading: the drafter's reading of the prompt.
    """

    num_tokens: int
    tokens_per_round: float
    draft: float
    score: float
    overhead: float
    plain_score: float
    plain_overhead: float
    reading: float

    @property
    def plain_seconds(self) -> float:
        """Seconds of all rounds of a plain answer."""
        return self.num_tokens * (self.plain_score + self.plain_overhead)

    @property
    def seconds(self) -> float:
        """Seconds of all rounds of a speculative answer."""
        rounds = self.num_tokens / self.tokens_per_round
        return self.reading + rounds * (self.draft + self.score + self.overhead)

    @property
    def speedup(self) -> float:
        """How many times as fast as plain decoding; below 1 it is slower."""
        return self.plain_seconds / self.seconds


def expected_speedup(costs: RoundCosts, acceptance: Acceptance, num_tokens: int) -> Forecast:
    """What ``num_tokens`` tokens after the prefill would take where drafts fare as in ``acceptance``.

    Rounds of every drafted length count with their share, so a drafter that often has no guess pays for plain forwards.
    """
    lengths = list(enumerate(acceptance.shares))
    return Forecast(
        num_tokens=num_tokens,
        tokens_per_round=acceptance.tokens_per_round,
        draft=sum(share * costs.draft.at(count) for count, share in lengths),
        score=sum(share * costs.target.at(count + 1) for count, share in lengths),
        overhead=costs.overhead,
        plain_score=costs.target.at(1),
        plain_overhead=costs.plain_overhead,
        reading=costs.draft.reading,
    )


def expected_tokens(rate: float, count: int) -> float:
    """Tokens a round of ``count`` drafts emits where each is accepted with probability ``rate`` after the one before:
    ``1 + rate + ... + rate ** count``."""
    return sum(rate**i for i in range(count + 1))


def break_even(costs: RoundCosts, count: int) -> float | None:
    """The acceptance rate from which rounds of ``count`` drafts are not slower than plain ones, to six digits.

    0 where they never are; None where they always are, every draft accepted.
    """
    needed = costs.round_seconds(count) / costs.plain_seconds
    if needed > count + 1:
        return None
    low, high = 0.0, 1.0
    if needed <= expected_tokens(low, count):
        return low
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (low, middle) if expected_tokens(middle, count) >= needed else (middle, high)
    return high
