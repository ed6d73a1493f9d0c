"""Makes a command's flags from dataclass fields, so that every option exists once.

A field annotated with ``typer.Option`` or ``typer.Argument`` is taken as it stands. A field of the options dataclasses,
which know nothing of a command line, becomes ``--its-name`` with the line its class docstring gives it as help.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from surefoot.cli.configured import Parsed, configured
from surefoot.errors import OptionError
from surefoot.options import LoadOptions, SamplingParams, SpeculativeOptions
from surefoot.settings import PAIR_KEYS, RECORD_KEYS

NO_FLAG = {"flag": False}
"""Metadata of a field that no flag sets: it is filled in with what the command line and the settings file amount to."""


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
        return [item for item in chosen if item.metadata.get("flag", True)]

    @property
    def configurable(self) -> bool:
        """Whether this record names the settings file to read."""
        return "config" in {item.name for item in self.fields()}

    @property
    def keys(self) -> frozenset[str]:
        """The settings a file may give these fields."""
        known = PAIR_KEYS if self.configurable else RECORD_KEYS.get(self.record, ())
        return frozenset(known) & {item.name for item in self.fields()}

    def build(self, values: Mapping[str, Any]) -> object:
        """The dataclass, from what was parsed; it raises our errors for what it cannot mean."""
        hints = get_type_hints(self.record)
        names = [item.name for item in self.fields()]
        names += [item.name for item in fields(self.record) if not item.metadata.get("flag", True)]
        return self.record(**{name: _as_field(name, hints[name], values[name]) for name in names if name in values})


SAMPLING_NAMES = {
    "stop_token_ids": ("--stop-token-id",),
    "forbidden_tokens": ("--forbidden-token",),
    "allowed_tokens": ("--allowed-token",),
}
SAMPLING = Source(
    record=SamplingParams,
    only=(
        *("temperature", "top_k", "top_p", "min_p"),
        *("repetition_penalty", "presence_penalty", "frequency_penalty"),
        *("logit_bias", "forbidden_tokens", "allowed_tokens"),
        *("min_tokens", "max_tokens", "stop", "stop_token_ids", "ignore_eos", "seed"),
    ),
    names=SAMPLING_NAMES,
)
SPECULATIVE = Source(
    record=SpeculativeOptions,
    only=("num_draft", "tree_width", "acceptance", "draft_sampling"),
    names={"num_draft": ("--num-draft", "--num-draft-tokens")},
)
LOAD = Source(record=LoadOptions, only=("dtype", "device", "exact", "prefill_chunk"))


def command_of(
    *sources: Source, complete: Callable[[Parsed, Collection[str]], dict[str, Any]] = configured
) -> Callable[[Callable[..., int]], Callable[..., None]]:
    """Turns a function of one dataclass per source into a typer command that exits with what the function returns.

    Where one of the records names a settings file (``Pair`` does), flags that were not given take their values from it:
    ``complete`` reads them there.
    """
    keys = frozenset[str]().union(*(source.keys for source in sources))
    reads_settings = any(source.configurable for source in sources)

    def decorate(run: Callable[..., int]) -> Callable[..., None]:
        def command(context: typer.Context, **values: Any) -> None:
            if reads_settings:
                values = complete(Parsed(values=values, given=_given(context, values)), keys)
            raise typer.Exit(run(*[source.build(values) for source in sources]))

        command.__doc__ = run.__doc__
        command.__annotations__ = {}
        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        parameters = [_parameter(source, item) for source in sources for item in source.fields()]
        vars(command)["__signature__"] = inspect.Signature([context, *parameters])
        return command

    return decorate


def _given(context: typer.Context, names: Iterable[str]) -> frozenset[str]:
    """The parameters whose flag or argument stands on the command line."""
    sources = {name: context.get_parameter_source(name) for name in names}
    return frozenset(name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE")


def _as_field(name: str, hint: Any, value: object) -> object:
    """A field's value from a flag's: what may be repeated is a tuple or a mapping, or None where it was left out."""
    if not isinstance(value, list):
        return value
    if get_origin(hint) is Mapping:
        return dict(_as_entry(name, text) for text in value)
    return None if type(None) in get_args(hint) and not value else tuple(value)


def _as_entry(name: str, text: str) -> tuple[int, float]:
    token, _, number = text.partition("=")
    try:
        return int(token), float(number)
    except ValueError as error:
        flag = "--" + name.replace("_", "-")
        raise OptionError(f"{flag} is {text!r}; expected ID=NUMBER, such as 42=-5") from error


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
    if default is MISSING and item.default_factory is not MISSING:
        default = item.default_factory()
    if default is MISSING:
        default = inspect.Parameter.empty
    elif get_origin(plain) is list and not default:
        default = []
    return inspect.Parameter(
        item.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[plain, flag],
    )


def _plain(hint: Any) -> tuple[Any, str | None]:
    """The type typer parses, and how the value is shown: choices are strings here and checked by the dataclass."""
    choices = [hint, *get_args(hint)]
    literal = next((choice for choice in choices if get_origin(choice) is Literal), None)
    if literal is not None:
        return (str if literal is hint else str | None), "[" + "|".join(map(str, get_args(literal))) + "]"
    several = next((choice for choice in choices if get_origin(choice) is tuple), None)
    if several is not None:
        return list[get_args(several)[0]], None  # type: ignore[misc]  # a type made at run time
    if get_origin(hint) is Mapping:
        return list[str], "ID=NUMBER"
    return hint, None


def _help(record: type, name: str) -> str:
    """What the "Attributes" part of the class docstring says of a field."""
    doc = inspect.getdoc(record) or ""
    match = re.search(rf"^    {name}: (.*(?:\n        .*)*)", doc, re.MULTILINE)
    assert match, f"{record.__name__} does not document {name}"
    return re.sub(r"\s+", " ", match.group(1)).replace("``", "")
