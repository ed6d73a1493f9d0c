"""Makes a command's flags from dataclass fields, so that every option exists once.

A field annotated with ``typer.Option`` or ``typer.Argument`` is taken as it stands. A field of the options dataclasses,
which know nothing of a command line, becomes ``--its-name`` with the line its class docstring gives it as help.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from surefoot.options import LoadOptions, SamplingParams, SpeculativeOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Which fields of a dataclass a command offers as flags (all, unless ``only`` names some), the names of those flags
    that are not called like their field, and the defaults that differ from the field's."""

    record: type
    only: tuple[str, ...] | None = None
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)

    def fields(self) -> list[Field[Any]]:
        """The fields offered, in the order of the class."""
        chosen = [item for item in fields(self.record) if self.only is None or item.name in self.only]
        assert self.only is None or len(chosen) == len(self.only), self
        return chosen

    def build(self, values: Mapping[str, Any]) -> object:
        """The dataclass, from what was parsed; it raises our errors for what it cannot mean."""
        taken = {item.name: values[item.name] for item in self.fields()}
        return self.record(
            **{name: tuple(value) if isinstance(value, list) else value for name, value in taken.items()}
        )


SAMPLING = Source(
    record=SamplingParams,
    only=(
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "min_tokens",
        "max_tokens",
        "stop_token_ids",
        "ignore_eos",
        "seed",
    ),
    names={"stop_token_ids": ("--stop-token-id",)},
)
SPECULATIVE = Source(
    record=SpeculativeOptions,
    only=("num_draft", "acceptance", "draft_sampling"),
    names={"num_draft": ("--num-draft", "--num-draft-tokens")},
)
LOAD = Source(record=LoadOptions)


def command_of(*sources: Source) -> Callable[[Callable[..., int]], Callable[..., None]]:
    """Turns a function of one dataclass per source into a typer command that exits with what the function returns."""

    def decorate(run: Callable[..., int]) -> Callable[..., None]:
        def command(**values: Any) -> None:
            raise typer.Exit(run(*[source.build(values) for source in sources]))

        command.__doc__ = run.__doc__
        command.__annotations__ = {}
        parameters = [_parameter(source, item) for source in sources for item in source.fields()]
        vars(command)["__signature__"] = inspect.Signature(parameters)
        return command

    return decorate


def _parameter(source: Source, item: Field[Any]) -> inspect.Parameter:
    hint = get_type_hints(source.record, include_extras=True)[item.name]
    if get_origin(hint) is Annotated:
        hint, flag = get_args(hint)
        plain, _ = _plain(hint)
    else:
        plain, metavar = _plain(hint)
        names = source.names.get(item.name, ("--" + item.name.replace("_", "-"),))
        flag = typer.Option(*names, help=_help(source.record, item.name), metavar=metavar)
    default = source.defaults.get(item.name, item.default)
    return inspect.Parameter(
        item.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is MISSING else [] if default == () else default,
        annotation=Annotated[plain, flag],
    )


def _plain(hint: Any) -> tuple[Any, str | None]:
    """The type typer parses, and how the value is shown: choices are strings here and checked by the dataclass."""
    choices = [hint, *get_args(hint)]
    literal = next((choice for choice in choices if get_origin(choice) is Literal), None)
    if literal is not None:
        return (str if literal is hint else str | None), "[" + "|".join(map(str, get_args(literal))) + "]"
    if get_origin(hint) is tuple:
        return list[get_args(hint)[0]], None  # type: ignore[misc]  # a type made at run time
    return hint, None


def _help(record: type, name: str) -> str:
    """What the "Attributes" part of the class docstring says of a field."""
    doc = inspect.getdoc(record) or ""
    match = re.search(rf"^    {name}: (.*(?:\n        .*)*)", doc, re.MULTILINE)
    assert match, f"{record.__name__} does not document {name}"
    return re.sub(r"\s+", " ", match.group(1)).replace("``", "")
