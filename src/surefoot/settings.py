"""The settings file: models by a name of their own, and profiles, in TOML. Every command reads it.

::

    [[models]]
    name = "code"
    path = "pebble"
    draft_model = "pebble-draft"
    num_draft = 8

    [profiles.short]
    num_draft = 2

A key is what a flag is, with the flag's meaning and limits. A flag on the command line wins over the profile, the
profile over the model's entry, the entry over the defaults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, NoReturn, TypeAlias, get_args, get_origin, get_type_hints

import tomlkit
from tomlkit.exceptions import ParseError, TOMLKitError

from surefoot.errors import OptionError
from surefoot.options import Environment, LoadOptions, SamplingParams, SpeculativeOptions

Value: TypeAlias = bool | int | float | str
Lines: TypeAlias = Mapping[tuple[str, ...], int]

METHODS = ("none", "lookup", "draft", "dflash", "lookup+draft", "lookup+dflash")
"""How to draft, by name; with a ``+`` the first is asked before the second."""

WITHOUT_MODEL = ("none", "lookup")
"""Methods beside which no draft model is named."""

METHODS_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("ngram", "suffix", "prompt_lookup", "pld"), "lookup"),
    **dict.fromkeys(("draft_model", "model", "standalone", "vanilla"), "draft"),
    **dict.fromkeys(("disabled", "off", "autoregressive"), "none"),
}
"""What other engines call our methods."""

PAIR_KEYS: Mapping[str, type] = {"draft_model": str, "method": str, "lookup_min": int, "threads": int}
RECORD_KEYS: Mapping[type, tuple[str, ...]] = {
    SpeculativeOptions: ("num_draft", "tree_width", "acceptance", "draft_sampling"),
    LoadOptions: ("dtype", "device", "exact", "prefill_chunk"),
    SamplingParams: (
        *("temperature", "top_k", "top_p", "min_p"),
        *("repetition_penalty", "presence_penalty", "frequency_penalty"),
        *("max_tokens", "seed"),
    ),
}
"""Which options a file may set: those that belong to a model or a habit, not to one request."""


def _kind(hint: object) -> type:
    """The type a value of this hint has in a file: choices are strings, and None is leaving the key out."""
    kinds = [str if get_origin(part) is Literal else part for part in (hint, *get_args(hint))]
    return next(kind for kind in kinds if kind in (bool, int, float, str))


KEYS: Mapping[str, type] = {
    **PAIR_KEYS,
    **{name: _kind(get_type_hints(record)[name]) for record, names in RECORD_KEYS.items() for name in names},
}
"""Every key of a model's entry or a profile, and its type."""

ENTRY_KEYS: Mapping[str, type] = {"name": str, "path": str, **KEYS}
"""Every key of a model's entry."""

_NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
_HEADER = re.compile(r"\s*(\[\[?)([^\[\]#]+)\]\]?\s*(?:#.*)?$")
_ASSIGNMENT = re.compile(r"\s*([A-Za-z0-9_-]+)\s*=")
PROFILE_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Values by key, and where each was said: a line of the file, or a flag."""

    values: Mapping[str, Value] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A model's entry, or a profile. ``path`` is what the model is called on a command line; "" in a profile."""

    name: str
    place: str
    path: str
    layer: Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a file says. ``file`` is None where there is none."""

    file: Path | None = None
    models: tuple[Section, ...] = ()
    profiles: tuple[Section, ...] = ()

    def model(self, name: str) -> Section | None:
        """The entry of this name, if there is one."""
        return next((model for model in self.models if model.name == name), None)

    def profile(self, name: str) -> Section:
        """The profile of this name. Raises ``OptionError`` saying which there are."""
        found = next((profile for profile in self.profiles if profile.name == name), None)
        if found is None:
            if self.file is None:
                raise OptionError(
                    f"--profile is {name!r}; expected a settings file that has it: surefoot init writes one"
                )
            names = ", ".join(profile.name for profile in self.profiles) or "one; it has none"
            raise OptionError(f"--profile is {name!r}; expected one of those in {self.file}: {names}")
        return found

    def resolve(self, name: str) -> str:
        """A model's path where ``name`` is the name of an entry, else ``name``."""
        model = self.model(name)
        return name if model is None else model.path


def default_file(environment: Environment) -> Path:
    """Where the settings lie unless told otherwise: ``SUREFOOT_CONFIG``, else the user's directory of settings."""
    if environment.config_file is not None:
        return Path(environment.config_file).expanduser()
    home = Path(environment.config_home) if environment.config_home else Path.home() / ".config"
    return home / "surefoot" / "config.toml"


def read_settings(given: Path | None, environment: Environment) -> Settings:
    """The settings of the file that was named, else of the default one; empty where that one does not exist.

    Raises:
        OptionError: a named file is not there, or a file holds what settings cannot mean; with file, line and key.
    """
    path = (given or default_file(environment)).expanduser()
    if not path.exists():
        if given is None and environment.config_file is None:
            return Settings()
        flag = "SUREFOOT_CONFIG" if given is None else "--config"
        raise OptionError(f"{flag} names {path}, which does not exist; expected a file, as surefoot init writes it")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{path}: {error}; expected a readable UTF-8 file") from error
    return parse(text, path)


def parse(text: str, path: Path) -> Settings:
    """The settings a text holds; ``path`` is for messages, and for models given relative to it (``./``, ``../``)."""
    try:
        document = tomlkit.parse(text).unwrap()
    except ParseError as error:
        raise OptionError(f"{path}:{error.line}: not TOML: {error}") from error
    except TOMLKitError as error:
        raise OptionError(f"{path}: not TOML: {error}") from error
    reader = _Reader(path=path, lines=lines_of(text))
    reader.check_known(document, ("models", "profiles"), ())
    models, profiles = document.get("models", []), document.get("profiles", {})
    if not isinstance(models, list) or not all(isinstance(model, dict) for model in models):
        reader.refuse(("models",), "models is no list of tables", "[[models]] before each model")
    if not isinstance(profiles, dict) or not all(isinstance(profile, dict) for profile in profiles.values()):
        reader.refuse(("profiles",), "profiles is no table of tables", "[profiles.NAME] before each profile")
    entries = tuple(reader.model(index, model) for index, model in enumerate(models))
    for index, entry in enumerate(entries):
        twin = next((other for other in entries[:index] if other.name == entry.name), None)
        if twin is not None:
            place = ("models", str(index))
            reader.refuse(place, f"a second model called {entry.name!r} after {twin.place}", "names that differ")
    return Settings(
        file=path, models=entries, profiles=tuple(reader.profile(name, table) for name, table in profiles.items())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """Checks the tables of one file."""

    path: Path
    lines: Lines

    def place(self, key: tuple[str, ...]) -> str:
        """``file:line`` of a key, else of its table."""
        while key:
            if key in self.lines:
                return f"{self.path}:{self.lines[key]}"
            key = key[:-1]
        return str(self.path)

    def refuse(self, key: tuple[str, ...], found: str, expected: str) -> NoReturn:
        raise OptionError(f"{self.place(key)}: {found}; expected {expected}")

    def check_known(self, table: Mapping[str, object], known: Sequence[str], place: tuple[str, ...]) -> None:
        for key in table:
            if key not in known:
                close = get_close_matches(key, known, 1)
                expected = f"{close[0]}, perhaps" if close else _one_of(known)
                self.refuse((*place, key), f"unknown key {key!r}", expected)

    def model(self, index: int, table: Mapping[str, object]) -> Section:
        place = ("models", str(index))
        self.check_known(table, tuple(ENTRY_KEYS), place)
        for key, value in table.items():
            self.check_value((*place, key), value, ENTRY_KEYS[key])
        if "path" not in table:
            self.refuse(place, "a model without a path", 'path = "a directory, a bundled name or a hub id"')
        path = self.beside(str(table["path"]))
        name = str(table.get("name", path))
        return Section(name=name, place=self.place(place), path=path, layer=self.layer(place, table))

    def profile(self, name: str, table: Mapping[str, object]) -> Section:
        place = ("profiles", name)
        if not PROFILE_NAME.fullmatch(name):
            self.refuse(place, f"a profile called {name!r}", "letters, digits, - and _ in its name")
        self.check_known(table, tuple(KEYS), place)
        for key, value in table.items():
            self.check_value((*place, key), value, KEYS[key])
        return Section(name=name, place=self.place(place), path="", layer=self.layer(place, table))

    def layer(self, place: tuple[str, ...], table: Mapping[str, object]) -> Layer:
        values: dict[str, Value] = {}
        for key, value in table.items():
            if key in KEYS and isinstance(value, (bool, int, float, str)):
                values[key] = self.beside(str(value)) if key == "draft_model" else value
        return Layer(values=values, origins={key: self.place((*place, key)) for key in values})

    def beside(self, name: str) -> str:
        """A model given relative to this file, as a path; every other name as it is."""
        return str((self.path.parent / name).resolve()) if name.startswith(("./", "../")) else name

    def check_value(self, place: tuple[str, ...], value: object, kind: type) -> None:
        key = place[-1]
        fits = isinstance(value, (int, float) if kind is float else kind) and (
            kind is bool or not isinstance(value, bool)
        )
        if not fits:
            self.refuse(place, f"{key} is {value!r}", _NAMES[kind])
        problem = value_problem(key, value)
        if problem:
            raise OptionError(f"{self.place(place)}: {problem}")


def value_problem(key: str, value: object) -> str | None:
    """Why a key cannot have this value (of the key's type), or None."""
    if key == "method" and value not in METHODS:
        ours = METHODS_ELSEWHERE.get(str(value).lower())
        return f"method is {value!r}; expected " + (f"{ours}, as it is called here" if ours else _one_of(METHODS))
    if key in ("lookup_min", "threads") and isinstance(value, int) and value < 1:
        return f"{key} is {value}; expected at least 1"
    if key in ("name", "path", "draft_model") and value == "":
        return f"{key} is empty; expected a name; without one, leave it out"
    record = next((record for record, names in RECORD_KEYS.items() if key in names), None)
    if record is not None:
        try:
            record(**{key: value})
        except OptionError as error:
            return str(error)
    return None


def _one_of(names: Sequence[str]) -> str:
    return f"one of {', '.join(names)}"


def lines_of(text: str) -> Lines:
    """The line of each table (``("models", "0")``, ``("profiles", "short")``) and each key in one, counted from 1.

    Lines only, no grammar: what is written in another way than one key a line has no line, and messages name the file.
    """
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    num_models = 0
    for number, line in enumerate(text.split("\n"), start=1):
        header, assignment = _HEADER.match(line), _ASSIGNMENT.match(line)
        if header:
            table = tuple(part.strip().strip("\"'") for part in header.group(2).split(".", 1))
            if header.group(1) == "[[":
                table = (*table, str(num_models))
                num_models += 1
            lines[table] = number
            lines.setdefault(table[:1], number)
        elif assignment:
            lines.setdefault((*table, assignment.group(1)), number)
    return lines


def overlay(layers: Sequence[Layer]) -> Layer:
    """The layers as one; the last one wins.

    ``method`` and ``draft_model`` say one thing together. A draft model that is named above a method that needs none
    replaces that method; else such a method leaves the draft model out.
    """
    values: dict[str, Value] = {}
    origins: dict[str, str] = {}
    level: dict[str, int] = {}
    for number, layer in enumerate(layers):
        values |= layer.values
        origins |= layer.origins
        level |= dict.fromkeys(layer.values, number)
    if "draft_model" in values and values.get("method") in WITHOUT_MODEL:
        dropped = "method" if level["draft_model"] > level["method"] else "draft_model"
        del values[dropped], origins[dropped]
    return Layer(values=values, origins=origins)
