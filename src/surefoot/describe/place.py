"""From a name to a description."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from surefoot.describe.contents import Contents, read_contents
from surefoot.describe.description import Description
from surefoot.describe.gguf import describe_gguf
from surefoot.describe.heads import mtp_modules, recognise
from surefoot.describe.models import describe_model
from surefoot.errors import CheckpointError, ModelNotFoundError
from surefoot.loading.formats import ADVICE, PICKLES
from surefoot.loading.resolve import HUB_ID, bundled, resolve
from surefoot.models.hybrid_tensors import LATER_TOKENS
from surefoot.options import Environment


def describe(name: str) -> Description:
    """What ``name`` is: a directory, a GGUF file, a bundled model, or a hub id that has been downloaded before.

    Raises:
        ModelNotFoundError: there is no model of that name here; nothing is downloaded.
    """
    path = Path(os.path.expanduser(name))
    if path.is_file() and path.suffix.lower() == ".gguf":
        return _gguf(path)
    return describe_directory(path if name and path.is_dir() else _found(name))


def _found(name: str) -> Path:
    if name not in bundled() and HUB_ID.fullmatch(name):
        try:
            return resolve(name, replace(Environment.read(), hub_offline=True)).path
        except ModelNotFoundError as error:
            raise ModelNotFoundError(
                f"found no directory {name!r}, and as a hub id it has not been downloaded; expected something that is "
                "here, as inspect downloads nothing. Download it first, or give a directory"
            ) from error
    return resolve(name, Environment.read()).path


def describe_directory(path: Path) -> Description:
    """What a directory holds; a damaged one is described as such. Raises ``ModelNotFoundError`` where it holds no
    model."""
    try:
        contents = read_contents(path)
    except CheckpointError as error:
        return _damaged(path, "a damaged model directory", error)
    ggufs = contents.with_ending(".gguf")
    if ggufs and not contents.tensors:
        description = _gguf(path / ggufs[0])
        note = (f"the directory holds {len(ggufs)} GGUF files; this is {ggufs[0]}",) if len(ggufs) > 1 else ()
        return replace(description, notes=note)
    recognised = recognise(contents)
    if recognised is not None:
        return recognised
    if "config.json" not in contents.names and not contents.with_ending(".safetensors", *PICKLES, *ADVICE):
        raise ModelNotFoundError(
            f"{path}: found no config.json and no weights; expected a model or a drafter. Check the path"
        )
    return _with_modules(describe_model(contents), contents)


def _gguf(path: Path) -> Description:
    """What a GGUF file holds; a damaged one is described as such."""
    try:
        return describe_gguf(path)
    except CheckpointError as error:
        return _damaged(path, "a damaged GGUF file", error)


def _damaged(path: Path, kind: str, error: CheckpointError) -> Description:
    found, _, advice = str(error).partition("\n")[0].rpartition(". ")
    verdict = f"This version cannot use it: {found}"
    return Description(path=str(path), kind=kind, facts=(), usable=False, verdict=verdict, needs=advice)


def _with_modules(description: Description, contents: Contents) -> Description:
    """Adds what a model brings to draft with, which this version leaves out; once, where its family says so."""
    modules = mtp_modules(contents)
    if not modules or LATER_TOKENS.note in description.notes:
        return description
    note = f"it comes with {modules} multi-token prediction module(s), which this version does not draft with"
    return replace(description, notes=(*description.notes, note))
