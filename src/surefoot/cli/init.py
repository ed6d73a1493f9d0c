"""``surefoot init``: writes a commented settings file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from surefoot.cli.flags import Source, command_of
from surefoot.cli.settings_text import TEMPLATE, write
from surefoot.errors import OptionError
from surefoot.options import Environment
from surefoot.settings import default_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where to write."""

    path: Annotated[
        Path | None, typer.Option("--path", metavar="FILE", help="Where to; else where every command looks.")
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False


@command_of(Source(record=Place))
def command(place: Place) -> int:
    """Writes a commented settings file, which every command reads.

    It names the bundled model and its draft model; add your own beside it.
    """
    path = (place.path or default_file(Environment.read())).expanduser()
    if path.is_dir():
        raise OptionError(f"{path} is a directory; expected the file to write, such as {path / 'config.toml'}")
    if path.exists() and not place.force:
        raise OptionError(f"{path} exists; nothing was written. Use --force to overwrite it, or --path for another one")
    write(path, TEMPLATE)
    if place.as_json:
        print(json.dumps({"path": str(path)}))
    else:
        print(f'wrote {path}; try: surefoot generate code --prompt "class Stack:"')
    return 0
