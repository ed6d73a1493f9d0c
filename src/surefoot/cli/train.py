"""``surefoot train``: trains a drafter for a target of yours."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated

import torch
import typer
from rich.progress import Progress, TaskID

from surefoot.cli.flags import Source, command_of
from surefoot.cli.show import progress_bar, show_notes
from surefoot.errors import OptionError
from surefoot.loading import load_target
from surefoot.options import LoadOptions
from surefoot.train.folder import RunFolder
from surefoot.train.options import DataOptions, DFlashOptions, Pace, Schedule
from surefoot.train.run import Asked, train_dflash
from surefoot.train.watcher import Report, Watcher

INTERRUPTED = 130

command = typer.Typer(no_args_is_help=True)

_LOAD = Source(record=LoadOptions, only=("dtype", "device"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which target, what to learn from, and where the drafter goes."""

    target: Annotated[
        str, typer.Option("--target", metavar="MODEL", help="A directory, a bundled name such as pebble, or a hub id.")
    ]
    data: Annotated[
        tuple[Path, ...],
        typer.Option(
            "--data",
            metavar="PATH",
            help=(
                "A .jsonl file (text, prompt and completion, or messages), token ids in .npy or .npz, a text, or a "
                "folder of these. May be repeated."
            ),
        ),
    ]
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new folder, or that of a run to go on with.")]
    threads: Annotated[int | None, typer.Option("--threads", help="CPU threads torch may use.")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise OptionError(f"--threads is {self.threads}; expected at least 1")


class _Bar(Watcher):
    """Draws the run on the terminal, and stops it on SIGINT or SIGTERM."""

    def __init__(self, progress: Progress, *, quiet: bool) -> None:
        self._progress, self._quiet = progress, quiet
        self._tasks: dict[str, TaskID] = {}
        self.stopped_by: int | None = None

    def noticed(self, note: str) -> None:
        if not self._quiet:
            self._progress.print(f"warning: {note}", markup=False, highlight=False, soft_wrap=True)

    def answering(self, done: int, total: int) -> None:
        self._show("answers", "the target answers", done, total)

    def trained(self, report: Report) -> None:
        accepted = "" if report.accepted is None else f"  held-out accepted {report.accepted:.2f}"
        text = f"loss {report.loss:.3f}{accepted}"
        self._show("steps", text, report.step, report.num_steps)
        if report.evaluated and not self._quiet:
            line = f"step {report.step} of {report.num_steps}  {text}"
            self._progress.print(line, markup=False, highlight=False, soft_wrap=True)

    def stopping(self) -> bool:
        return self.stopped_by is not None

    def _show(self, name: str, text: str, done: int, total: int) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(text, total=total)
        self._progress.update(self._tasks[name], description=text, completed=done)

    @contextmanager
    def catching(self) -> Iterator[None]:
        """Meanwhile the first signal asks the run to save and stop, a second one ends it at once."""

        def caught(number: int, frame: FrameType | None) -> None:
            if self.stopped_by is not None:
                raise KeyboardInterrupt
            self.stopped_by = number
            print("saving; once more to stop without", file=sys.stderr)

        before = {number: signal.signal(number, caught) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@command.callback()
def _group() -> None:
    """Trains a drafter for a target of yours."""


@command.command("dflash")
@command_of(
    Source(record=Place),
    Source(record=DFlashOptions),
    Source(record=DataOptions),
    Source(record=Schedule),
    Source(record=Pace),
    _LOAD,
)
def dflash(
    place: Place, shape: DFlashOptions, texts: DataOptions, schedule: Schedule, pace: Pace, options: LoadOptions
) -> int:
    """Trains a DFlash drafter, which drafts a whole block at once from the target's hidden states.

    What is in the folder can be used as --draft-model. The same command goes on where a run was stopped or killed.
    Exit codes: 0 trained; 2 it cannot be; 130 stopped, and saved.
    """
    if place.threads is not None:
        torch.set_num_threads(place.threads)
    target = load_target(place.target, options)
    if not place.as_json:
        show_notes(target.notes)
    asked = Asked(data=place.data, out=place.out, texts=texts, schedule=schedule, shape=shape, pace=pace)
    with progress_bar() as progress:
        bar = _Bar(progress, quiet=place.as_json)
        with bar.catching():
            folder = train_dflash(target, asked, bar)
    if place.as_json:
        print(json.dumps(_brief(folder)))
    else:
        print(*summary(folder), sep="\n")
    if not folder.finished:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED
    return 0


def _brief(folder: RunFolder) -> dict[str, object]:
    """The record without the loss of every step."""
    return {"out": str(folder.path), **{key: value for key, value in folder.record.items() if key != "losses"}}


def summary(folder: RunFolder) -> list[str]:
    """What came out, in words."""
    record, lines = folder.record, []
    losses, offline, loop = (record.get(name) for name in ("losses", "offline", "loop"))
    if isinstance(losses, list) and losses:
        lines.append(f"step {record['step']} of {record['num_steps']}, loss {losses[-1]:.3f}, {record['seconds']} s")
    if isinstance(offline, dict):
        table = " ".join(f"{share:.2f}" for share in offline["by_position"])
        lines.append(f"held out: {offline['accepted']:.2f} accepted per block; by position {table}")
    if isinstance(loop, dict):
        verdict = "agrees" if loop["agrees"] else "DIFFERS: training and drafting do not see the same; please report it"
        lines.append(
            f"real loop: {loop['measured']:.2f} tokens per round, {loop['predicted']:.2f} predicted from the same "
            f"text: {verdict}"
        )
    return [*lines, f"{folder.path}: {'the drafter' if folder.finished else 'not finished'}"]
