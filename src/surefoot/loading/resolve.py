"""A model's name to the directory it lies in: a directory, then a bundled name, then a hub id."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from surefoot.errors import ModelNotFoundError, UnsupportedModelError
from surefoot.loading.formats import ADVICE, PICKLES
from surefoot.loading.hub import snapshot
from surefoot.options import Environment

HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]{0,95}/[A-Za-z0-9][\w.\-]{0,95}", re.ASCII)
MAX_NAME = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a model lies, and what it was called."""

    name: str
    path: Path


def bundled() -> dict[str, Path]:
    """The models that come with the package, by name."""
    root = Path(str(files("surefoot"))) / "pebble"
    if not root.is_dir():
        return {}
    return {path.name: path for path in sorted(root.iterdir()) if (path / "config.json").is_file()}


def resolve(name: str | os.PathLike[str], environment: Environment) -> Place:
    """Where ``name`` lies. Raises ``ModelNotFoundError`` saying what there is."""
    text = os.fspath(name)
    if not text or len(text) > MAX_NAME or not text.isprintable():
        raise _not_found(text, "which is no name")
    path = Path(os.path.expanduser(text))
    models = bundled()
    if os.path.isdir(path):
        if text in models and not (path / "config.json").exists():
            raise _not_found(text, f"a directory here without config.json, which hides the bundled {text}")
        return Place(name=text, path=path)
    if os.path.exists(path):
        _refuse_file(path)
    if text in models:
        return Place(name=text, path=models[text])
    if isinstance(name, str) and HUB_ID.fullmatch(text) and ".." not in text:
        return Place(name=text, path=snapshot(text, environment.hub_offline))
    raise _not_found(text, "which is none of them")


def _refuse_file(path: Path) -> None:
    ending = path.suffix.lower()
    if ending in ADVICE:
        raise UnsupportedModelError(f"{path}: found a {ending} file; expected safetensors. {ADVICE[ending]}")
    if ending in PICKLES:
        raise UnsupportedModelError(
            f"{path}: found a pickle, which can execute code and is never opened; expected a directory with "
            "safetensors. Load the model in its own library and save it with save_pretrained"
        )
    raise ModelNotFoundError(
        f"{path}: found a file; expected the directory that holds config.json and the weights. Give {path.parent}"
    )


def _not_found(text: str, found: str) -> ModelNotFoundError:
    names = ", ".join(bundled()) or "none in this installation"
    return ModelNotFoundError(
        f"found {text!r:.200}, {found}; expected a directory, the name of a bundled model ({names}), "
        "or a hub id (org/name). Check the spelling"
    )
