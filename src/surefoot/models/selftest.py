"""The self-test of a whole layer: does a row come out otherwise beside others than alone, row after row?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from surefoot.cache.base import OpenNodes
from surefoot.cache.kv import KVCache
from surefoot.tree import path_to

ROW_COUNTS = (2, 3, 4, 7, 8, 9, 16)
"""Rows side by side in the self-test."""
TREE = (-1, 0, 0, 1, 1, 2, 2, 3)
COMMITS = (((-1, 0, 1), (0, 1)), (TREE, (0, 2, 6)))
"""Rounds and what is kept of them: part of a chain, and a branch whose rows have to move."""
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


def commit_differs(
    compute: Callable[[Tensor, OpenNodes], Tensor],
    cache: KVCache,
    x_NH: Tensor,
    memory: Callable[[int], Sequence[Tensor]],
) -> bool:
    """Whether the commit of a path leaves another memory than its rows one after the other.

    Arguments are those of :func:`layer_differs`; ``memory`` gives what the layer under test remembers of the tokens
    from a committed length on.
    """
    length = cache.length

    def kept() -> list[Tensor]:
        found = [part.clone() for part in memory(length)]
        cache.truncate(length)
        return found

    def through(rows: Sequence[int], parents: Sequence[int], path: Sequence[int]) -> None:
        nodes = cache.transaction.extended(parents)
        compute(x_NH[list(rows)].clone(), nodes)
        cache.transaction.open = nodes
        cache.commit(path)

    for parents, path in COMMITS:
        for node in path:
            through([node], [-1], [0])
        stepped = kept()
        through(range(len(parents)), parents, path)
        if any(not torch.equal(one, other) for one, other in zip(stepped, kept(), strict=True)):
            return True
    return False
