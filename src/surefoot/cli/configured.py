"""Completes what a command line says with the settings file: flags over profile over model's entry over defaults."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from surefoot.cli.speculative_config import FLAG, expand
from surefoot.errors import OptionError
from surefoot.options import Environment
from surefoot.settings import WITHOUT_MODEL, Layer, Settings, overlay, read_settings

COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A parsed command line: the value of every field, and the names of the fields whose flag was given."""

    values: Mapping[str, Any]
    given: frozenset[str]


def configured(parsed: Parsed, keys: Collection[str]) -> dict[str, Any]:
    """The values with everything the settings file adds to them.

    Two values come along: ``label``, the model as it was named, and ``origins``, where each setting was said that is
    not a default.

    Args:
        parsed: the command line, of a command that has the flags of a pair.
        keys: the settings this command has flags for.

    Raises:
        OptionError: a file or profile that is not there or wrong, or a setting given twice.
    """
    values = dict(parsed.values)
    typed = _typed(parsed, keys)
    settings = read_settings(values["config"], Environment.read())
    label = values["model"]
    layers = [*_file_layers(settings, label, values["profile"]), typed]
    effective = overlay([_only(layer, keys) for layer in layers])
    for key in keys:  # what was typed stays, so that flags that exclude each other are refused
        if key in effective.values:
            values[key] = effective.values[key]
    # A flag that may be repeated is no setting of the file, but --speculative-config may say it, once.
    values |= {key: [value] for key, value in typed.values.items() if isinstance(parsed.values[key], list)}
    if isinstance(label, str):
        values["model"] = settings.resolve(label)
    if isinstance(values.get("draft_model"), str):
        values["draft_model"] = settings.resolve(values["draft_model"])
    return {**values, "label": label, "origins": dict(effective.origins)}


def _typed(parsed: Parsed, keys: Collection[str]) -> Layer:
    """The layer of the command line: flags, and what ``--speculative-config`` stands for."""
    given = {key: parsed.values[key] for key in keys if key in parsed.given}
    origins = dict.fromkeys(given, COMMAND_LINE)
    text = parsed.values.get("speculative_config")
    for key, value in ({} if text is None else expand(text)).items():
        if key not in keys and not isinstance(parsed.values.get(key), list):
            raise OptionError(f"{FLAG} sets {key.replace('_', ' ')}, and this command has no such flag; leave it out")
        if key in given or key in parsed.given:
            raise OptionError(f"{FLAG} and --{key.replace('_', '-')} both say it; expected one of the two")
        given[key], origins[key] = value, FLAG
    if given.get("method") in WITHOUT_MODEL and "draft_model" in given:
        raise OptionError(
            f"--method {given['method']} came with --draft-model {given['draft_model']}; expected one of the two"
        )
    return Layer(values=given, origins=origins)


def _file_layers(settings: Settings, model: str | None, profile: str | None) -> list[Layer]:
    entry = settings.model(model) if model is not None else None
    layers = [] if entry is None else [entry.layer]
    return layers if profile is None else [*layers, settings.profile(profile).layer]


def _only(layer: Layer, keys: Collection[str]) -> Layer:
    values = {key: value for key, value in layer.values.items() if key in keys}
    return Layer(values=values, origins={key: layer.origins[key] for key in values})
