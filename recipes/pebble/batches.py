"""Batches of packed documents, a pure function of the seed and a small resumable position."""

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


class Source:
    """Windows of one token array: each epoch shuffles the documents, packs them and cuts from a random offset."""

    def __init__(self, path: Path, seed: int, name: str) -> None:
        arrays = np.load(path)
        tokens, starts = arrays["tokens"], arrays["starts"]
        self.documents = [tokens[a:b] for a, b in itertools.pairwise(starts)]
        self.seed = [seed, *name.encode()]
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
    """Library code and test code, mixed row by row at a given share of tests."""

    code: Source
    test: Source
    owed: float = 0.0

    def batch(self, rows: int, length: int, test_share: float) -> Tensor:
        """Returns token ids [rows, length + 1]; over time a share `test_share` of the rows is test code."""
        windows = []
        for _ in range(rows):
            self.owed += test_share
            from_tests = self.owed >= 1.0
            self.owed -= float(from_tests)
            windows.append((self.test if from_tests else self.code).take(length))
        return torch.from_numpy(np.stack(windows).astype(np.int64))

    def state(self) -> dict[str, object]:
        """Returns the position of both sources."""
        return {"code": self.code.position(), "test": self.test.position(), "owed": self.owed}

    def restore(self, state: dict[str, object]) -> None:
        """Continues from a `state`."""
        self.code.seek(state["code"])  # type: ignore[arg-type]  # written by `state`
        self.test.seek(state["test"])  # type: ignore[arg-type]  # written by `state`
        self.owed = float(state["owed"])  # type: ignore[arg-type]  # written by `state`


def held_out_batches(path: Path, length: int, rows: int) -> list[Tensor]:
    """Returns the whole held-out text as batches of token ids [up to rows, length + 1], in order."""
    tokens = torch.from_numpy(np.load(path)["tokens"].astype(np.int64))
    count = (len(tokens) - 1) // length
    windows = torch.stack([tokens[i * length : (i + 1) * length + 1] for i in range(count)])
    return list(windows.split(rows))
