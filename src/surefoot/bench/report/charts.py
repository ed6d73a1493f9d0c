"""The charts of a report, each one SVG image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TypeAlias

from surefoot.bench.report.axes import Frame, Scale, bottom_ticks, chart, horizontal_rules, label, line, ticks
from surefoot.bench.report.markup import Markup, element, join, text
from surefoot.bench.results import Cell, Spread
from surefoot.control.cost import CostCurve
from surefoot.stats import Seconds

WIDE = 1040
SMALL, SMALL_HEIGHT = 360, 220
ROW = 26
BAR = 14
PHASES = tuple(item.name for item in fields(Seconds) if item.name != "prefill")

Colors: TypeAlias = dict[str, str]
"""The class that gives each arm its colour."""

Mark: TypeAlias = tuple[Cell, float, float | None]
"""An arm's cell, its mean number of rows a round, and what its round cost in plain rounds."""


def speedup(cells: Sequence[Cell], colors: Colors) -> Markup:
    """Times plain by kind and arm: the median as a bar, the quartiles as a whisker, plain as the line at 1."""
    timed = [(cell, cell.times_plain) for cell in cells if cell.times_plain is not None]
    kinds = list(dict.fromkeys(cell.kind for cell, _ in timed))
    steps = ticks(max([1.0, *(spread.high for _, spread in timed)]) * 1.02)
    height = 34 + ROW * (len(timed) + len(kinds)) + 40
    frame = Frame(
        x=Scale(start=0, stop=steps[-1], first=110, last=WIDE - 190),
        y=Scale(start=0, stop=1, first=height - 40, last=20),
    )
    parts = [line(frame.x.at(step), frame.y.last, frame.x.at(step), frame.y.first, "grid") for step in steps]
    y = 20.0
    for kind in kinds:
        y += ROW
        parts.append(label(8, y - 6, kind, "group"))
        for cell, spread in timed:
            if cell.kind == kind:
                parts.append(_speedup_row(cell, spread, frame, y, colors))
                y += ROW
    one = frame.x.at(1)
    parts += [line(one, frame.y.last, one, frame.y.first, "even"), label(one, 14, "plain = 1", "tick", "middle")]
    parts.append(bottom_ticks(frame, steps, "times as many tokens per second as plain (median; whisker: quartiles)"))
    return chart(WIDE, height, "Speedup by kind", *parts)


def _speedup_row(cell: Cell, spread: Spread, frame: Frame, y: float, colors: Colors) -> Markup:
    zero, middle = frame.x.at(0), y + BAR / 2
    notes = [f"{spread.median:.2f}"]
    if cell.slower:
        notes.append("slower than plain")
    if cell.identical < cell.answers:
        notes.append("text differs")
    end = max(frame.x.at(spread.median), frame.x.at(spread.high)) + 8
    width = frame.x.at(spread.median) - zero
    return join(
        [
            label(104, y + 12, cell.arm, "arm", "end"),
            element(
                "g",
                element("title", text(_five(cell.arm, spread))),
                element("rect", x=zero, y=y, width=width, height=float(BAR), class_=f"fill {colors[cell.arm]}"),
            ),
            line(frame.x.at(spread.low), middle, frame.x.at(spread.high), middle, "whisker"),
            label(end, y + 12, " · ".join(notes), "slow" if cell.slower else "value"),
        ]
    )


def _five(name: str, spread: Spread) -> str:
    return (
        f"{name}: least {spread.least:.2f}, quartile {spread.low:.2f}, median {spread.median:.2f}, quartile "
        f"{spread.high:.2f}, greatest {spread.greatest:.2f}, of {spread.count}"
    )


def acceptance(kind: str, cells: Sequence[Cell], num_draft: int, colors: Colors) -> Markup:
    """The share of drafts accepted, by their place after the root, a line for each arm."""
    frame = _small_frame(0.5, num_draft + 0.5, 100)
    parts = [
        label(8, 16, kind, "group"),
        horizontal_rules(frame, (0, 25, 50, 75, 100), " %"),
        bottom_ticks(frame, _places(num_draft), "place after the root"),
    ]
    for cell in cells:
        places = [(place, 100 * share) for place, share in enumerate(cell.acceptance.by_position, start=1)]
        if not places:
            continue
        points = " ".join(frame.point(*place) for place in places)
        parts.append(element("polyline", points=points, class_=f"curve {colors[cell.arm]}"))
        parts += [
            _dot(frame, *place, f"{cell.arm}, place {place[0]}: {place[1]:.1f} %", colors[cell.arm]) for place in places
        ]
    return chart(SMALL, SMALL_HEIGHT, f"Acceptance by position, {kind}", *parts)


def histogram(kind: str, cells: Sequence[Cell], num_draft: int, colors: Colors) -> Markup:
    """The share of rounds by how many drafts were accepted in them, a bar for each arm."""
    drafting = [cell for cell in cells if cell.acceptance.rounds and cell.arm in colors]
    shares = {
        cell.arm: [100 * count / cell.acceptance.rounds for count in cell.acceptance.histogram] for cell in drafting
    }
    steps = ticks(max([1.0, *(share for arm in shares.values() for share in arm)]), 5)
    frame = _small_frame(-0.5, num_draft + 0.5, steps[-1])
    parts = [
        label(8, 16, kind, "group"),
        horizontal_rules(frame, steps, " %"),
        bottom_ticks(frame, [0, *_places(num_draft)], "drafts accepted in a round"),
    ]
    width = (frame.x.at(1) - frame.x.at(0)) * 0.8 / max(len(shares), 1)
    for index, (arm, rounds) in enumerate(shares.items()):
        for accepted, share in enumerate(rounds):
            x = frame.x.at(accepted) + (index - len(shares) / 2) * width
            y = frame.y.at(share)
            bar = element("rect", x=x, y=y, width=width, height=frame.y.first - y, class_=f"fill {colors[arm]}")
            told = element("title", text(f"{arm}: {accepted} accepted in {share:.1f} % of rounds"))
            parts.append(element("g", told, bar))
    return chart(SMALL, SMALL_HEIGHT, f"Histogram of accepted counts, {kind}", *parts)


def cost(curve: CostCurve, cells: Sequence[Cell], colors: Colors) -> Markup:
    """What a forward costs by its rows, as break-even: an arm pays where its tokens per round lie above what its round
    costs. A dot is an arm's mean acceptance length at its mean number of rows; the dash is what its round cost, all
    phases, in plain rounds."""
    plain = {(cell.kind, cell.temperature): cell.seconds_per_round for cell in cells if cell.arm not in colors}
    marks: list[Mark] = []
    for cell in cells:
        base, own = plain.get((cell.kind, cell.temperature)), cell.seconds_per_round
        if cell.arm in colors and cell.acceptance.drafted:
            rows = 1 + cell.acceptance.drafted / cell.acceptance.rounds
            marks.append((cell, rows, own / base if base and own else None))
    relative = [(float(point.rows), point.seconds / curve.points[0].seconds) for point in curve.points]
    most = max(rows for rows, _ in relative)
    heights = [*(ratio for _, ratio in relative), *(cell.acceptance.mean_length for cell, _, _ in marks)]
    steps = ticks(max([2.0, *heights, *(own for _, _, own in marks if own is not None)]) * 1.05)
    frame = Frame(
        x=Scale(start=0.8, stop=most + 0.2, first=60, last=WIDE - 20),
        y=Scale(start=0, stop=steps[-1], first=330, last=24),
    )
    points = " ".join(frame.point(*one) for one in relative)
    area = f"{points} {frame.point(relative[-1][0], 0)} {frame.point(relative[0][0], 0)}"
    ends = min(most, steps[-1])
    parts = [
        horizontal_rules(frame, steps),
        bottom_ticks(frame, [rows for rows, _ in relative], "rows in the forward (the root and its drafts)"),
        element("polyline", points=area, class_="loss"),
        line(frame.x.at(1), frame.y.at(1), frame.x.at(ends), frame.y.at(ends), "ideal"),
        element("polyline", points=points, class_="cost"),
        *(_dot(frame, *one, f"{one[0]:g} rows cost {one[1]:.2f}", "measured") for one in relative),
        *(_mark(frame, mark, colors[mark[0].arm], place % 2 == 0) for place, mark in enumerate(marks)),
    ]
    return chart(WIDE, 372, "Cost curve and break-even", *parts)


def _mark(frame: Frame, mark: Mark, color: str, above: bool) -> Markup:
    cell, rows, own = mark
    x, length = frame.x.at(rows), cell.acceptance.mean_length
    what = f"{cell.kind}, {cell.arm}: {length:.2f} tokens per round"
    parts: list[Markup] = []
    if own is not None:
        what += f", a round costs {own:.2f} plain rounds"
        y = frame.y.at(own)
        parts = [line(x, y, x, frame.y.at(length), f"stem {color}"), line(x - 7, y, x + 7, y, f"dash {color}")]
    y = frame.y.at(length)
    name = label(x + 7, y - 5, cell.kind, "tick") if above else label(x - 7, y - 5, cell.kind, "tick", "end")
    return join([*parts, _dot(frame, rows, length, what, color), name])


def phases(cells: Sequence[Cell]) -> Markup:
    """Milliseconds per emitted token by phase of the round, a bar for each kind and arm."""
    spent = [(cell, [1000 * getattr(cell.phase_seconds, phase) / cell.tokens for phase in PHASES]) for cell in cells]
    steps = ticks(max([1e-6, *(sum(parts) for _, parts in spent)]))
    height = 24 + 20 * len(spent) + 40
    frame = Frame(
        x=Scale(start=0, stop=steps[-1], first=170, last=WIDE - 70),
        y=Scale(start=0, stop=1, first=height - 40, last=16),
    )
    parts = [line(frame.x.at(step), frame.y.last, frame.x.at(step), frame.y.first, "grid") for step in steps]
    for row, (cell, millis) in enumerate(spent):
        y, x = 20.0 + 20 * row, frame.x.at(0)
        parts.append(label(164, y + 11, f"{cell.kind} · {cell.arm}", "arm", "end"))
        for index, (phase, value) in enumerate(zip(PHASES, millis, strict=True)):
            width = frame.x.at(value) - frame.x.at(0)
            bar = element("rect", x=x, y=y, width=width, height=float(BAR), class_=f"fill phase{index}")
            parts.append(element("g", element("title", text(f"{phase}: {value:.3f} ms per token")), bar))
            x += width
        parts.append(label(x + 6, y + 11, f"{sum(millis):.2f}", "value"))
    parts.append(bottom_ticks(frame, steps, "milliseconds per token, without the prefill"))
    return chart(WIDE, height, "Phase times", *parts)


def _small_frame(start: float, stop: float, top: float) -> Frame:
    return Frame(
        x=Scale(start=start, stop=stop, first=52, last=SMALL - 10),
        y=Scale(start=0, stop=top, first=SMALL_HEIGHT - 42, last=28),
    )


def _places(num_draft: int) -> list[float]:
    """The places of drafts that get a number: all of them, or every so many."""
    step = 1 + (num_draft - 1) // 12
    return [float(place) for place in range(1, num_draft + 1, step)]


def _dot(frame: Frame, x: float, y: float, what: str, color: str) -> Markup:
    dot = element("circle", cx=frame.x.at(x), cy=frame.y.at(y), r=4, class_=f"fill {color}")
    return element("g", element("title", text(what)), dot)
