"""``surefoot config``: reads and changes the settings file."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand

from surefoot.cli.flags import Source, command_of
from surefoot.cli.settings_text import Address, changed, typed, write
from surefoot.errors import OptionError
from surefoot.options import Environment
from surefoot.settings import KEYS, RECORD_KEYS, Layer, Section, Settings, Value, default_file, overlay, read_settings

command = typer.Typer(no_args_is_help=True)
_NEGATIVE = re.compile(r"-\.?\d.*")
_KEY_HELP = "models.NAME.KEY or profiles.NAME.KEY, such as models.code.num_draft."


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """Which file, and how to answer."""

    file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="The settings file; else where every command looks.")
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False

    def read(self) -> Settings:
        """What it says. Raises ``OptionError`` where it is wrong, or was named and is not there."""
        return read_settings(self.file, Environment.read())

    @property
    def path(self) -> Path:
        """Where it lies, or would."""
        return (self.file or default_file(Environment.read())).expanduser()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What to look up."""

    key: Annotated[str, typer.Argument(metavar="KEY", help=_KEY_HELP)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What to set."""

    key: Annotated[str, typer.Argument(metavar="KEY", help=_KEY_HELP)]
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The new value; strings without quotes.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What to show the settings of."""

    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="A name in the settings file.")] = None
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="NAME", help="A profile of the settings file.")
    ] = None


@command.command("path")
@command_of(Source(record=File))
def path(file: File) -> int:
    """Prints where the settings file lies, or would."""
    print(json.dumps({"path": str(file.path), "exists": file.path.exists()}) if file.as_json else file.path)
    return 0


@command.command("get")
@command_of(Source(record=Question), Source(record=File))
def get(question: Question, file: File) -> int:
    """Prints what the settings file says."""
    address, settings = Address.parse(question.key), file.read()
    section = address.section(settings)
    if section is None:
        names = [one.name for one in (settings.models if address.table == "models" else settings.profiles)]
        there = ", ".join(names) or "none"
        raise OptionError(f"{file.path} has no {address.table} part called {address.name!r}; expected one of: {there}")
    said = _said(section)
    if address.key is None:
        print(json.dumps(said) if file.as_json else "\n".join(f"{key} = {json.dumps(said[key])}" for key in said))
        return 0
    if address.key not in said:
        raise OptionError(f"{section.place}: {address.key} is not set there; expected one of: {', '.join(said)}")
    value = said[address.key]
    print(json.dumps(value) if file.as_json or isinstance(value, bool) else value)
    return 0


class _TakesNegatives(TyperCommand):
    """Takes a negative number for the value it is, not for a flag."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # its base is private
        """Puts numbers behind ``--``, where nothing is a flag."""
        numbers = [argument for argument in args if _NEGATIVE.fullmatch(argument)]
        others = [argument for argument in args if argument not in numbers]
        return super().parse_args(ctx, [*others, "--", *numbers] if numbers else others)


@command.command("set", cls=_TakesNegatives)
@command_of(Source(record=Change), Source(record=File))
def set_(change: Change, file: File) -> int:
    """Changes one value and keeps everything else as it stands, comments included.

    Setting the path of a model that is not there adds the model; setting a key of a profile adds the profile.
    """
    address = Address.parse(change.key)
    if address.key is None:
        raise OptionError(f"found {change.key!r} without a key; expected {_KEY_HELP}")
    value = typed(address.key, change.value)
    if not file.path.exists():
        raise OptionError(f"{file.path} does not exist; expected a settings file: surefoot init writes one")
    file.read()
    with file.path.open(encoding="utf-8", newline="") as lines:  # whose ends stay as they are
        text = lines.read()
    write(file.path, changed(text, file.path, address, value))
    if file.as_json:
        print(json.dumps({"path": str(file.path), "key": change.key, "value": value}))
    else:
        print(f"{change.key} = {json.dumps(value)}")
    return 0


@command.command("show")
@command_of(Source(record=Choice), Source(record=File))
def show(choice: Choice, file: File) -> int:
    """Prints what holds for a model, and where each setting was said; without a model, what there is."""
    settings = file.read()
    if choice.model is None and choice.profile is None:
        report = overview(file.path, settings)
        print(json.dumps(report) if file.as_json else "\n".join(_overview_lines(report)))
        return 0
    entry = None if choice.model is None else settings.model(choice.model)
    layers = [] if entry is None else [entry.layer]
    if choice.profile is not None:
        layers.append(settings.profile(choice.profile).layer)
    effective = overlay([_defaults(), *layers])
    rows = [(key, effective.values.get(key), effective.origins.get(key, "default")) for key in KEYS]
    model = None if choice.model is None else settings.resolve(choice.model)
    if file.as_json:
        said = {key: {"value": value, "from": place} for key, value, place in rows}
        print(json.dumps({"model": choice.model, "path": model, "profile": choice.profile, "settings": said}))
        return 0
    if model is not None:
        print(f"{choice.model} is {model}" + (f" ({entry.place})" if entry else ", which no settings file names"))
    width = max(len(_shown(value)) for _, value, _ in rows)
    print("\n".join(f"{key:<20} {_shown(value):<{width}}  {place}" for key, value, place in rows))
    return 0


def overview(path: Path, settings: Settings) -> dict[str, object]:
    """The file, its models and profiles, and the environment variables that take part."""
    environment = asdict(Environment.read())
    return {
        "path": str(path),
        "exists": settings.file is not None,
        "models": {model.name: model.path for model in settings.models},
        "profiles": [profile.name for profile in settings.profiles],
        "environment": {VARIABLES[name]: value for name, value in environment.items()},
    }


VARIABLES: Mapping[str, str] = dict(re.findall(r"^ +(\w+): ``(\w+)``", inspect.getdoc(Environment) or "", re.MULTILINE))
"""The environment variable behind each field of ``Environment``, as its docstring names it."""


def _overview_lines(report: Mapping[str, object]) -> list[str]:
    models, profiles, environment = report["models"], report["profiles"], report["environment"]
    assert isinstance(models, dict)
    assert isinstance(profiles, list)
    assert isinstance(environment, dict)
    return [
        f"file      {report['path']}" + ("" if report["exists"] else " (not there; surefoot init writes it)"),
        *(f"model     {name} is {path}" for name, path in models.items()),
        *(f"profile   {name}" for name in profiles),
        *(f"variable  {name} is {_shown(value)}" for name, value in environment.items()),
    ]


def _said(section: Section) -> dict[str, Value]:
    """A part of the file, name and path included where it is a model."""
    named: dict[str, Value] = {"name": section.name, "path": section.path} if section.path else {}
    return {**named, **section.layer.values}


def _defaults() -> Layer:
    values = {
        item.name: item.default
        for record, names in RECORD_KEYS.items()
        for item in fields(record)
        if item.name in names and isinstance(item.default, (bool, int, float, str))
    }
    return Layer(values=values, origins=dict.fromkeys(values, "default"))


def _shown(value: object) -> str:
    return "-" if value is None else json.dumps(value) if isinstance(value, bool) else str(value)
