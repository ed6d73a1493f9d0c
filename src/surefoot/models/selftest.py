"""The self-test of a whole layer: does a row come out otherwise beside others than alone, row after row?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from surefoot.cache.base import OpenNodes
from surefoot.cache.hybrid import HybridCache
from surefoot.cache.kv import KVCache
from surefoot.tree import path_to

ROW_COUNTS = (2, 3, 4, 7, 8, 9, 16)
"""Rows side by side in the self-test."""
TREE = (-1, 0, 0, 1, 1, 2, 2, 3)
CONTEXT = 37
"""Tokens committed before the rows under test, in a context that has room for them."""


def layer_differs(compute: Callable[[Tensor, OpenNodes], Tensor], cache: KVCache, x_NH: Tensor) -> bool:
    """Whether some node of a chain or tree comes out otherwise than at the end of its path, row after row.

    ``compute`` takes rows, the last of the nodes it is given, through the layer under test; it writes to ``cache``,
    whose committed rows stay. ``x_NH`` are as many rows as the largest of ``ROW_COUNTS``, which fit beside them.
    """
    length = cache.length

    def together(rows: Sequence[int], parents: Sequence[int]) -> Tensor:
        return compute(x_NH[list(rows)].clone(), cache.transaction.extended(parents))

    def alone(path: Sequence[int]) -> Tensor:
        outs = []
        for node in path:
            outs.append(together([node], [-1]))
            cache.transaction.open = cache.transaction.extended([-1])
            cache.commit([0])
        cache.truncate(length)
        return torch.cat(outs)

    chain = alone(range(len(x_NH)))
    if any(not torch.equal(together(range(n), range(-1, n - 1)), chain[:n]) for n in ROW_COUNTS):
        return True
    tree = together(range(len(TREE)), TREE)
    paths = [path_to(TREE, node) for node in range(len(TREE)) if node not in TREE]
    return any(not torch.equal(alone(path), tree[list(path)]) for path in paths)


def replay_differs(compute: Callable[[Tensor, OpenNodes], Tensor], cache: HybridCache, x_NH: Tensor) -> bool:
    """Whether the commit of part of a chain leaves other states than its rows one after the other.

    Arguments are those of :func:`layer_differs`; the layer under test is the last of the cache's delta layers.
    """
    length, kept = cache.length, 2

    def memory() -> tuple[Tensor, Tensor]:
        committed = cache.states.committed
        found = committed.state[-1].clone(), committed.history[-1].clone()
        cache.truncate(length)
        return found

    for node in range(kept):
        nodes = cache.transaction.extended([-1])
        compute(x_NH[node : node + 1].clone(), nodes)
        cache.transaction.open = nodes
        cache.commit([0])
    stepped = memory()
    nodes = cache.transaction.extended(range(-1, kept))
    compute(x_NH[: kept + 1].clone(), nodes)
    cache.transaction.open = nodes
    cache.commit(range(kept))
    return any(not torch.equal(one, other) for one, other in zip(stepped, memory(), strict=True))
