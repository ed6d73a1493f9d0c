"""Puts tokens and numbers on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from surefoot.options import Environment
from surefoot.request import Result
from surefoot.types import Event, Origin

_COLORS: dict[Origin, str | None] = {"draft": "green", "correction": "yellow", "bonus": "cyan", "plain": None}
_LEGEND: tuple[tuple[Origin, str], ...] = (
    ("draft", "accepted draft"),
    ("correction", "correction"),
    ("bonus", "bonus"),
    ("plain", "plain"),
)


def colors_wanted(stream: TextIO) -> bool:
    """Whether to colour: in a terminal, and elsewhere with ``FORCE_COLOR``; never with ``NO_COLOR``."""
    environment = Environment.read()
    return not environment.no_color and (stream.isatty() or environment.force_color)


def progress_bar(*, auto_refresh: bool = True) -> Progress:
    """A bar on stderr while something long runs, gone afterwards; nothing where stderr is no terminal.

    Without ``auto_refresh`` it is drawn only when told to, by no thread of its own that would disturb a clock.
    """
    console = Console(stderr=True, no_color=not colors_wanted(sys.stderr))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        auto_refresh=auto_refresh,
        disable=not sys.stderr.isatty(),
    )


def colored(text: str, origin: Origin) -> str:
    """The text in the colour of its origin. Nothing else about it changes, tabs and newlines included."""
    color = _COLORS[origin]
    return typer.style(text, fg=color) if color and text else text


def legend() -> str:
    """What the colours mean."""
    return "  ".join(colored(name, origin) for origin, name in _LEGEND)


def show_notes(notes: Sequence[str]) -> None:
    """Prints on stderr what a user should know about how the models were loaded."""
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


class Printer:
    """Prints events as they come."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._colors = colors_wanted(stream)
        if self._colors:
            print(legend(), file=sys.stderr)

    def show(self, event: Event) -> None:
        """Writes one event's text at once."""
        self._stream.write(colored(event.text, event.origin) if self._colors else event.text)
        self._stream.flush()

    def end(self) -> None:
        """Ends the text with a newline."""
        self._stream.write("\n")
        self._stream.flush()


def tokens_per_second(result: Result) -> float:
    """Tokens after the first one, which the prefill draws, over the seconds of the rounds; 0 where there were none."""
    seconds = result.stats.seconds.rounds
    return (len(result.tokens) - 1) / seconds if seconds > 0 and len(result.tokens) > 1 else 0.0


def summary(result: Result, num_draft: int, temperature: float, times_plain: float | None) -> str:
    """One line: tokens, tok/s, times plain where it was measured, accepted drafts per round, the seed that was used."""
    stats = result.stats
    parts = [
        f"{len(result.tokens)} tokens",
        f"{tokens_per_second(result):.1f} tok/s after a prefill of {stats.seconds.prefill:.2f} s",
    ]
    if times_plain is not None:
        parts.append(f"{times_plain:.2f} times plain (measured)")
    if stats.drafted:
        parts.append(f"{stats.accepted / stats.rounds:.2f} of {num_draft} drafts accepted per round")
    else:
        parts.append("nothing drafted")
    if temperature > 0:
        parts.append(f"seed {result.seed}")
    if stats.fallbacks:
        parts.append("the drafter failed and was dropped")
    return " · ".join(parts)
