"""Batches of packed documents, a pure function of the seed and a small resumable position."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


class Source:
    """Windows of one token array: each epoch shuffles the documents, packs them and cuts from a random offset."""

    def __init__(self, path: Path, seed: int) -> None:
        arrays = np.load(path)
        tokens, starts = arrays["tokens"], arrays["starts"]
        self.documents = [tokens[a:b] for a, b in itertools.pairwise(starts)]
        self.seed = [seed, *path.stem.encode()]
        self.epoch = -1
        self.used = 0
        self.length = 0
        self.windows: list[np.ndarray] = []

    def _cut(self, epoch: int, length: int) -> None:
        rng = np.random.default_rng([*self.seed, epoch])
        packed = np.concatenate([self.documents[i] for i in rng.permutation(len(self.documents))])
        offset = int(rng.integers(length))
        count = (len(packed) - offset - 1) // length
        order = rng.permutation(count)
        self.windows = [packed[offset + i * length : offset + (i + 1) * length + 1] for i in order]
        self.epoch, self.length, self.used = epoch, length, 0

    def take(self, length: int) -> np.ndarray:
        """Returns the next window of `length` + 1 tokens; a new length starts a new epoch."""
        if length != self.length or self.used == len(self.windows):
            self._cut(self.epoch + 1, length)
        self.used += 1
        return self.windows[self.used - 1]

    def position(self) -> tuple[int, int, int]:
        """Returns what `seek` needs to continue exactly here."""
        return self.epoch, self.length, self.used

    def seek(self, position: tuple[int, int, int]) -> None:
        """Continues from a `position`."""
        epoch, length, used = position
        if epoch >= 0:
            self._cut(epoch, length)
            self.used = used


@dataclass(slots=True, kw_only=True)
class Mixture:
    """Several sources, mixed row by row at given shares."""

    sources: dict[str, Source]
    owed: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, work: Path, names: tuple[str, ...], seed: int) -> "Mixture":
        """Returns the mixture of the work folder's token arrays of these names."""
        return cls(sources={name: Source(work / f"{name}.npz", seed) for name in names})

    def batch(self, rows: int, length: int, shares: Mapping[str, float]) -> Tensor:
        """Returns token ids [rows, length + 1]; over time each source fills its share of the rows."""
        windows = []
        for _ in range(rows):
            for name, share in shares.items():
                self.owed[name] = self.owed.get(name, 0.0) + share
            chosen = max(shares, key=lambda name: self.owed[name])
            self.owed[chosen] -= 1.0
            windows.append(self.sources[chosen].take(length))
        return torch.from_numpy(np.stack(windows).astype(np.int64))

    def state(self) -> dict[str, object]:
        """Returns the position of all sources."""
        return {"positions": {name: source.position() for name, source in self.sources.items()}, "owed": self.owed}

    def restore(self, state: dict[str, object]) -> None:
        """Continues from a `state`."""
        for name, source in self.sources.items():
            source.seek(state["positions"][name])  # type: ignore[index]  # written by `state`
        self.owed = dict(state["owed"])  # type: ignore[call-overload]  # written by `state`


def held_out_batches(path: Path, length: int, rows: int) -> list[Tensor]:
    """Returns the whole held-out text as batches of token ids [up to rows, length + 1], in order."""
    tokens = torch.from_numpy(np.load(path)["tokens"].astype(np.int64))
    count = (len(tokens) - 1) // length
    windows = torch.stack([tokens[i * length : (i + 1) * length + 1] for i in range(count)])
    return list(windows.split(rows))
