"""The results as rows of words, for a terminal and for a page."""

from __future__ import annotations

from surefoot.bench.results import Cell, Spread

HEADINGS = (
    "kind",
    "T",
    "arm",
    "tokens/s",
    "times plain",
    "same text",
    "tokens per round",
    "accepted",
    "first token",
    "",
)


def row(cell: Cell) -> tuple[str, ...]:
    """A cell in words, under :data:`HEADINGS`."""
    accept = cell.acceptance
    return (
        cell.kind,
        f"{cell.temperature:g}",
        cell.arm,
        _spread(cell.tokens_per_second, 1),
        "" if cell.times_plain is None else _spread(cell.times_plain, 2),
        same_text(cell),
        f"{accept.mean_length:.2f}",
        f"{accept.accepted} of {accept.drafted}" if accept.drafted else "",
        f"{1000 * cell.first_token_seconds.median:.0f} ms",
        remark(cell),
    )


def same_text(cell: Cell) -> str:
    """How many texts equal plain's, and where the first difference is."""
    told = f"{cell.identical} of {cell.answers}"
    return told if cell.first_difference is None else f"{told}, from token {cell.first_difference}"


def remark(cell: Cell) -> str:
    """What a reader must not miss."""
    found = []
    if cell.slower:
        found.append("slower than plain")
    if cell.fallbacks:
        found.append(f"the drafter failed {cell.fallbacks} times")
    return ", ".join(found)


def _spread(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return "not timed"
    return f"{spread.median:.{digits}f} [{spread.low:.{digits}f}, {spread.high:.{digits}f}]"
