"""``surefoot chat``: talks with a model in the terminal."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from surefoot.cli.chat.loop import Loop
from surefoot.cli.chat.reader import Reader
from surefoot.cli.chat.screen import JsonScreen, TextScreen
from surefoot.cli.chat.session import Session
from surefoot.cli.flags import LOAD, SAMPLING, SPECULATIVE, Source, command_of
from surefoot.cli.pair import Pair
from surefoot.cli.show import show_notes
from surefoot.engine import Engine
from surefoot.loading.resolve import bundled
from surefoot.options import LoadOptions, SamplingParams, SpeculativeOptions

COMPLETING = (
    "completion mode: {model} goes on with a text. What you type is appended to it and the model continues; an empty "
    "line lets it go on"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How to talk."""

    system: Annotated[str, typer.Option("--system", metavar="TEXT", help="A system message.")] = ""
    raw: Annotated[
        bool | None,
        typer.Option(
            "--raw/--no-raw",
            help="Completion mode: no chat template, the model goes on with one growing text. By default for models "
            "without a chat template and for the bundled ones.",
        ),
    ] = None
    measure_plain: Annotated[
        bool, typer.Option("--measure-plain", help="Give each answer again plainly, and compare.")
    ] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per answer and nothing else.")] = False

    def completes(self, model: str, engine: Engine) -> bool:
        """Whether the model goes on with a text. The bundled ones have a chat template and saw no conversation."""
        if self.raw is not None:
            return self.raw
        return model in bundled() or engine.tokenizer is None or engine.tokenizer.chat_template is None


@command_of(Source(record=Pair), Source(record=Manner), SAMPLING, SPECULATIVE, LOAD)
def command(
    pair: Pair, manner: Manner, sampling: SamplingParams, speculative: SpeculativeOptions, options: LoadOptions
) -> int:
    """Talks with a model in the terminal, and shows where each token came from.

    Between turns the cache is kept, so only what is new is read. /help lists the commands. Ctrl-C stops an answer and
    keeps what was said; at the prompt it leaves, as Ctrl-D does. Standard input that is no terminal is read line by
    line, a turn each; the exit code is then 2 where a turn could not be served.
    """
    engine = pair.load(options)
    session = Session(
        engine, sampling, speculative, completing=manner.completes(pair.model, engine), system=manner.system
    )
    show_notes(engine.notes)
    if session.completing:
        show_notes([COMPLETING.format(model=pair.label)])
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not manner.as_json
    if interactive:
        drafts = (
            f"{speculative.num_draft} drafts per round from {pair.drafter}" if session.has_drafter else "no drafter"
        )
        print(f"{pair.label}, {drafts}, context {session.context_length}; /help lists the commands", file=sys.stderr)
    screen = JsonScreen() if manner.as_json else TextScreen()
    served = Loop(session, Reader(interactive=interactive), screen, measuring=manner.measure_plain).run()
    return 0 if served or interactive else 2
