"""The measurement of a native call: what it takes is what is shown."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from benchmarks.calls import beside, calls
from benchmarks.figures import Options

from surefoot import native

QUICK = Options(cache=Path(), models=(), dtypes=(), threads=2, turns=1, num_draft=1, quick=True)

pytestmark = [
    pytest.mark.skipif(native.available() is None, reason=f"there are no kernels: {native.why_not()}"),
    pytest.mark.usefixtures("one_thread"),
]


def test_a_slow_call_misses_its_aim_and_threads_are_left_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = native.available()
    assert kernels is not None
    quick = {figure.case: figure for figure in calls(QUICK).figures}
    assert [figure.aim is not None for figure in quick.values()] == [True, False] * 2
    assert kernels.threads == 1
    run = kernels.forward
    monkeypatch.setattr(kernels, "forward", lambda call: time.sleep(1e-4) or run(call))
    for figure in calls(QUICK).figures:
        assert figure.median > 100
        assert figure.met is (False if figure.aim else None)


def test_both_kinds_of_products_are_timed_alone_and_by_turns() -> None:
    figures = beside(QUICK).figures
    assert [(figure.case.partition(":")[0], figure.unit) for figure in figures] == [
        (name, unit) for name in ("torch", "surefoot") for unit in ("µs", "times")
    ]
    assert all(figure.median > 0 for figure in figures)
