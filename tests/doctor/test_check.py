"""Errors taken apart into what was found, what was expected and what to do."""

from __future__ import annotations

import pytest

from surefoot.doctor.check import Check, Report
from surefoot.errors import CheckpointError

FALLBACK = "Do something"


@pytest.mark.parametrize(
    ("message", "found", "expected", "mend"),
    [
        ("x.json: a is 3; expected 4. Repair the file", "x.json: a is 3", "4", "Repair the file"),
        (
            "no head; expected a.json, or b.json. Complete it, or leave",
            "no head",
            "a.json, or b.json",
            "Complete it, or leave",
        ),
        ("device is 'q'; expected 'auto' or a device", "device is 'q'", "'auto' or a device", FALLBACK),
        ("it broke", "it broke", "", FALLBACK),
        ("as a hub id: it is v1.5. Check the spelling", "as a hub id: it is v1.5", "", "Check the spelling"),
        ("it has 2; expected v1.5 of it. Get it. Then go on", "it has 2", "v1.5 of it", "Get it. Then go on"),
    ],
)
def test_an_error_comes_apart(message: str, found: str, expected: str, mend: str) -> None:
    check = Check.failed("x", CheckpointError(message), FALLBACK)
    assert (check.level, check.found, check.expected, check.mend) == ("FAIL", found, expected, mend)


def test_lines_below_the_first_are_details() -> None:
    check = Check.failed("x", CheckpointError("bad; expected good. Repair it:\n  missing: a\n  missing: b"), FALLBACK)
    assert check.details == ("missing: a", "missing: b")
    assert check.mend == "Repair it"


def test_a_failure_needs_a_mend() -> None:
    with pytest.raises(AssertionError):
        Check(name="x", level="FAIL", found="bad")


@pytest.mark.parametrize(
    ("levels", "conclusion"),
    [
        (("PASS", "SKIP"), "PASS"),
        (("PASS", "WARN", "SKIP"), "WARN"),
        (("FAIL", "WARN", "PASS"), "FAIL"),
        ((), "PASS"),
    ],
)
def test_the_conclusion_is_the_worst_that_was_looked_at(levels: tuple[str, ...], conclusion: str) -> None:
    checks = tuple(Check(name="x", level=level, found="y", mend="z") for level in levels)
    assert Report(model="m", drafter="d", checks=checks).conclusion == conclusion
