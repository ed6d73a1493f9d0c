"""Draft trees: building them, and the facts of their shape that scoring and verifying need."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from surefoot.types import DraftTree


def chain(tokens: Sequence[int], q: Tensor | None = None) -> DraftTree:
    """A tree without branches: ``tokens[0]`` is the root, each further token the child of the one before.

    ``q``: the laws the drafted tokens were sampled from, ``[len(tokens) - 1, V]``.
    """
    return DraftTree(tokens=torch.tensor(tokens, dtype=torch.int64), parents=tuple(range(-1, len(tokens) - 1)), q=q)


def is_chain(parents: Sequence[int]) -> bool:
    """Whether each node is the child of the one before it."""
    return all(parent == node - 1 for node, parent in enumerate(parents))


def depths(parents: Sequence[int]) -> list[int]:
    """The distance of each node from the root (0 for the root)."""
    result: list[int] = []
    for parent in parents:
        result.append(0 if parent < 0 else result[parent] + 1)
    return result


def path_to(parents: Sequence[int], node: int) -> list[int]:
    """The nodes from the root to ``node``, both included."""
    path = [node]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path[::-1]


def ancestor_mask(parents: Sequence[int]) -> Tensor:
    """Bool ``[N, N]``: entry (i, j) says that node j is node i or an ancestor of it, so i attends to j."""
    mask = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask


def children(parents: Sequence[int]) -> list[list[int]]:
    """The children of each node, in node order."""
    result: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents):
        if parent >= 0:
            result[parent].append(node)
    return result
