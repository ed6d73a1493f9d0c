"""Names a target and its drafter on the command line, and loads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import typer

from surefoot.api import load
from surefoot.engine import Engine
from surefoot.errors import OptionError
from surefoot.options import LoadOptions

METHODS = ("none", "lookup", "draft")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What to run, and with which drafter."""

    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A directory, a bundled name such as pebble, or a hub id.")
    ]
    draft_model: Annotated[
        str | None, typer.Option("--draft-model", metavar="MODEL", help="A smaller model with the same tokenizer.")
    ] = None
    method: Annotated[
        str | None,
        typer.Option(
            "--method", metavar="[none|lookup|draft]", help="How to draft; draft with --draft-model, else lookup."
        ),
    ] = None
    threads: Annotated[int | None, typer.Option("--threads", help="CPU threads torch may use.")] = None

    def __post_init__(self) -> None:
        if self.method is not None and self.method not in METHODS:
            raise OptionError(f"--method is {self.method!r}; expected one of {', '.join(METHODS)}")
        if self.method == "draft" and self.draft_model is None:
            raise OptionError("--method draft came without a draft model; add --draft-model MODEL, or take lookup")
        if self.method in ("none", "lookup") and self.draft_model is not None:
            raise OptionError(f"--method {self.method} came with --draft-model; expected one of the two")
        if self.threads is not None and self.threads < 1:
            raise OptionError(f"--threads is {self.threads}; expected at least 1")

    @property
    def drafter(self) -> str:
        """What the drafter is called: ``none``, ``lookup`` or the draft model's name."""
        return self.draft_model or self.method or "lookup"

    def load(self, options: LoadOptions) -> Engine:
        """Loads both; ``threads`` holds for the whole process from then on."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        drafter = None if self.drafter == "none" else self.drafter
        return load(
            self.model,
            drafter,
            dtype=options.dtype,
            device=options.device,
            exact=options.exact,
            prefill_chunk=options.prefill_chunk,
        )
