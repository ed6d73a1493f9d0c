"""Sampling parameters by name, as a line of text gives them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from types import NoneType
from typing import get_args, get_origin, get_type_hints

from surefoot.cli.flags import SAMPLING
from surefoot.errors import OptionError
from surefoot.options import SamplingParams

NAMES = tuple(item.name for item in SAMPLING.fields())
"""Those the command line has flags for."""
NONE = "none"


def shown(sampling: SamplingParams, name: str = "") -> list[str]:
    """A line per parameter, or the one of ``name``: how it is called, and its value as :func:`changed` reads it."""
    if name:
        _check_name(name)
    return [f"{one} {_written(getattr(sampling, one))}" for one in ((name,) if name else NAMES)]


def changed(sampling: SamplingParams, name: str, text: str) -> SamplingParams:
    """With one parameter changed to what ``text`` says.

    Numbers, ``true``, ``false`` and lists are JSON; a single value stands for a list of one; ``logit_bias`` is written
    ID=NUMBER, and again after a space; ``none`` is nothing or an empty list.

    Raises:
        OptionError: no such parameter, or not a value of its kind.
    """
    _check_name(name)
    hint = get_type_hints(SamplingParams)[name]
    kinds = (hint,) if get_origin(hint) in (None, tuple, Mapping) else get_args(hint)
    if text == NONE and NoneType in kinds:
        return _replaced(sampling, name, None)
    (kind,) = (kind for kind in kinds if kind is not NoneType)
    if get_origin(kind) is Mapping:
        # Its flag's own reader; it raises for what is no ID=NUMBER.
        entries = SAMPLING.build({name: [] if text == NONE else text.split()})
        return _replaced(sampling, name, getattr(entries, name))
    listed = get_origin(kind) is tuple
    value = _list(get_args(kind)[0], text) if listed else _single(kind, text)
    if value is None:
        expected = f"a list of {get_args(kind)[0].__name__}" if listed else kind.__name__
        raise OptionError(f"{name} is {text!r:.60}; expected {expected}. Nothing was changed")
    return _replaced(sampling, name, value)


def _check_name(name: str) -> None:
    if name not in NAMES:
        raise OptionError(f"found {name!r:.60}; expected one of {', '.join(NAMES)}")


def _written(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{token}={number}" for token, number in value.items()) or NONE
    return NONE if value is None else json.dumps(value, ensure_ascii=False)


def _list(kind: type, text: str) -> tuple[object, ...] | None:
    """The items ``text`` stands for; None where one is of another kind."""
    value = _parsed(text)
    if text == NONE:
        return ()
    items = value if isinstance(value, list) else [value if kind is not str or isinstance(value, str) else text]
    return tuple(items) if all(type(item) is kind for item in items) else None


def _single(kind: type, text: str) -> object | None:
    """The value ``text`` stands for; None where it is of another kind."""
    value = _parsed(text)
    return value if type(value) is kind or (kind is float and type(value) is int) else None


def _replaced(sampling: SamplingParams, name: str, value: object) -> SamplingParams:
    changes = {name: value}
    return replace(sampling, **changes)  # type: ignore[arg-type]  # its kind was checked by name


def _parsed(text: str) -> object:
    """JSON, or the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
