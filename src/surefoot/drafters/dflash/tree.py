"""Trees from a block's marginals: the likeliest nodes by the product along their path (DDTree, arXiv 2604.12989)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from surefoot.types import Plan

Node = tuple[int, int, int]
"""Parent, depth from 0, and rank among the tokens of that depth."""


def best_nodes(log_probs: Sequence[Sequence[float]], plan: Plan) -> list[Node]:
    """The nodes of a tree without its root; the node at index ``i`` is node ``i + 1`` of the tree.

    ``log_probs[d]`` are those of the likeliest tokens at depth ``d``, likeliest first, whatever stands before. The
    chain of likeliest tokens gets half the nodes, where it is that deep; the others are those of all trees with that
    chain that have the largest expected number of accepted tokens. The chain comes first, then the others by their
    likelihood, so that a commit is a prefix wherever the chain stands.
    """
    depths = log_probs[: plan.depth]
    widths = [min(plan.width, len(row)) for row in depths]
    if plan.num_nodes < 1 or not depths or min(widths) < 1:
        return []
    chosen: list[Node] = []
    # The likeliest first; of equals the one that was found first, which is shallower or ranked better.
    heap: list[tuple[float, int, Node]] = []
    found = 0

    def take(cost: float, node: Node) -> None:
        """Chooses a node, and finds its next sibling and its first child."""
        nonlocal found
        parent, depth, rank = node
        chosen.append(node)
        if rank + 1 < widths[depth]:
            dearer = cost + depths[depth][rank] - depths[depth][rank + 1]
            heapq.heappush(heap, (dearer, found, (parent, depth, rank + 1)))
        if depth + 1 < len(depths):
            heapq.heappush(heap, (cost - depths[depth + 1][0], found + 1, (len(chosen), depth + 1, 0)))
        found += 2

    sure = min(len(depths), max(1, plan.num_nodes // 2))
    cost = 0.0
    for depth in range(sure):
        heap = [entry for entry in heap if entry[2][2] > 0]  # the first child is the next one taken
        cost -= depths[depth][0]
        take(cost, (depth, depth, 0))
    heapq.heapify(heap)
    while heap and len(chosen) < plan.num_nodes:
        cost, _, node = heapq.heappop(heap)
        take(cost, node)
    return _chain_first(chosen)


def _chain_first(nodes: Sequence[Node]) -> list[Node]:
    """The same nodes, the chain of likeliest tokens moved to the front."""
    chain = [0]  # numbers in the tree, the root's included
    for index, (parent, _, rank) in enumerate(nodes, start=1):
        if rank == 0 and parent == chain[-1]:
            chain.append(index)
    on_chain = set(chain)
    order = chain + [index for index in range(1, len(nodes) + 1) if index not in on_chain]
    place = {index: number for number, index in enumerate(order)}
    return [(place[nodes[index - 1][0]], *nodes[index - 1][1:]) for index in order[1:]]
