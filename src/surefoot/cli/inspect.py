"""``surefoot inspect``: says what a directory is."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from surefoot.cli.flags import Source, command_of
from surefoot.cli.show import colors_wanted
from surefoot.describe import Description, describe
from surefoot.errors import OptionError
from surefoot.options import Environment
from surefoot.presets import PRESETS, Preset, presets_for
from surefoot.settings import read_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What to describe."""

    model: Annotated[
        str | None,
        typer.Argument(
            metavar="DIR",
            help="A name in the settings file, a directory, a GGUF file, a bundled name, or a downloaded hub id.",
        ),
    ] = None
    presets: Annotated[
        bool, typer.Option("--presets", help="List the public pairs that are known, with their sources.")
    ] = False
    file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="The settings file; see surefoot config path.")
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False

    def __post_init__(self) -> None:
        if (self.model is None) != self.presets:
            found = "nothing" if self.model is None else f"{self.model} and --presets"
            raise OptionError(f"found {found} to describe; expected a directory, or --presets")
        if self.presets and self.file is not None:
            raise OptionError(f"--config {self.file} came with --presets; expected it with a name to look up")

    def path(self, model: str) -> str:
        """What the settings file means by the name, else the name."""
        return read_settings(self.file, Environment.read()).resolve(model)


@command_of(Source(record=Subject))
def command(subject: Subject) -> int:
    """Says what a target or drafter directory is, from file names, configs and headers alone.

    Nothing of it is executed, no pickle is opened, nothing is downloaded, no weight is read. Exit codes: 0 it was
    described, whether this version can use it or not; 2 there is no model.
    """
    if subject.model is None:
        if subject.as_json:
            print(json.dumps({"presets": [preset.as_json() for preset in PRESETS]}))
        else:
            print(*(line for preset in PRESETS for line in preset_lines(preset)), sep="\n")
        return 0
    path = subject.path(subject.model)
    description = describe(path)
    pairs = presets_for(path, {})
    if subject.as_json:
        print(json.dumps({**description.as_json(), "presets": [preset.as_json() for preset in pairs]}))
    elif sys.stdout.isatty():
        _print_table(description, pairs)
    else:
        print(*lines(description, pairs), sep="\n")
    return 0


def lines(description: Description, pairs: tuple[Preset, ...] = ()) -> list[str]:
    """The description as plain lines: what it is, its facts, and whether it can be used."""
    width = max((len(fact.name) for fact in description.facts), default=0)
    facts = [f"  {fact.name:<{width}}  {fact.value}" for fact in description.facts]
    return [f"{description.path}: {description.kind}", *facts, *_below(description, pairs)]


def _below(description: Description, pairs: tuple[Preset, ...]) -> list[str]:
    needs = [f"needs: {description.needs}"] if description.needs else []
    notes = [f"note: {note}" for note in description.notes]
    known = [line for preset in pairs for line in preset_lines(preset)]
    return [description.verdict, *needs, *notes, *known]


def preset_lines(preset: Preset) -> list[str]:
    """A preset in words: the pair, what is recorded of it, and where."""
    state = "verified" if preset.verified else "unverified: it could not be run here"
    facts = [f"  {fact}" for fact in preset.facts]
    return [
        f"{preset.target} with {preset.draft_model} ({state})",
        *facts,
        *(f"  from {url}" for url in preset.sources),
    ]


def _print_table(description: Description, pairs: tuple[Preset, ...]) -> None:
    table = Table(show_header=False, show_edge=False, title=Text(f"{description.path}: {description.kind}"))
    table.title_justify = "left"
    for fact in description.facts:
        table.add_row(Text(fact.name, style="dim"), Text(fact.value))
    console = Console(no_color=not colors_wanted(sys.stdout))
    console.print(table)
    console.print(Text(description.verdict, style="green" if description.usable else "yellow"))
    for line in _below(description, pairs)[1:]:
        console.print(Text(line))
