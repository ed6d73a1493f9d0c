"""Attention over a cache equals the obvious loop, for every shape of round, window and grouping."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from surefoot.ops.attention import FOLD_ROWS, Round
from surefoot.ops.rows import ExactRows, FastRows, RowArithmetic
from surefoot.tree import depths, is_chain, path_to

CPU = torch.device("cpu")
SHAPES = {
    "first row": (0, (-1,), 1),
    "plain step": (13, (-1,), 1),
    "chain": (9, (-1, 0, 1, 2), 4),
    "end of a chain": (9, (-1, 0, 1, 2), 2),
    "tree": (9, (-1, 0, 0, 1, 2, 2), 6),
    "end of a tree": (5, (-1, 0, 0, 1, 2, 2), 2),
    "last row of a tree": (5, (-1, 0, 0, 0, 1), 1),
    "tree first": (0, (-1, 0, 0, 1), 4),
    "long chain": (3, tuple(range(-1, FOLD_ROWS + 4)), FOLD_ROWS + 5),
    "long tree": (3, (-1, *(node // 2 for node in range(FOLD_ROWS + 3))), FOLD_ROWS + 4),
}


def attend_reference(q: Tensor, keys: Tensor, values: Tensor, around: Round, window: int | None) -> Tensor:
    """One row, one head, one key at a time."""
    num_rows, num_heads, size = q.shape
    group = num_heads // keys.shape[0]
    out = torch.zeros_like(q)
    for row in range(num_rows):
        node = len(around.parents) - num_rows + row
        position = around.length + around.depths[node]
        seen = {index: index for index in range(around.length)}
        seen |= {around.length + step: around.length + around.depths[step] for step in path_to(around.parents, node)}
        visible = [index for index, at in seen.items() if window is None or position - at < window]
        for head in range(num_heads):
            kv = head // group
            scores = torch.tensor([q[row, head] @ keys[kv, index] / size**0.5 for index in visible], dtype=q.dtype)
            weights = torch.exp(scores - scores.max())
            mixed = sum(weight * values[kv, index] for weight, index in zip(weights, visible, strict=True))
            out[row, head] = mixed / weights.sum()
    return out.flatten(1)


def draw(around: Round, num_heads: int, num_kv: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(around.stop)
    shapes = ((around.num_new, num_heads, 8), (num_kv, around.stop, 8), (num_kv, around.stop, 8))
    q, keys, values = (torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes)
    return q, keys, values


@pytest.mark.parametrize("rows", [FastRows(), ExactRows()], ids=["fast", "exact"])
@pytest.mark.parametrize("window", [None, 1, 3, 40])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_attention_equals_the_obvious_loop(
    rows: RowArithmetic, window: int | None, shape: tuple[int, tuple[int, ...], int]
) -> None:
    length, parents, num_new = shape
    around = Round(length, parents, depths(parents), num_new, is_chain(parents))
    for num_heads, num_kv in ((1, 1), (4, 2)):
        q, keys, values = draw(around, num_heads, num_kv)
        sight = rows.see(around, window, num_heads // num_kv, torch.float64, CPU)
        found = rows.attend(q, keys[:, sight.first :], values[:, sight.first :], sight)
        expected = attend_reference(q, keys, values, around, window)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_what_is_out_of_sight_is_not_read() -> None:
    for rows, window in itertools.product((FastRows(), ExactRows()), (None, 3)):
        around = Round(6, (-1, 0, 0), (0, 1, 1), 1, False)
        q, keys, values = draw(around, 2, 1)
        sight = rows.see(around, window, 2, torch.float64, CPU)
        before = rows.attend(q, keys[:, sight.first :], values[:, sight.first :], sight)
        keys[:, 7], values[:, 7] = 1e3, 1e3
        assert torch.equal(rows.attend(q, keys[:, sight.first :], values[:, sight.first :], sight), before)
