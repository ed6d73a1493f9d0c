"""What rounds cost, measured: one target forward by its number of rows, one draft by its length.

``drafting.py`` times a drafter; ``forecast.py`` makes a predicted speedup of it all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles
from time import perf_counter

from surefoot.errors import OptionError
from surefoot.protocols import Cache, Target
from surefoot.tree import chain
from surefoot.types import Capture, TargetOutput

Clock = Callable[[], float]
"""Seconds since some moment; ``time.perf_counter`` outside tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPoint:
    """Seconds of one forward of ``rows`` rows: the median, and the quartiles around it."""

    rows: int
    seconds: float
    low: float
    high: float

    @classmethod
    def of(cls, rows: int, measured: Sequence[float]) -> CostPoint:
        """The point that ``measured`` seconds, at least one, come to."""
        quartiles = quantiles(measured, n=4, method="inclusive") if len(measured) > 1 else [measured[0]] * 3
        return cls(rows=rows, seconds=median(measured), low=quartiles[0], high=quartiles[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCurve:
    """Seconds of one target forward by its number of rows, after ``context`` committed tokens.

    ``points`` ascend in ``rows``.
    """

    context: int
    points: tuple[CostPoint, ...]

    def __post_init__(self) -> None:
        assert self.points
        assert all(one.rows < other.rows for one, other in pairwise(self.points)), self.points

    def at(self, rows: float) -> float:
        """Seconds at ``rows``: on the straight line between the measured points around it; past either end, on that of
        the two nearest points, but never less than the end itself."""
        if len(self.points) == 1:
            return self.points[0].seconds
        later = next((i for i, point in enumerate(self.points) if rows <= point.rows), len(self.points) - 1)
        left, right = self.points[max(later, 1) - 1], self.points[max(later, 1)]
        slope = (right.seconds - left.seconds) / (right.rows - left.rows)
        if rows < left.rows:
            return left.seconds
        if rows > right.rows:
            return right.seconds + max(slope, 0.0) * (rows - right.rows)
        return left.seconds + slope * (rows - left.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCost:
    """Seconds of a drafter: ``fixed`` for each draft whatever its length, ``per_token`` for each drafted token beside
    it, and ``reading`` once a request, for the prompt."""

    fixed: float = 0.0
    per_token: float = 0.0
    reading: float = 0.0

    def at(self, count: int) -> float:
        """Seconds of a draft of ``count`` tokens."""
        return self.fixed + self.per_token * count

    @classmethod
    def of(cls, measured: Mapping[int, Sequence[float]]) -> DraftCost:
        """The line nearest (least squares) to the medians of ``measured``, seconds by drafted tokens; neither part of
        it below 0. One length alone makes all of it ``per_token``."""
        medians = {count: median(seconds) for count, seconds in measured.items()}
        x, y = sum(medians) / len(medians), sum(medians.values()) / len(medians)
        spread = sum((count - x) ** 2 for count in medians)
        slope = sum((count - x) * (seconds - y) for count, seconds in medians.items()) / spread if spread else y / x
        slope = min(max(slope, 0.0), y / x)
        return cls(fixed=y - slope * x, per_token=slope)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCosts:
    """All that a round consists of.

    Attributes:
        target: the target's forwards.
        draft: the drafter's work.
        overhead: seconds a speculative round takes beside these two: verifying, committing, events.
        plain_overhead: the same of a plain round.
    """

    target: CostCurve
    draft: DraftCost = DraftCost()
    overhead: float = 0.0
    plain_overhead: float = 0.0

    @property
    def plain_seconds(self) -> float:
        """Seconds of one plain round, which emits one token."""
        return self.target.at(1) + self.plain_overhead

    def round_seconds(self, count: int) -> float:
        """Seconds of a round of ``count`` drafts."""
        return self.draft.at(count) + self.target.at(count + 1) + self.overhead


def measure_cost(
    target: Target,
    tokens: Sequence[int],
    row_counts: Iterable[int],
    *,
    repeats: int = 9,
    clock: Clock = perf_counter,
    before: Callable[[int], None] | None = None,
) -> CostCurve:
    """Times forwards of several numbers of rows after ``tokens``, interleaved and warm, so that drift of the machine
    meets them all.

    Args:
        target: the model.
        tokens: what is committed before; their number is the curve's context.
        row_counts: the numbers of rows, each at least 1.
        repeats: timed forwards for each.
        clock: reads the time.
        before: called with the number of rows before each forward and not timed: what the loop would do there.

    Raises:
        OptionError: the rows do not fit behind ``tokens`` into the target's context.
    """
    counts = sorted(set(row_counts))
    assert counts, row_counts
    assert counts[0] >= 1 <= repeats, (counts, repeats)
    if not tokens or len(tokens) + counts[-1] > target.context_length:
        raise OptionError(
            f"a cost of {counts[-1]} rows after {len(tokens)} tokens was asked for; expected at least one token, and "
            f"at most {target.context_length} with the rows, the model's context"
        )
    cache = target.new_cache(len(tokens) + counts[-1])
    for _ in target.prefill(tokens, cache, Capture()):
        pass
    measured: dict[int, list[float]] = {count: [] for count in counts}
    for turn in range(repeats + 1):  # the first turn warms up
        for i in range(len(counts)):
            count = counts[(turn + i) % len(counts)]
            if before is not None:
                before(count)
            seconds = _time_forward(target, cache, (tokens[-1],) * count, clock)
            if turn:
                measured[count].append(seconds)
    return CostCurve(context=len(tokens), points=tuple(CostPoint.of(count, measured[count]) for count in counts))


def _time_forward(target: Target, cache: Cache, tokens: Sequence[int], clock: Clock) -> float:
    tree = chain(tokens)
    started = clock()
    (out,) = target.score([(tree, cache)], Capture())
    wait_for(out)
    seconds = clock() - started
    cache.rollback()
    return seconds


def wait_for(out: TargetOutput) -> None:
    """Returns when the logits are there: a device computes them while the host goes on."""
    assert out.logits is not None
    out.logits[-1, 0].item()  # one value read is one synchronisation
