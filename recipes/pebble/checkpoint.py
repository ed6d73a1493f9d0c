"""Saves and restores the whole state of a run in one atomically replaced file."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from recipes.pebble.batches import Mixture
from torch import nn


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


def save_training(
    path: Path,
    network: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    mixture: Mixture,
    place: dict[str, object],
) -> None:
    """Writes what every run saves: the weights, the optimizers' state, the place in the data, and its own `place`."""
    state = {
        "network": network.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "mixture": mixture.state(),
    }
    save_checkpoint(path, state | place)


def resume_training(
    path: Path, network: nn.Module, optimizers: Sequence[torch.optim.Optimizer], mixture: Mixture
) -> dict[str, Any] | None:
    """Puts back what `save_training` wrote, and returns all of it; None when there is nothing yet."""
    state: dict[str, Any] | None = load_checkpoint(path)
    if state is None:
        return None
    network.load_state_dict(state["network"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    mixture.restore(state["mixture"])
    return state
