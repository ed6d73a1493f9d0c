"""Saves and restores the whole state of a run in one atomically replaced file."""

import os
from collections.abc import Sequence
from pathlib import Path

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


def training_state(
    network: nn.Module, optimizers: Sequence[torch.optim.Optimizer], mixture: Mixture
) -> dict[str, object]:
    """Returns what every run saves: the weights, the optimizers' state and the place in the data."""
    return {
        "network": network.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "mixture": mixture.state(),
    }


def restore_training(
    state: dict[str, object], network: nn.Module, optimizers: Sequence[torch.optim.Optimizer], mixture: Mixture
) -> None:
    """Puts back what `training_state` returned."""
    network.load_state_dict(state["network"])  # type: ignore[arg-type]  # written by `training_state`
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):  # type: ignore[call-overload]
        optimizer.load_state_dict(saved)
    mixture.restore(state["mixture"])  # type: ignore[arg-type]  # written by `training_state`
