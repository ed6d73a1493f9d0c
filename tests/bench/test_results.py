"""Medians, ratios and sums are those of the answers, whatever they are."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.bench.made_up import answer_of, comparison_of, measurement_of
from tests.bench.timed import TimedTarget, engine_of, run, settings_of

from surefoot.bench.results import Acceptance, Spread, summarise
from surefoot.bench.table import HEADINGS, row
from surefoot.options import Acceptance as Rule

PATIENT = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

seconds = st.floats(min_value=0.01, max_value=100)


@PATIENT
@given(st.lists(st.integers(-1000, 1000).map(float), min_size=1, max_size=30))
def test_a_spread_is_in_order_and_a_quarter_lies_on_either_side(values: list[float]) -> None:
    spread = Spread.of(values)
    assert spread.least <= spread.low <= spread.median <= spread.high <= spread.greatest
    assert (spread.least, spread.median, spread.greatest) == (min(values), median(values), max(values))
    quarter = math.ceil((len(values) - 1) / 4)
    assert sum(value < spread.low for value in values) <= quarter
    assert sum(value > spread.high for value in values) <= quarter
    assert spread.count == len(values)


def test_quartiles_are_interpolated_between_the_values() -> None:
    spread = Spread.of([4.0, 1.0, 3.0, 2.0, 5.0])
    assert (spread.low, spread.median, spread.high) == (2.0, 3.0, 4.0)
    assert Spread.of_some([None, 2.0, None]) == Spread.of([2.0])
    assert Spread.of_some([None]) is None


@PATIENT
@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=9))
def test_the_ratio_is_the_median_of_paired_ratios(pairs: list[tuple[float, float]]) -> None:
    compared = [comparison_of(answer_of("plain", plain), answer_of("draft", draft)) for plain, draft in pairs]
    plain_cell, cell = summarise(compared)
    assert plain_cell.times_plain is None
    assert not plain_cell.slower
    assert cell.times_plain is not None
    assert cell.times_plain.median == pytest.approx(median(plain / draft for plain, draft in pairs))
    assert cell.slower == (cell.times_plain.median < 1)
    assert cell.tokens_per_second is not None
    assert cell.tokens_per_second.median == pytest.approx(median(10 / draft for _, draft in pairs))


def test_the_ratio_is_not_that_of_the_medians() -> None:
    pairs = [(1.0, 1.0), (10.0, 2.0), (100.0, 60.0)]
    compared = [comparison_of(answer_of("plain", plain), answer_of("draft", draft)) for plain, draft in pairs]
    (_, cell) = summarise(compared)
    assert cell.times_plain is not None
    assert cell.times_plain.median == pytest.approx(100 / 60)
    assert cell.times_plain.median != pytest.approx(10.0 / 2.0), "the control: the ratio of the medians"


@PATIENT
@given(st.lists(st.lists(st.integers(0, 4), max_size=12), min_size=1, max_size=4))
def test_acceptance_adds_up(rounds: list[list[int]]) -> None:
    compared = [comparison_of(answer_of("plain", 1.0), answer_of("draft", 1.0, accepted=each)) for each in rounds]
    acceptance = summarise(compared)[1].acceptance
    flat = [count for each in rounds for count in each]
    assert sum(acceptance.histogram) == acceptance.rounds == len(flat)
    assert sum(i * count for i, count in enumerate(acceptance.histogram)) == acceptance.accepted == sum(flat)
    assert list(acceptance.by_position) == sorted(acceptance.by_position, reverse=True)
    assert acceptance.mean_length == (1 + sum(flat) / len(flat) if flat else 1.0)
    if flat:
        assert acceptance.by_position[0] == sum(count > 0 for count in flat) / len(flat)


def test_the_accounts_of_real_answers_add_up() -> None:
    target = TimedTarget()
    compared = run(target, settings_of(engine_of(target), temperatures=(0.0, 0.8), repeats=2))
    cells = summarise(compared)
    for cell in cells:
        mine = [
            answer
            for one in compared
            for answer in one.answers
            if (one.question.kind, one.temperature, answer.arm) == (cell.kind, cell.temperature, cell.arm)
        ]
        assert (cell.answers, cell.tokens) == (len(mine), sum(len(answer.tokens) for answer in mine))
        assert cell.acceptance == Acceptance.of([answer.stats for answer in mine])
        assert sum(cell.acceptance.histogram) == cell.acceptance.rounds
        assert cell.phase_seconds.rounds == pytest.approx(sum(answer.stats.seconds.rounds for answer in mine))
        assert cell.identical == cell.answers
        if cell.times_plain is not None:  # a forward takes one second, so the ratio is tokens per round
            assert cell.times_plain.median == median((len(answer.tokens) - 1) / answer.stats.rounds for answer in mine)
    assert sum(cell.answers for cell in cells) == sum(len(one.answers) for one in compared)


def test_cells_come_kind_by_kind_plain_first() -> None:
    compared = [
        comparison_of(*(answer_of(arm, 1.0) for arm in ("plain", "draft")), kind=kind, temperature=heat)
        for _ in range(2)
        for kind in ("edit", "copy")
        for heat in (0.0, 0.8)
    ]
    assert [(cell.kind, cell.temperature, cell.arm, cell.answers) for cell in summarise(compared)] == [
        (kind, heat, arm, 2) for kind in ("edit", "copy") for heat in (0.0, 0.8) for arm in ("plain", "draft")
    ]


def test_an_answer_of_one_token_has_no_rate_and_spoils_none() -> None:
    short = comparison_of(answer_of("plain", 0.0, tokens=(1,)), answer_of("draft", 0.0, tokens=(1,)))
    long = comparison_of(answer_of("plain", 2.0), answer_of("draft", 1.0))
    (_, cell) = summarise([short, long])
    assert cell.times_plain == Spread.of([2.0])
    assert cell.answers == 2
    (_, alone) = summarise([short])
    assert alone.times_plain is None
    assert row(alone)[HEADINGS.index("tokens/s")] == "not timed"


def test_what_is_slower_is_called_slower_and_what_differs_different() -> None:
    compared = [comparison_of(answer_of("plain", 1.0), answer_of("draft", 2.0, tokens=(0, 1, 2, 9, 4)))]
    measurement = measurement_of(compared)
    cell = measurement.cells()[1]
    assert row(cell)[-1] == "slower than plain"
    assert "0 of 1, from token 3" in row(cell)
    assert measurement.broken() == (cell,)
    assert measurement.warnings(measurement.cells()) == [
        "edit, draft, temperature 0: 1 of 1 texts differ, although equal texts were promised."
    ]
    assert measurement_of(compared, strict=False).broken() == ()
    fast = measurement_of([comparison_of(answer_of("plain", 2.0), answer_of("draft", 1.0))])
    assert row(fast.cells()[1])[-1] == ""
    assert fast.broken() == ()
    assert fast.warnings(fast.cells()) == []


def test_a_difference_is_explained_by_what_was_promised() -> None:
    def told(temperature: float, *, strict: bool, acceptance: Rule) -> str:
        answers = answer_of("plain", 1.0), answer_of("draft", 1.0, tokens=(0, 9))
        measurement = measurement_of([comparison_of(*answers, temperature=temperature)], strict=strict)
        measurement = replace(measurement, setup=replace(measurement.setup, acceptance=acceptance))
        (warning,) = measurement.warnings(measurement.cells())
        assert bool(measurement.broken()) == ("although" in warning)
        return warning

    assert "although equal texts were promised" in told(0.8, strict=True, acceptance="match")
    assert "although equal texts were promised" in told(0.0, strict=True, acceptance="reject")
    assert "rejection sampling" in told(0.8, strict=True, acceptance="reject")
    assert "--exact require" in told(0.8, strict=False, acceptance="match")
