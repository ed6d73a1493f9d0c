"""The measurements in the docs are those in the JSON."""

from __future__ import annotations

from benchmarks.report import PAGE, page


def test_the_page_is_what_the_results_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m benchmarks.report"
