"""Trees from a block's marginals: the best there are, within the plan, around the chain."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.drafters.dflash.tree import Node, best_nodes
from surefoot.types import Plan


def marginals(seed: int, depth: int, ranks: int) -> list[list[float]]:
    """Log probabilities of the likeliest tokens at each depth, likeliest first; they differ and sum to less than 1."""
    draws = random.Random(seed)
    rows = []
    for _ in range(depth):
        weights = sorted((draws.random() ** 3 + 1e-6 for _ in range(ranks)), reverse=True)
        total = sum(weights) * (1 + draws.random())
        rows.append([math.log(weight / total) for weight in weights])
    return rows


def ranks_of(nodes: list[Node]) -> list[tuple[int, ...]]:
    """Each node's path as the ranks along it."""
    paths: list[tuple[int, ...]] = [()]
    for parent, depth, rank in nodes:
        assert len(paths[parent]) == depth
        paths.append((*paths[parent], rank))
    return paths[1:]


def expected(log_probs: list[list[float]], paths: list[tuple[int, ...]]) -> float:
    """The expected number of accepted tokens: the probabilities of all paths together."""
    return sum(math.exp(sum(row[rank] for row, rank in zip(log_probs, path, strict=False))) for path in paths)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    depth=st.integers(1, 4),
    ranks=st.integers(1, 3),
    budget=st.integers(1, 9),
    width=st.integers(1, 3),
)
def test_no_tree_around_the_chain_is_better(seed: int, depth: int, ranks: int, budget: int, width: int) -> None:
    """Against all trees there are: the likeliest paths, as every prefix is likelier than its path."""
    log_probs = marginals(seed, depth, ranks)
    plan = Plan(num_nodes=budget, depth=depth, width=width)
    paths = ranks_of(best_nodes(log_probs, plan))
    sure = [(0,) * length for length in range(1, min(depth, max(1, budget // 2)) + 1)]
    assert len(set(paths)) == len(paths) <= budget
    assert set(sure) <= set(paths)
    allowed = [
        path
        for length in range(1, depth + 1)
        for path in itertools.product(range(min(width, ranks)), repeat=length)
        if path not in sure
    ]
    likeliest = sorted(allowed, key=lambda path: -expected(log_probs, [path]))[: budget - len(sure)]
    assert expected(log_probs, paths) == pytest.approx(expected(log_probs, sure + likeliest), rel=1e-9)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), depth=st.integers(1, 7), budget=st.integers(0, 24), width=st.integers(1, 4))
def test_the_plan_is_kept_and_the_chain_comes_first(seed: int, depth: int, budget: int, width: int) -> None:
    log_probs = marginals(seed, 7, 4)
    nodes = best_nodes(log_probs, Plan(num_nodes=budget, depth=depth, width=width))
    paths = ranks_of(nodes)
    assert len(nodes) <= budget
    assert all(len(path) <= depth for path in paths)
    children = [parent for parent, _, _ in nodes]
    assert all(children.count(parent) <= width for parent in children)
    assert all(parent <= place for place, (parent, _, _) in enumerate(nodes))
    chain = [path for path in paths if not any(path)]
    assert paths[: len(chain)] == chain == [(0,) * length for length in range(1, len(chain) + 1)]
    if width == 1:
        assert len(nodes) == len(chain) == min(budget, depth)


def test_certain_slots_give_the_chain_and_doubtful_ones_branches() -> None:
    sure, doubtful = [math.log(0.99), math.log(0.005)], [math.log(0.5), math.log(0.49)]
    assert ranks_of(best_nodes([sure] * 4, Plan(num_nodes=4, depth=4, width=2))) == [(0,) * n for n in (1, 2, 3, 4)]
    branches = ranks_of(best_nodes([doubtful] * 4, Plan(num_nodes=4, depth=4, width=2)))
    assert branches == [(0,), (0, 0), (1,), (0, 1)] or branches == [(0,), (0, 0), (1,), (1, 0)]
