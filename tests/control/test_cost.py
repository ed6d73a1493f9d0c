"""Cost curves measured by a clock that the measured things wind themselves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tables import TableTarget

from surefoot.control.cost import CostCurve, CostPoint, DraftCost, measure_cost
from surefoot.control.drafting import DraftTimer
from surefoot.drafters.none import NoDraft
from surefoot.errors import OptionError
from surefoot.protocols import Cache, Drafter, Sampler, Target
from surefoot.tree import chain
from surefoot.types import Capture, DraftTree, Plan, TargetOutput

LAW = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])

TOKENS = (3, 1, 4, 1, 5, 9, 2, 6)


class Clock:
    """Goes on only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Working(TableTarget):
    """A target whose forwards take 3 s and 1 s more for each row, and as much longer as the machine has slowed down."""

    def __init__(self, clock: Clock, slowing: float = 0.0) -> None:
        super().__init__(vocab_size=11)
        self.clock, self.slowing = clock, slowing
        self.asked: list[int] = []

    def score(self, rounds: Sequence[tuple[DraftTree, Cache]], capture: Capture) -> list[TargetOutput]:
        rows = sum(len(tree) for tree, _ in rounds)
        self.asked.append(rows)
        self.clock.now += (3.0 + rows) * (1 + self.slowing * len(self.asked))
        return super().score(rounds, capture)


class Guessing(NoDraft):
    """A drafter that takes 0.5 s, 0.25 s a token, and 7 s more for its first draft."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.read = clock, False

    def propose(self, root: int, plan: Plan, sampler: Sampler) -> DraftTree:
        self.clock.now += 0.5 + 0.25 * plan.num_nodes + (0.0 if self.read else 7.0)
        self.read = True
        return chain((root,) * (plan.num_nodes + 1))


class GuessingModel:
    """The model of it."""

    method = "guessing"

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.started: list[Guessing] = []

    def start(self, target: Target) -> Drafter:
        self.started.append(Guessing(self.clock))
        return self.started[-1]


def curve(seconds: dict[int, float]) -> CostCurve:
    points = (CostPoint(rows=rows, seconds=value, low=value, high=value) for rows, value in seconds.items())
    return CostCurve(context=8, points=tuple(points))


def test_a_measured_curve_is_the_targets_own() -> None:
    clock = Clock()
    measured = measure_cost(Working(clock), TOKENS, range(1, 6), repeats=3, clock=clock)
    assert measured == curve({rows: 3.0 + rows for rows in range(1, 6)})


def test_every_number_of_rows_meets_the_drift_of_the_machine_alike() -> None:
    clock = Clock()
    target = Working(clock, slowing=0.01)
    measured = measure_cost(target, TOKENS, (1, 5, 9), repeats=9, clock=clock)
    one, five, nine = (point.seconds for point in measured.points)
    assert five / one == pytest.approx(8 / 4, rel=0.03)
    assert nine / one == pytest.approx(12 / 4, rel=0.03)
    assert target.asked[:6] == [1, 5, 9, 5, 9, 1], "interleaved, from another start each turn"

    one_by_one = [measure_cost(target, TOKENS, [rows], repeats=9, clock=clock).points[0].seconds for rows in (1, 5, 9)]
    assert one_by_one[2] / one_by_one[0] > 3.2, "measured one after the other they would not"


def test_the_first_forward_of_each_number_of_rows_warms_up() -> None:
    clock = Clock()

    class Cold(Working):
        def score(self, rounds: Sequence[tuple[DraftTree, Cache]], capture: Capture) -> list[TargetOutput]:
            if len(rounds[0][0]) not in self.asked:
                clock.now += 50.0
            return super().score(rounds, capture)

    assert measure_cost(Cold(clock), TOKENS, (1, 2), repeats=1, clock=clock) == curve({1: 4.0, 2: 5.0})


def test_what_comes_before_a_forward_is_not_timed() -> None:
    clock = Clock()
    seen: list[int] = []

    def before(rows: int) -> None:
        seen.append(rows)
        clock.now += 100.0

    measured = measure_cost(Working(clock), TOKENS, (1, 2), repeats=2, clock=clock, before=before)
    assert measured == curve({1: 4.0, 2: 5.0})
    assert seen == [1, 2, 2, 1, 1, 2], "the first turn warms up"


def test_a_curve_that_does_not_fit_into_the_context_is_refused() -> None:
    target = TableTarget(vocab_size=11, context_length=10)
    assert measure_cost(target, TOKENS, (1, 2), repeats=1).context == len(TOKENS)
    for tokens, rows in ((TOKENS, 3), ((), 1)):
        with pytest.raises(OptionError, match="at most 10 with the rows"):
            measure_cost(target, tokens, [rows], repeats=1)


def test_between_measured_rows_the_curve_is_straight() -> None:
    measured = curve({1: 2.0, 4: 5.0, 8: 6.0})
    assert [measured.at(rows) for rows in (1, 2, 3, 4, 6, 8)] == [2.0, 3.0, 4.0, 5.0, 5.5, 6.0]
    assert measured.at(12) == 7.0
    assert curve({2: 3.0}).at(9) == 3.0
    assert curve({1: 3.0, 2: 2.0}).at(5) == 2.0, "noise never makes more rows cheaper than the last ones measured"
    assert curve({2: 3.0, 4: 5.0}).at(1) == 3.0


@LAW
@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=12))
def test_a_points_quartiles_lie_around_its_median(seconds: list[float]) -> None:
    point = CostPoint.of(3, seconds)
    assert min(seconds) <= point.low <= point.seconds <= point.high <= max(seconds)


@LAW
@given(fixed=st.floats(0.0, 1.0), per_token=st.floats(0.0, 1.0), noise=st.floats(0.0, 5.0))
def test_a_draft_costs_a_fixed_part_and_one_a_token(fixed: float, per_token: float, noise: float) -> None:
    seconds = {count: [fixed + per_token * count] * 2 + [fixed + per_token * count + noise] for count in (1, 2, 4)}
    cost = DraftCost.of(seconds)
    assert cost.at(3) == pytest.approx(fixed + 3 * per_token)
    assert (cost.fixed, cost.per_token) == (pytest.approx(fixed, abs=1e-9), pytest.approx(per_token, abs=1e-9))


def test_no_part_of_a_draft_costs_less_than_nothing() -> None:
    falling, steep = DraftCost.of({1: [3.0], 4: [1.0]}), DraftCost.of({1: [0.1], 4: [9.0]})
    assert (falling.fixed, falling.per_token) == (2.0, 0.0)
    assert steep.fixed == pytest.approx(0.0)
    assert steep.per_token == pytest.approx(9.1 / 5)
    assert DraftCost.of({4: [2.0]}) == DraftCost(per_token=0.5)


def test_a_drafter_is_timed_between_the_forwards() -> None:
    clock = Clock()
    target, model = Working(clock), GuessingModel(clock)
    timer = DraftTimer(model, target, TOKENS, clock=clock)
    measured = measure_cost(target, TOKENS, range(1, 5), repeats=4, clock=clock, before=timer)
    assert measured == curve({rows: 3.0 + rows for rows in range(1, 5)})
    cost = timer.cost()
    assert (cost.fixed, cost.per_token) == (pytest.approx(0.5), pytest.approx(0.25))
    assert cost.reading == pytest.approx(7.0)
    assert len(model.started) == 4
