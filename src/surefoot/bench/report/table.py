"""The table of results as HTML."""

from __future__ import annotations

from collections.abc import Sequence

from surefoot.bench.report.markup import Markup, element, text
from surefoot.bench.results import Cell
from surefoot.bench.table import HEADINGS, row


def results(cells: Sequence[Cell]) -> Markup:
    """A row for each cell, a line between kinds and temperatures."""
    rows: list[Markup] = []
    place = None
    for cell in cells:
        first = (cell.kind, cell.temperature) != place
        place = (cell.kind, cell.temperature)
        written = [element("td", text(value), class_=_class(column, cell)) for column, value in enumerate(row(cell))]
        rows.append(element("tr", *written, class_="first" if first else "more"))
    heads = [element("th", text(heading)) for heading in HEADINGS]
    return element("table", element("thead", element("tr", *heads)), element("tbody", *rows))


def _class(column: int, cell: Cell) -> str:
    if HEADINGS[column] not in ("times plain", "") or cell.times_plain is None:
        return "cell"
    return "slow" if cell.slower else "fast"
