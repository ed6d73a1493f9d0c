"""The measurements in the docs are those in the JSON."""

from __future__ import annotations

from benchmarks.report import PAGE, PEBBLE, README, page, pebble_results, readme


def test_the_page_is_what_the_results_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m benchmarks.report"


def test_the_engines_table_in_the_recipes_results_is_what_the_results_say() -> None:
    assert PEBBLE.read_text(encoding="utf-8") == pebble_results(), "run python -m benchmarks.report"


def test_the_readmes_table_is_what_the_results_say() -> None:
    text = README.read_text(encoding="utf-8")
    assert "<!-- drafters -->" in text
    assert text == readme(), "run python -m benchmarks.report"
