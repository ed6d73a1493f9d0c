"""Saves and restores the whole state of a run in one atomically replaced file."""

import os
from pathlib import Path

import torch


def save_checkpoint(path: Path, state: dict[str, object]) -> None:
    """Writes `state` aside, forces it to disk, then renames it over `path`."""
    aside = path.with_suffix(".new")
    with aside.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def load_checkpoint(path: Path) -> dict[str, object] | None:
    """Returns the saved state, None when there is none yet."""
    if not path.exists():
        return None
    state: dict[str, object] = torch.load(path, map_location="cpu", weights_only=False)
    return state
