"""The text of a settings file: how it begins, how one value in it changes, how it is written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import tomlkit

from surefoot.errors import OptionError
from surefoot.settings import ENTRY_KEYS, KEYS, PROFILE_NAME, Section, Settings, Value, lines_of, parse, value_problem

TEMPLATE = """\
# Settings of surefoot. Every command reads this file; surefoot config path says where it lies.
#
# A key means what the flag of its name means. A flag on the command line wins over a profile, a profile over a model,
# a model over the defaults. surefoot config show NAME says what holds, and where it was said.

# One [[models]] part per model. `surefoot generate code` then means this one.
[[models]]
name = "code"                  # what you call it on the command line
path = "pebble"                # a bundled name, a hub id, a directory, or ./one beside this file
draft_model = "pebble-draft"   # a smaller model with the same tokenizer; without it lookup drafts
num_draft = 8                  # tokens drafted per round
dtype = "auto"                 # auto keeps the checkpoint's; float32, bfloat16, float16, float64
device = "auto"                # auto, cpu, cuda, cuda:1, ...

# The rest is optional. These are the defaults, but for the sampling: that is an example.
# method = "draft"             # none, lookup, draft, dflash, lookup+draft or lookup+dflash
# tree_width = 1               # guesses side by side: above 1 dflash drafts trees of num_draft tokens
# lookup_min = 2               # lookup drafts after this many equal tokens
# acceptance = "match"         # match: the same text as without speculation; reject: the same law
# draft_sampling = "shared"    # how a draft model guesses above temperature 0: shared or argmax
# exact = "auto"               # require insists on rows with the same bits, however they are computed
# prefill_chunk = 512          # prompt tokens per forward
# threads = 4                  # CPU threads; torch's own choice without it
# temperature = 0.7            # 0, the default, is greedy
# top_k = 20
# top_p = 0.95
# min_p = 0.05
# repetition_penalty = 1.1
# presence_penalty = 0.5
# frequency_penalty = 0.5
# max_tokens = 512
# seed = 7                     # one is drawn, and told, without it

# Another model. Name it as you like.
# [[models]]
# name = "small"
# path = "./models/my-model"

# A profile is chosen with --profile NAME and may set every key above but name and path.
# [profiles.careful]
# exact = "require"
# num_draft = 4
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a value stands: ``models.NAME.KEY`` or ``profiles.NAME.KEY``; without the key, the whole part."""

    table: Literal["models", "profiles"]
    name: str
    key: str | None

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads an address. Names may contain dots; a last part that is a key is the key.

        Raises:
            OptionError: anything else.
        """
        table, _, rest = text.partition(".")
        name, _, last = rest.rpartition(".")
        known = ENTRY_KEYS if table == "models" else KEYS
        if last not in known or not name:
            name, last = rest, ""
        if table not in ("models", "profiles") or not name:
            raise OptionError(
                f"found {text!r}; expected models.NAME.KEY or profiles.NAME.KEY with KEY of {', '.join(ENTRY_KEYS)}"
            )
        return cls(table=cast(Literal["models", "profiles"], table), name=name, key=last or None)

    def section(self, settings: Settings) -> Section | None:
        """The part of the file this names, if it is there."""
        sections = settings.models if self.table == "models" else settings.profiles
        return next((section for section in sections if section.name == self.name), None)


def typed(key: str, text: str) -> Value:
    """A value as the key's type. Raises ``OptionError`` where it cannot be one, or is out of range."""
    kind = ENTRY_KEYS[key]
    try:
        if kind is bool:
            value: Value = {"true": True, "false": False}[text]
        else:
            value = kind(text)
    except (KeyError, ValueError) as error:
        raise OptionError(f"{key} is {text!r}; expected {_EXPECTED[kind]}") from error
    problem = value_problem(key, value)
    if problem:
        raise OptionError(problem)
    return value


_EXPECTED = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}


def changed(text: str, path: Path, address: Address, value: Value) -> str:
    """The text with one value set; comments, order and blank lines stay.

    A profile that is not there is added; a model is added when its ``path`` is set.

    Raises:
        OptionError: there is no such model, or the text would not be settings any more.
    """
    assert address.key is not None
    settings = parse(text, path)
    section = address.section(settings)
    assignment = f"{address.key} = {tomlkit.item(value).as_string()}"
    if section is None:
        result = f"{text.rstrip()}\n\n{_opening(address)}\n{assignment}\n"
    else:
        index = settings.models.index(section) if address.table == "models" else address.name
        document = tomlkit.parse(text)
        table = cast(dict[str | int, MutableMapping[str, object]], document[address.table])[index]
        last = max((line for key, line in lines_of(text).items() if key[:2] == (address.table, str(index))), default=0)
        if address.key in table or not last:
            table[address.key] = value
            result = tomlkit.dumps(document)
        else:  # after the last key of its part: tomlkit would put it after the comments that follow
            lines = text.removesuffix("\n").split("\n")
            end = "\r" if lines[last - 1].endswith("\r") else ""
            result = "\n".join([*lines[:last], assignment + end, *lines[last:]]) + "\n"
    parse(result, path)
    return result


def _opening(address: Address) -> str:
    """What begins a part that was not there."""
    if address.table == "profiles":
        if not PROFILE_NAME.fullmatch(address.name):
            raise OptionError(f"a profile called {address.name!r}; expected letters, digits, - and _ in its name")
        return f"[profiles.{address.name}]"
    if address.key != "path":
        raise OptionError(f"found no model called {address.name!r}; set models.{address.name}.path first")
    return f"[[models]]\nname = {tomlkit.item(address.name).as_string()}"


def write(path: Path, text: str) -> None:
    """Writes a file in one step: whoever reads sees the old text or the new one, never a part.

    Raises:
        OptionError: the place cannot be written.
    """
    target = path.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
                file.write(text)
            os.chmod(temporary, mode)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except UnicodeEncodeError as error:
        raise OptionError(f"{path} cannot hold {error.object[error.start : error.end]!r}; expected text") from error
    except OSError as error:
        raise OptionError(f"{path} cannot be written ({error}); expected a place you may write to") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
