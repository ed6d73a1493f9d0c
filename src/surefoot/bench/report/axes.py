"""What the charts share: scales, ticks, axes, legends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from surefoot.bench.report.markup import Markup, element, join, text

NAMESPACE = "http://www.w3.org/2000/svg"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Maps values from ``start`` to ``stop`` to pixels from ``first`` to ``last``."""

    start: float
    stop: float
    first: float
    last: float

    def at(self, value: float) -> float:
        """The pixel of a value."""
        return self.first + (value - self.start) / (self.stop - self.start) * (self.last - self.first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A chart's plot area: its two scales; y grows upward."""

    x: Scale
    y: Scale

    def point(self, x: float, y: float) -> str:
        """A point as SVG's lists of points write it."""
        return f"{self.x.at(x):.1f},{self.y.at(y):.1f}"


def ticks(greatest: float, most: int = 6) -> list[float]:
    """Round numbers from 0 to at least ``greatest`` (above 0), at most ``most`` steps of 1, 2 or 5 times a power of ten
    apart."""
    rough = greatest / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return [step * i for i in range(math.ceil(greatest / step - 1e-9) + 1)]


def chart(width: int, height: int, label: str, *children: Markup) -> Markup:
    """An image of its own, that scales with the page."""
    return element(
        "svg",
        element("title", text(label)),
        *children,
        xmlns=NAMESPACE,
        viewBox=f"0 0 {width} {height}",
        role="img",
        style=f"max-width:{width}px",
    )


def label(x: float, y: float, value: object, class_: str = "", anchor: str = "start") -> Markup:
    """A piece of text."""
    return element("text", text(value), x=x, y=y, text_anchor=anchor, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def horizontal_rules(frame: Frame, values: Sequence[float], unit: str = "") -> Markup:
    """Grid lines at ``values`` of y, each with its number at the left."""
    parts: list[Markup] = []
    for value in values:
        y = frame.y.at(value)
        parts.append(line(frame.x.first, y, frame.x.last, y, "grid"))
        parts.append(label(frame.x.first - 6, y + 4, f"{value:g}{unit}", "tick", "end"))
    return join(parts)


def bottom_ticks(frame: Frame, values: Sequence[float], title: str) -> Markup:
    """The numbers along x, and what they count."""
    y = frame.y.first
    numbers = [label(frame.x.at(value), y + 16, f"{value:g}", "tick", "middle") for value in values]
    middle = (frame.x.first + frame.x.last) / 2
    return join([*numbers, label(middle, y + 32, title, "axis", "middle")])


def legend(names: Sequence[str], colors: Sequence[str]) -> Markup:
    """The names with their colours, as HTML above a group of charts."""
    keys = [
        element("span", element("i", class_=f"key {color}"), text(name), class_="entry")
        for name, color in zip(names, colors, strict=True)
    ]
    return element("p", *keys, class_="legend")
