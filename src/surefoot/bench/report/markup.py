"""Writes elements of HTML and SVG. Text and attributes are escaped here and nowhere else."""

from __future__ import annotations

from html import escape
from typing import NewType

Markup = NewType("Markup", str)
"""Markup as it goes to the file; made by this module alone, so that no foreign text gets in unescaped."""

_VOID = ("meta", "br", "line", "rect", "circle", "path", "polyline")


def text(value: object) -> Markup:
    """A value as text."""
    return Markup(escape(str(value)))


def element(name: str, /, *children: Markup, **attributes: object) -> Markup:
    """An element; ``class_`` is the attribute ``class``, and underscores of other names are hyphens."""
    names = {key: key.rstrip("_").replace("_", "-") for key in attributes}
    written = "".join(f' {names[key]}="{escape(_value(value))}"' for key, value in attributes.items())
    if name in _VOID:
        assert not children, name
        return Markup(f"<{name}{written} />")
    return Markup(f"<{name}{written}>{''.join(children)}</{name}>")


def join(parts: list[Markup]) -> Markup:
    """Several elements one after the other."""
    return Markup("".join(parts))


def raw_block(name: str, content: str, **attributes: object) -> Markup:
    """A ``style`` or ``script`` element, whose content is not text: it may not hold anything that ends it."""
    assert "</" not in content, f"the content of <{name}> would end it"
    opened = element(name, **attributes).removesuffix(f"</{name}>")
    return Markup(f"{opened}{content}</{name}>")


def _value(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
