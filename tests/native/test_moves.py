"""The commit of a path's keys and values, all layers in one call: what torch moves."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from surefoot import native
from surefoot.cache import kv
from surefoot.cache.kv import KVCache
from surefoot.native.library import Library
from surefoot.ops.rope import Rope, RopeTable
from surefoot.tree import path_to

LENGTH, NODES = 5, 12

pytestmark = pytest.mark.skipif(native.available() is None, reason=f"there are no kernels: {native.why_not()}")


def committed(path: Sequence[int], parents: Sequence[int], dtype: torch.dtype, head_dim: int) -> Tensor:
    """A cache's rows after a commit, the bits of what lies beyond too."""
    rope = RopeTable(Rope(theta=1e4, dim=2), 1, dtype=torch.float32, device=torch.device("cpu"))
    sizes = {"capacity": LENGTH + NODES, "num_layers": 3, "num_kv_heads": 2, "head_dim": head_dim}
    cache = KVCache(owner=None, rope=rope, like=torch.empty(0, dtype=dtype), **sizes)  # type: ignore[arg-type]
    cache.fill_committed(LENGTH, torch.Generator().manual_seed(1))
    cache.transaction.open = cache.transaction.extended(parents)
    cache.commit(path)
    assert cache.length == LENGTH + len(path)
    return torch.stack([rows.clone() for rows in cache.rows_to_read(0, LENGTH + NODES)])


def test_any_path_is_moved_as_torch_moves_it(kernels: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    source, move, moved = random.Random(7), kernels.move_rows, []
    monkeypatch.setattr(kernels, "move_rows", lambda *words: moved.append(words) or move(*words))
    for dtype, head_dim in ((torch.float32, 16), (torch.bfloat16, 5), (torch.float16, 3)):
        for _ in range(10):
            parents = (-1, *(source.randrange(max(0, node - 3), node) for node in range(1, NODES)))
            path = path_to(parents, source.randrange(NODES))
            ours = committed(path, parents, dtype, head_dim)
            with monkeypatch.context() as patch:
                patch.setattr(kv, "available", lambda: None)
                assert torch.equal(ours, committed(path, parents, dtype, head_dim)), path
    assert len(moved) > 10


def test_a_row_that_is_moved_too_late_is_seen(kernels: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    move = kernels.move_rows
    parents, path = (-1, 0, 0, 2, 2, 4), (0, 2, 4, 5)
    expected = committed(path, parents, torch.float32, 8)

    def shifted(rows: int, planes: int, capacity: int, size: int, places: int, count: int, start: int) -> None:
        move(rows, planes, capacity, size, places, count - 1, start)

    monkeypatch.setattr(kernels, "move_rows", shifted)
    assert not torch.equal(expected, committed(path, parents, torch.float32, 8))
