"""What a measurement comes to: for each kind, temperature and arm the rates, ratios, differences and acceptance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest
from statistics import median, quantiles

from surefoot.bench.answers import Answer, Comparison
from surefoot.bench.arms import PLAIN
from surefoot.stats import Seconds, Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A few numbers in five: least, quartiles, greatest."""

    least: float
    low: float
    median: float
    high: float
    greatest: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value; quartiles are interpolated between the values, both ends included."""
        low, high = (values[0],) * 2
        if len(values) > 1:
            low, _, high = quantiles(values, n=4, method="inclusive")
        return cls(
            least=min(values), low=low, median=median(values), high=high, greatest=max(values), count=len(values)
        )

    @classmethod
    def of_some(cls, values: Iterable[float | None]) -> Spread | None:
        """The spread of the values that are there; None where none is."""
        present = [value for value in values if value is not None]
        return cls.of(present) if present else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """What became of drafts.

    Attributes:
        rounds, drafted, accepted: sums over the answers.
        by_position: the share of drafts at each place after the root that was accepted, where any was drafted.
        histogram: ``[i]`` is the number of rounds with ``i`` accepted drafts.
    """

    rounds: int
    drafted: int
    accepted: int
    by_position: tuple[float, ...]
    histogram: tuple[int, ...]

    @classmethod
    def of(cls, stats: Sequence[Stats]) -> Acceptance:
        """The sum of several accounts."""
        drafted = _add(account.drafted_by_position for account in stats)
        accepted = _add(account.accepted_by_position for account in stats)
        return cls(
            rounds=sum(account.rounds for account in stats),
            drafted=sum(account.drafted for account in stats),
            accepted=sum(account.accepted for account in stats),
            by_position=tuple(right / all_ for right, all_ in zip(accepted, drafted, strict=True) if all_),
            histogram=_add(account.accepted_histogram for account in stats),
        )

    @property
    def mean_length(self) -> float:
        """Tokens per round with the target's own one: ``1 + accepted / rounds``; 1 without rounds."""
        return 1 + self.accepted / self.rounds if self.rounds else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One arm's answers to the questions of one kind at one temperature.

    Attributes:
        kind, temperature, arm: whose.
        answers: how many.
        tokens: emitted in all of them.
        tokens_per_second: per answer, without the prefill.
        first_token_seconds: per answer, the prefill included.
        times_plain: rate over plain's in the same comparison, per answer; None for plain and where nothing was timed.
        identical: answers that equal plain's token for token.
        first_difference: the earliest index at which any answer differs from plain's; None where none does.
        acceptance: what became of drafts.
        phase_seconds: all answers together, by phase.
        fallbacks: drafters dropped because they failed.
    """

    kind: str
    temperature: float
    arm: str
    answers: int
    tokens: int
    tokens_per_second: Spread | None
    first_token_seconds: Spread
    times_plain: Spread | None
    identical: int
    first_difference: int | None
    acceptance: Acceptance
    phase_seconds: Seconds
    fallbacks: int

    @property
    def slower(self) -> bool:
        """Whether it took longer than plain decoding, by the median of the paired ratios."""
        return self.times_plain is not None and self.times_plain.median < 1

    @property
    def seconds_per_round(self) -> float | None:
        """Mean seconds of a round; None without rounds."""
        return self.phase_seconds.rounds / self.acceptance.rounds if self.acceptance.rounds else None


def summarise(comparisons: Sequence[Comparison]) -> tuple[Cell, ...]:
    """A cell per kind, temperature and arm, in the order in which they were first met; plain first in each kind."""
    groups: dict[tuple[str, float, str], list[tuple[Answer, Answer]]] = {}
    for one in comparisons:
        for answer in one.answers:
            groups.setdefault((one.question.kind, one.temperature, answer.arm), []).append((answer, one.plain))
    met = dict.fromkeys((kind, temperature) for kind, temperature, _ in groups)
    return tuple(_cell(*key, groups[key]) for place in met for key in groups if key[:2] == place)


def _cell(kind: str, temperature: float, arm: str, pairs: Sequence[tuple[Answer, Answer]]) -> Cell:
    answers = [answer for answer, _ in pairs]
    differences = [index for answer, plain in pairs if (index := answer.first_difference(plain)) is not None]
    ratios = (None if arm == PLAIN else answer.times_as_fast_as(plain) for answer, plain in pairs)
    return Cell(
        kind=kind,
        temperature=temperature,
        arm=arm,
        answers=len(answers),
        tokens=sum(len(answer.tokens) for answer in answers),
        tokens_per_second=Spread.of_some(answer.tokens_per_second for answer in answers),
        first_token_seconds=Spread.of([answer.first_token_seconds for answer in answers]),
        times_plain=Spread.of_some(ratios),
        identical=len(answers) - len(differences),
        first_difference=min(differences, default=None),
        acceptance=Acceptance.of([answer.stats for answer in answers]),
        phase_seconds=_sum_seconds([answer.stats.seconds for answer in answers]),
        fallbacks=sum(answer.stats.fallbacks for answer in answers),
    )


def _sum_seconds(several: Sequence[Seconds]) -> Seconds:
    return Seconds(**{item.name: sum(getattr(one, item.name) for one in several) for item in fields(Seconds)})


def _add(rows: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The sums of columns of rows of any length."""
    return tuple(sum(column) for column in zip_longest(*rows, fillvalue=0))
