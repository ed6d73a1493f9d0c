"""``surefoot doctor``: examines a pair and predicts its speedup before anything is served."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from surefoot.cli.configured import Parsed, configured
from surefoot.cli.flags import LOAD, SPECULATIVE, Source, command_of
from surefoot.cli.pair import Pair
from surefoot.cli.show import colors_wanted
from surefoot.doctor import Check, Examination, Level, Report, examine
from surefoot.doctor.settings_file import check_settings_file
from surefoot.errors import OptionError
from surefoot.options import Environment, LoadOptions, SpeculativeOptions
from surefoot.provenance import Provenance
from surefoot.settings import read_settings

COLORS: dict[Level, str] = {"PASS": "green", "WARN": "yellow", "FAIL": "bold red", "SKIP": "dim"}

_SPECULATIVE = Source(record=SpeculativeOptions, only=("num_draft", "tree_width"), names=SPECULATIVE.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much to examine."""

    length: Annotated[
        int | None,
        typer.Option(
            "--context", metavar="TOKENS", help="Length of a sequence; by default the target's whole context."
        ),
    ] = None
    files_only: Annotated[bool, typer.Option("--files-only", help="Read files and headers; load and run nothing.")] = (
        False
    )
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False

    def __post_init__(self) -> None:
        if self.length is not None and self.length < 1:
            raise OptionError(f"--context is {self.length}; expected at least 1")


def _tolerant(parsed: Parsed, keys: Collection[str]) -> dict[str, Any]:
    """The values with what the settings file adds; a file that cannot be read is left out, to be reported."""
    try:
        read_settings(parsed.values["config"], Environment.read())
    except OptionError:
        without = replace(parsed, values={**parsed.values, "config": Path(os.devnull), "profile": None})
        return {**configured(without, keys), "config": parsed.values["config"]}
    return configured(parsed, keys)


@command_of(Source(record=Pair), Source(record=Extent), _SPECULATIVE, LOAD, complete=_tolerant)
def command(pair: Pair, extent: Extent, speculative: SpeculativeOptions, options: LoadOptions) -> int:
    """Examines a pair and predicts its speedup before anything is served.

    Looks at the settings file, both models' files, tokenizers, vocabularies and context lengths, memory, device and
    kernels; compares answers with and without speculation; measures what rounds cost and how often drafts are accepted.
    Every FAIL comes with its mend. Exit codes: 0 nothing failed; 1 something did.
    """
    if pair.threads is not None:
        torch.set_num_threads(pair.threads)
    given = Examination(
        model=pair.model,
        drafter=pair.drafter,
        load=options,
        speculative=speculative,
        context=extent.length,
        running=not extent.files_only,
        lookup_min=pair.lookup_min,
        prior=(check_settings_file(pair.config, pair.label, pair.origins),),
    )
    report = _examined(given)
    if extent.as_json:
        print(json.dumps({**report.as_json(), "provenance": Provenance.collect(options.device).as_json()}))
    elif sys.stdout.isatty():
        _print_table(report)
    else:
        print(*lines(report), sep="\n")
    return 1 if report.conclusion == "FAIL" else 0


def _examined(given: Examination) -> Report:
    """The report; meanwhile stderr shows the last check, where it is a terminal."""
    if not sys.stderr.isatty():
        return examine(given)
    with Console(stderr=True, no_color=not colors_wanted(sys.stderr)).status("examining the settings file") as status:
        return examine(given, lambda check: status.update(f"{check.name}: {check.level}; going on"))


def lines(report: Report) -> list[str]:
    """The report as plain lines: a check each, what to do and details below it, the conclusion last."""
    text = []
    for check in report.checks:
        text.append(f"{check.level}  {check.name}: {check.found}")
        text += [f"      {line}" for line in below(check)]
    return [*text, conclusion(report)]


def below(check: Check) -> list[str]:
    """What stands below a check's line."""
    expected = [f"expected: {check.expected}"] if check.expected else []
    mend = [f"to do: {check.mend}"] if check.mend else []
    return [*expected, *mend, *check.details]


def conclusion(report: Report) -> str:
    """The last line: how many checks came out how."""
    counts = [f"{sum(check.level == level for check in report.checks)} {level}" for level in COLORS]
    return f"{report.conclusion}: {', '.join(counts)}"


def _print_table(report: Report) -> None:
    table = Table(show_edge=False, title=Text(f"{report.model} with {report.drafter}"), title_justify="left")
    table.add_column("")
    table.add_column("check", no_wrap=True)
    table.add_column("found")
    for check in report.checks:
        found = Text(check.found)
        for line in below(check):
            found.append(f"\n{line}", style="" if line.startswith(("expected: ", "to do: ")) else "dim")
        table.add_row(Text(check.level, style=COLORS[check.level]), Text(check.name), found)
    console = Console(no_color=not colors_wanted(sys.stdout))
    console.print(table)
    console.print(Text(conclusion(report), style=COLORS[report.conclusion]))
