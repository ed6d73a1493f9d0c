"""Names a target and its drafter on the command line, and loads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
import typer

from surefoot.api import Guess, load
from surefoot.cli.flags import NO_FLAG
from surefoot.drafters.lookup import Lookup
from surefoot.engine import Engine
from surefoot.errors import ModelNotFoundError, OptionError
from surefoot.loading.resolve import resolve
from surefoot.options import Environment, LoadOptions
from surefoot.settings import METHODS, WITHOUT_MODEL, value_problem

_METHODS = "[" + "|".join(METHODS) + "]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What to run, and with which drafter.

    Attributes:
        label: the model as the user called it: a name in the settings file, or ``model`` itself.
        origins: where each setting was said that is not a default: the command line, or a line of the settings file.
    """

    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A name in the settings file, a directory, a bundled name such as pebble, or a hub id.",
        ),
    ]
    draft_model: Annotated[
        str | None,
        typer.Option(
            "--draft-model",
            "--drafter",
            metavar="MODEL",
            help="A smaller model with the same tokenizer, or a DFlash drafter; which of them, it finds out.",
        ),
    ] = None
    method: Annotated[
        str | None,
        typer.Option(
            "--method", metavar=_METHODS, help="How to draft; by --draft-model where there is one, else lookup."
        ),
    ] = None
    lookup_min: Annotated[
        int | None,
        typer.Option(
            "--lookup-min", metavar="N", help=f"Lookup drafts after N equal tokens; {Lookup().min_match} by default."
        ),
    ] = None
    speculative_config: Annotated[
        str | None,
        typer.Option(
            "--speculative-config",
            metavar="JSON",
            help="The same in vLLM's keys: method, model, num_speculative_tokens.",
        ),
    ] = None
    threads: Annotated[int | None, typer.Option("--threads", help="CPU threads torch may use.")] = None
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="The settings file; see surefoot config path.")
    ] = None
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="NAME", help="A profile of the settings file.")
    ] = None
    label: str = field(default="", metadata=NO_FLAG)
    origins: Mapping[str, str] = field(default_factory=dict, metadata=NO_FLAG)

    def __post_init__(self) -> None:
        for name in ("draft_model", "method", "lookup_min", "threads"):
            value = getattr(self, name)
            problem = None if value is None else value_problem(name, value)
            if problem:
                raise OptionError("--" + problem.replace(name, name.replace("_", "-"), 1))
        if self.method not in (None, *WITHOUT_MODEL) and self.draft_model is None:
            where = f"{self._from_file['method']}: method" if "method" in self._from_file else "--method"
            said = f"{where} is {self.method}"
            raise OptionError(f"{said}, and there is no draft model; add --draft-model MODEL, or take lookup")
        if self.method in WITHOUT_MODEL and self.draft_model is not None:
            raise OptionError(f"--method {self.method} came with --draft-model; expected one of the two")
        if self.lookup_min is not None and "lookup_min" not in self._from_file and not self._looks_up:
            raise OptionError(f"--lookup-min came with the drafter {self.drafter!r}; expected --method lookup")

    @property
    def drafter(self) -> str:
        """What the drafter is called: ``none``, ``lookup`` or the draft model's name."""
        return self.draft_model or self.method or "lookup"

    @property
    def _looks_up(self) -> bool:
        """Whether lookup drafts, alone or first."""
        return self.drafter == "lookup" or (self.method or "").startswith("lookup+")

    @property
    def _from_file(self) -> Mapping[str, str]:
        """The settings that were said in the settings file, and where."""
        return {key: place for key, place in self.origins.items() if not place.startswith(("command line", "--"))}

    def load(self, options: LoadOptions) -> Engine:
        """Loads both; ``threads`` holds for the whole process from then on."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        self._check_draft_model()
        lookup: Guess = "lookup" if self.lookup_min is None else Lookup(min_match=self.lookup_min)
        drafter: Guess | None = {"none": None, "lookup": lookup}.get(self.drafter, self.drafter)
        engine = load(
            self.model,
            (lookup, self.draft_model) if self._looks_up and self.draft_model else drafter,
            dtype=options.dtype,
            device=options.device,
            exact=options.exact,
            prefill_chunk=options.prefill_chunk,
        )
        if self.method not in (None, engine.drafter.method):
            raise OptionError(
                f"--method is {self.method}, and {self.drafter} drafts by {engine.drafter.method}; expected the same. "
                "Leave --method out, or choose another --draft-model"
            )
        return engine

    def _check_draft_model(self) -> None:
        """Says which line named a draft model that is not there."""
        place = self._from_file.get("draft_model")
        if place is None or self.draft_model is None:
            return
        try:
            resolve(self.draft_model, Environment.read())
        except ModelNotFoundError as error:
            raise ModelNotFoundError(f"{place}: draft_model: {error}") from error
