"""Draft trees: building and checking them, and the facts of their shape that scoring and verifying need."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from surefoot.errors import DrafterError
from surefoot.types import DraftTree, Plan


def chain(tokens: Sequence[int], q: Tensor | None = None) -> DraftTree:
    """A tree without branches: ``tokens[0]`` is the root, each further token the child of the one before.

    ``q``: the laws the drafted tokens were sampled from, ``[len(tokens) - 1, V]``.
    """
    return DraftTree(tokens=tuple(tokens), parents=chain_parents(len(tokens)), q=q)


@lru_cache(maxsize=256)
def chain_parents(count: int) -> tuple[int, ...]:
    """The parents of a chain of ``count`` nodes."""
    return tuple(range(-1, count - 1))


@lru_cache(maxsize=256)
def chain_path(count: int) -> tuple[int, ...]:
    """The path to the last of the first ``count`` nodes of a chain."""
    return tuple(range(count))


def is_chain(parents: Sequence[int]) -> bool:
    """Whether each node is the child of the one before it."""
    known = chain_parents(len(parents))
    return parents is known or tuple(parents) == known


def depth_of(parents: Sequence[int]) -> int:
    """The distance of the deepest node from the root."""
    return len(parents) - 1 if is_chain(parents) else max(depths(parents))


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


def check_proposal(tree: DraftTree, plan: Plan, root: int, vocab_size: int) -> None:
    """Holds a drafter to its plan, the root, the vocabulary, and laws its tokens can have come from.

    Raises:
        DrafterError: it proposed something else.
    """
    parents, count = tree.parents, len(tree.parents)
    branches = not is_chain(parents)
    depth = max(depths(parents)) if branches else count - 1
    if not 1 <= count <= plan.num_nodes + 1 or depth > plan.depth:
        raise DrafterError(f"it proposed {count - 1} nodes, depth {depth}; the plan allows {plan}")
    if branches and (parents[0] != -1 or min(parents[1:], default=0) < 0):
        raise DrafterError(f"it proposed parents {parents}; expected -1 for the root alone")
    ids = tree.ids  # they are needed on the host for the walk anyway
    if len(ids) != count or ids[0] != root or (count > 1 and (min(ids) < 0 or max(ids) >= vocab_size)):
        raise DrafterError(
            f"it proposed ids {ids} for {count} nodes; expected the root {root} first and ids below {vocab_size}"
        )
    if tree.q is None:
        return
    expected = (len(tree) - 1, vocab_size)
    if tree.q.shape != expected:
        raise DrafterError(f"it proposed q of shape {tuple(tree.q.shape)}; expected {expected}")
    probabilities = tree.q.gather(1, tree.tokens[1:, None].to(tree.q.device))
    if not bool((probabilities > 0).all()):  # a transfer, as the walk needs q on the host anyway
        raise DrafterError("its q gives a drafted token no probability; expected the law it was sampled from")
