"""``surefoot bench``: measures plain decoding against each drafter, interleaved, and reports what it found."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from surefoot.bench.answers import Answer, Comparison, Skipped
from surefoot.bench.arms import PREDICTION, Arm, arms
from surefoot.bench.costs import measure_costs
from surefoot.bench.kinds import KINDS, builtin
from surefoot.bench.measurement import Measurement, Setup
from surefoot.bench.questions import Question, choose, read
from surefoot.bench.report.page import render
from surefoot.bench.run import Settings, count_answers, measure
from surefoot.bench.table import HEADINGS, row
from surefoot.cli import INTERRUPTED
from surefoot.cli.flags import LOAD, SPECULATIVE, Source, command_of
from surefoot.cli.pair import Pair
from surefoot.cli.show import colors_wanted, progress_bar, show_notes
from surefoot.control.cost import CostCurve
from surefoot.engine import Engine
from surefoot.errors import OptionError
from surefoot.options import LoadOptions, SamplingParams, SpeculativeOptions
from surefoot.provenance import Provenance

WIDE = 140
"""Columns of a terminal from which on the whole table fits, and of output that goes to no terminal."""
SPARED = ("accepted", "first token")
"""What narrower terminals do not show; --json and --html have it."""

_PAIR = Source(
    record=Pair,
    only=("model", "draft_model", "lookup_min", "speculative_config", "threads", "config", "profile"),
)
_SAMPLING = Source(
    record=SamplingParams,
    only=("top_k", "top_p", "min_p", "max_tokens", "ignore_eos", "seed"),
    defaults={"max_tokens": 128, "seed": 0},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What to measure, and where to put it."""

    method: Annotated[
        tuple[str, ...],
        typer.Option(
            "--method",
            metavar="[lookup|draft|dflash|lookup+dflash|prediction]",
            help="May be repeated; by default all the pair offers.",
        ),
    ] = ()
    questions: Annotated[
        Path | None,
        typer.Option(
            "--questions", metavar="FILE.jsonl", help="With question_id, category, turns; else built-in questions."
        ),
    ] = None
    kind: Annotated[
        tuple[str, ...],
        typer.Option("--kind", help=f"Only this kind or category; may be repeated. Built in: {', '.join(KINDS)}."),
    ] = ()
    limit: Annotated[int | None, typer.Option("--limit", help="At most this many questions of each kind.")] = None
    repeats: Annotated[int, typer.Option("--repeats", help="How often each question is asked.")] = 3
    temperature: Annotated[tuple[float, ...], typer.Option("--temperature", help="May be repeated; by default 0.")] = ()
    raw: Annotated[
        bool, typer.Option("--raw", help="Text to be continued, even where the model has a chat template.")
    ] = False
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a report to this file.")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False

    def __post_init__(self) -> None:
        for flag, value in (("--limit", self.limit), ("--repeats", self.repeats)):
            if value is not None and value < 1:
                raise OptionError(f"{flag} is {value}; expected at least 1")
        if self.html is not None and not _writable(self.html):
            raise OptionError(f"--html is {self.html}; expected a file in a directory that exists and can be written")

    def asked(self) -> list[Question]:
        """The questions to ask."""
        return choose(builtin() if self.questions is None else read(self.questions), self.kind, self.limit)

    def settings(
        self, engine: Engine, asked: Sequence[Question], arms: tuple[Arm, ...], sampling: SamplingParams
    ) -> Settings:
        """All temperatures; only the arms that have a question to answer."""
        idle = [arm.name for arm in arms if not any(arm.answers(question) for question in asked)]
        if PREDICTION in self.method and PREDICTION in idle:
            raise OptionError(
                "--method prediction came with questions that carry none; expected some with a prediction"
            )
        template = engine.tokenizer is not None and engine.tokenizer.chat_template is not None
        return Settings(
            arms=tuple(arm for arm in arms if arm.name not in idle),
            sampling=tuple(replace(sampling, temperature=heat) for heat in self.temperature or (0.0,)),
            repeats=self.repeats,
            raw=self.raw or not template,
        )


def _writable(path: Path) -> bool:
    """Whether a file may be written there, as far as that can be known before."""
    place = path if path.exists() else path.parent
    return not path.is_dir() and path.parent.is_dir() and os.access(place, os.W_OK)


@command_of(_PAIR, Source(record=Extent), _SAMPLING, SPECULATIVE, LOAD)
def command(
    pair: Pair, extent: Extent, sampling: SamplingParams, speculative: SpeculativeOptions, options: LoadOptions
) -> int:
    """Measures plain decoding against each drafter, interleaved and warm, and reports what it found.

    Exit codes: 0 done; 1 a text differs although equal texts were promised; 130 interrupted, with what was measured
    until then.
    """
    if speculative.num_draft == 0:
        raise OptionError("--num-draft is 0, so there is nothing to compare plain decoding with; expected at least 1")
    if sampling.max_tokens < 2:
        raise OptionError(f"--max-tokens is {sampling.max_tokens}; expected at least 2: the prefill draws the first")
    asked = extent.asked()
    stacked = next((method for method in extent.method if method.startswith("lookup+")), None)
    engine = (pair if stacked is None else replace(pair, method=stacked)).load(options)
    show_notes(engine.notes)
    settings = extent.settings(engine, asked, arms(engine, extent.method, speculative), sampling)
    run = _run(engine, asked, settings, speculative.num_draft)
    if not run.complete:
        print("interrupted", file=sys.stderr)
    if not run.comparisons:
        if not run.complete:
            return INTERRUPTED
        raise OptionError("no question fits into the model's context; lower --max-tokens, or give shorter --questions")
    first_row = engine.target.embed(torch.tensor([0]))
    measurement = Measurement(
        setup=Setup(
            model=pair.model,
            drafter=pair.drafter,
            questions="built-in" if extent.questions is None else str(extent.questions),
            arms=tuple(arm.name for arm in settings.arms),
            num_draft=speculative.num_draft,
            acceptance=speculative.acceptance,
            temperatures=tuple(one.temperature for one in settings.sampling),
            seed=sampling.seed or 0,
            max_tokens=sampling.max_tokens,
            repeats=extent.repeats,
            chat=not settings.raw,
            dtype=str(first_row.dtype).removeprefix("torch."),
            exact=options.exact,
            strict=engine.target.strict,
        ),
        comparisons=run.comparisons,
        skipped=run.skipped,
        complete=run.complete,
        cost=run.cost,
        notes=engine.notes,
        provenance=Provenance.collect(str(first_row.device)),
    )
    _publish(measurement, extent)
    return INTERRUPTED if not run.complete else 1 if measurement.broken() else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What was measured until the end, or until the user had enough."""

    comparisons: tuple[Comparison, ...]
    skipped: tuple[Skipped, ...]
    cost: CostCurve | None
    complete: bool


def _run(engine: Engine, asked: Sequence[Question], settings: Settings, num_draft: int) -> _Run:
    comparisons: list[Comparison] = []
    skipped: list[Skipped] = []
    cost = None
    complete = False
    with progress_bar(auto_refresh=False) as progress:
        bar = progress.add_task("measuring", total=count_answers(asked, settings))

        def advance(_: Answer) -> None:
            progress.update(bar, advance=1, refresh=True)

        def skip(one: Skipped) -> None:
            skipped.append(one)
            progress.print(f"note: {one}", style=None, markup=False, highlight=False, soft_wrap=True)

        try:
            for one in measure(engine, asked, settings, on_answer=advance, on_skip=skip):
                comparisons.append(one)
            progress.update(bar, description="cost curve", refresh=True)
            cost = measure_costs(engine.target, comparisons, num_draft)
            complete = True
        except KeyboardInterrupt:  # what was measured is kept; the exit code says so
            pass
    return _Run(comparisons=tuple(comparisons), skipped=tuple(skipped), cost=cost, complete=complete)


def _publish(measurement: Measurement, extent: Extent) -> None:
    if extent.as_json:
        print(json.dumps(measurement.as_json(), ensure_ascii=False))
    else:
        _print_table(measurement)
    if extent.html is not None:
        try:
            extent.html.write_text(render(measurement), encoding="utf-8")
        except OSError as error:
            raise OptionError(f"--html {extent.html}: {error}; expected a file that can be written") from error
        print(f"report written to {extent.html}", file=sys.stderr)


def _print_table(measurement: Measurement) -> None:
    setup, ran = measurement.setup, measurement.provenance
    colors = colors_wanted(sys.stdout)
    console = Console(file=sys.stdout, no_color=not colors, highlight=False)
    if not sys.stdout.isatty():
        console.width = WIDE
    cells = measurement.cells()
    shown = [place for place, name in enumerate(HEADINGS) if name and (console.width >= WIDE or name not in SPARED)]
    table = Table(show_edge=False, pad_edge=False, header_style="bold" if colors else "")
    for place in shown:
        words = HEADINGS[place] in ("kind", "arm")
        table.add_column(HEADINGS[place], justify="left" if words else "right", no_wrap=words)
    kind = cells[0].kind
    for cell in cells:
        if cell.kind != kind:
            table.add_section()
        kind = cell.kind
        style = "red" if cell.slower else "green" if cell.times_plain is not None else None
        table.add_row(*[Text(row(cell)[place]) for place in shown], style=style)
    console.print(table)
    slow = [f"{cell.arm} on {cell.kind} at T={cell.temperature:g}" for cell in cells if cell.slower]
    if slow:
        console.print(f"slower than plain: {', '.join(slow)}", style="red", markup=False, soft_wrap=True)
    console.print(
        f"medians and quartiles over answers; {setup.num_draft} drafts a round, {setup.max_tokens} tokens at most, "
        f"{setup.repeats} repeats, seed {setup.seed}, {'chat' if setup.chat else 'raw text'}; {setup.dtype}, "
        f"exact={setup.exact}, {'strict' if setup.strict else 'not strict'}; {ran.processor}, {ran.num_threads} "
        f"threads, {ran.device}",
        markup=False,
        soft_wrap=True,
    )
    for warning in measurement.warnings(cells):
        console.print(f"warning: {warning}", markup=False, soft_wrap=True)
