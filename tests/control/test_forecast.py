"""The predicted speedup against rounds added up one by one."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from surefoot.control.cost import CostCurve, CostPoint, DraftCost, RoundCosts
from surefoot.control.forecast import Acceptance, break_even, expected_speedup, expected_tokens
from surefoot.stats import Tally
from surefoot.types import Verdict

LAW = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])

SECONDS = st.floats(1e-5, 1e-1)


def round_costs() -> st.SearchStrategy[RoundCosts]:
    """Costs of up to 8 drafts; the forward may take any time at any number of rows."""
    return st.lists(SECONDS, min_size=14, max_size=14).map(costs_of)


def costs_of(seconds: list[float]) -> RoundCosts:
    fixed, per_token, reading, overhead, plain_overhead, *forwards = seconds
    points = [CostPoint(rows=rows, seconds=value, low=0.0, high=1.0) for rows, value in enumerate(forwards, start=1)]
    return RoundCosts(
        target=CostCurve(context=7, points=tuple(points)),
        draft=DraftCost(fixed=fixed, per_token=per_token, reading=reading),
        overhead=overhead,
        plain_overhead=plain_overhead,
    )


def some_rounds() -> st.SearchStrategy[list[tuple[int, int]]]:
    """Drafted and accepted tokens of each round."""
    pairs = st.tuples(st.integers(0, 8), st.integers(0, 8)).map(lambda pair: (max(pair), min(pair)))
    return st.lists(pairs, min_size=1, max_size=20)


def tally(rounds: list[tuple[int, int]]) -> Tally:
    """The loop's own count of them."""
    counted = Tally()
    for drafted, accepted in rounds:
        path = tuple(range(accepted + 1))
        verdict = Verdict(path=path, fed=path, next_token=0, next_origin="bonus", num_drafted=drafted)
        counted.add(verdict, drafted)
    return counted


def acceptance_of(*requests: list[tuple[int, int]]) -> Acceptance:
    return Acceptance.of([tally(rounds).finish(strict=True) for rounds in requests])


@LAW
@given(costs=round_costs(), rounds=some_rounds())
def test_the_forecast_is_the_sum_of_the_rounds(costs: RoundCosts, rounds: list[tuple[int, int]]) -> None:
    tokens = sum(accepted + 1 for _, accepted in rounds)
    forecast = expected_speedup(costs, acceptance_of(rounds), tokens)
    spent = sum(costs.round_seconds(drafted) for drafted, _ in rounds) + costs.draft.reading
    assert forecast.seconds == pytest.approx(spent)
    assert forecast.plain_seconds == pytest.approx(tokens * costs.plain_seconds)
    assert forecast.speedup == pytest.approx(tokens * costs.plain_seconds / spent)


@LAW
@given(one=some_rounds(), other=some_rounds())
def test_several_requests_count_together(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    assert acceptance_of(one, other) == acceptance_of([*one, *other])


@LAW
@given(rounds=some_rounds())
def test_shares_and_rates_are_counts_of_the_rounds(rounds: list[tuple[int, int]]) -> None:
    found = acceptance_of(rounds)
    assert sum(found.shares) == pytest.approx(1.0)
    for count, share in enumerate(found.shares):
        assert share == pytest.approx(sum(drafted == count for drafted, _ in rounds) / len(rounds))
    for position, rate in enumerate(found.rates):
        shown = [accepted > position for drafted, accepted in rounds if drafted > position]
        assert rate == pytest.approx(sum(shown) / len(shown))


def test_without_rounds_nothing_is_accepted() -> None:
    nothing = Acceptance.of([])
    assert (nothing.tokens_per_round, nothing.rates, nothing.shares) == (1.0, (), (1.0,))


@LAW
@given(costs=round_costs(), count=st.integers(1, 8))
def test_at_the_break_even_rate_a_round_is_worth_what_it_takes(costs: RoundCosts, count: int) -> None:
    rate = break_even(costs, count)
    taken = costs.round_seconds(count) / costs.plain_seconds
    if rate is None:
        assert expected_tokens(1.0, count) < taken
    elif rate == 0.0:
        assert taken <= 1.0
    else:
        assert expected_tokens(rate, count) == pytest.approx(taken, rel=1e-4)
        assert expected_tokens(rate * 0.99, count) < taken


@LAW
@given(costs=round_costs(), count=st.integers(1, 8), rate=st.floats(0.0, 1.0))
def test_rates_above_break_even_pay_and_rates_below_do_not(costs: RoundCosts, count: int, rate: float) -> None:
    threshold = break_even(costs, count)
    pays = expected_tokens(rate, count) * costs.plain_seconds > costs.round_seconds(count)
    if threshold is None:
        assert not pays
    else:
        assume(abs(rate - threshold) > 1e-5)
        assert pays == (rate > threshold)


def test_expected_tokens_count_the_bonus() -> None:
    assert expected_tokens(0.0, 5) == 1.0
    assert expected_tokens(1.0, 5) == 6.0
    assert expected_tokens(0.5, 2) == 1.75
