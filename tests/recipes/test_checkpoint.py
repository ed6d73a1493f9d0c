"""A recipe's run that was stopped goes on with the steps it would have taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from recipes.pebble.batches import Mixture
from recipes.pebble.checkpoint import resume_training, save_training
from recipes.pebble.prepare import write_documents
from torch import nn

SHARES = {"text": 1.0}


class Toy:
    """What every run has, small."""

    def __init__(self, work: Path, seed: int) -> None:
        torch.manual_seed(seed)
        self.network = nn.Linear(16, 1)
        self.optimizers = (torch.optim.AdamW([self.network.weight], lr=0.1), torch.optim.AdamW([self.network.bias]))
        self.mixture = Mixture.read(work, tuple(SHARES), seed=3)

    def step(self) -> None:
        rows = self.mixture.batch(4, 15, SHARES).float()
        self.network(rows / 100).square().mean().backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()


def test_a_resumed_run_takes_the_same_steps(tmp_path: Path) -> None:
    write_documents(tmp_path / "text.npz", list(np.array_split(np.arange(1, 900, dtype=np.uint16), 7)), eos=0)
    whole, other = Toy(tmp_path, seed=0), Toy(tmp_path, seed=1)
    path = tmp_path / "toy.pt"
    assert resume_training(path, other.network, other.optimizers, other.mixture) is None
    for _ in range(3):
        whole.step()
    save_training(path, whole.network, whole.optimizers, whole.mixture, {"step": 3})
    untouched = Toy(tmp_path, seed=0)
    state = resume_training(path, other.network, other.optimizers, other.mixture)
    assert state is not None
    assert state["step"] == 3
    for _ in range(5):
        for toy in (whole, other, untouched):
            toy.step()
    assert torch.equal(other.network.weight, whole.network.weight)
    assert torch.equal(other.network.bias, whole.network.bias)
    assert not torch.equal(untouched.network.weight, whole.network.weight), "the control: where one begins matters"
