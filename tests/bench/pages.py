"""Reads a report as strictly as a machine can without a browser."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "link", "input"}
SVG = "{http://www.w3.org/2000/svg}"
ADDRESSES = {"src", "href", "srcset", "action", "data", "poster", "background", "xlink:href", "formaction"}


class MalformedError(Exception):
    """The page is not well-formed."""


@dataclass(slots=True)
class Page:
    """What a page consists of."""

    tags: list[str] = field(default_factory=list)
    attributes: list[tuple[str, str | None]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    scripts: list[tuple[str | None, str]] = field(default_factory=list)
    styles: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All visible text."""
        return "\n".join(self.texts)

    def addresses(self) -> list[str]:
        """Whatever the page would fetch."""
        return [f"{name}={value}" for name, value in self.attributes if name in ADDRESSES]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page = Page()
        self.open: list[str] = []
        self.type: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.page.tags.append(tag)
        self.page.attributes += attrs
        self.type = dict(attrs).get("type")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.page.tags.append(tag)
        self.page.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            raise MalformedError(f"</{tag}> closes nothing that is open")

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        if inside == "script":
            self.page.scripts.append((self.type, data))
        elif inside == "style":
            self.page.styles.append(data)
        elif data.strip():
            self.page.texts.append(data)


def parse(html: str) -> Page:
    """The page; raises where tags do not match."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    if reader.open:
        raise MalformedError(f"still open at the end: {reader.open}")
    return reader.page


def images(html: str) -> list[ET.Element]:
    """Every SVG image, parsed as XML."""
    parts = html.split("<svg")[1:]
    return [ET.fromstring("<svg" + part.partition("</svg>")[0] + "</svg>") for part in parts]


def titled(html: str, start: str) -> ET.Element:
    """The image whose title begins so."""
    (found,) = [image for image in images(html) if str(image.findtext(f"{SVG}title")).startswith(start)]
    return found


def embedded(html: str) -> object:
    """The JSON inside."""
    ((kind, data),) = parse(html).scripts
    assert kind == "application/json"
    return json.loads(data)
