"""Rotary positions: relative, norm-preserving; one table for lengths that are alike, whenever it grew."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from surefoot.ops.rope import BLOCK, Rope, RopeTable, RopeTables, rotate
from surefoot.ops.rope_scaling import Dynamic, LongRope, Scaling, Yarn

CPU = torch.device("cpu")
DIM = 12
PLAIN = Rope(theta=50.0, dim=16)
LONG = LongRope(
    short_factors=(1.0, 1.1, 1.2, 1.5, 2.0, 3.0),
    long_factors=(1.0, 2.0, 4.0, 8.0, 9.0, 9.5),
    original_context=32,
    attention_factor=1.25,
)
SCALINGS = {
    "default": Scaling(),
    "dynamic": Dynamic(factor=3.0, trained_context=32),
    "yarn": Yarn(factor=4.0, original_context=32, attention_factor=1.1),
    "longrope": LONG,
}


def table_of(rope: Rope, length: int = 1, dtype: torch.dtype = torch.float32) -> RopeTable:
    return RopeTable(rope, length, dtype=dtype, device=CPU)


def rotate_reference(x_NGD: Tensor, positions: list[int], rope: Rope, length: int) -> Tensor:
    """Each rotated pair (i, i + R/2) turned by its angle and stretched, one number at a time."""
    out = x_NGD.clone()
    half = rope.dim // 2
    frequencies = rope.scaling.frequencies(rope.theta, rope.dim, length, CPU)
    for row, position in enumerate(positions):
        for pair in range(half):
            angle, scale = position * frequencies[pair].item(), rope.scaling.attention_factor
            a, b = x_NGD[row, :, pair], x_NGD[row, :, pair + half]
            out[row, :, pair] = scale * (a * math.cos(angle) - b * math.sin(angle))
            out[row, :, pair + half] = scale * (b * math.cos(angle) + a * math.sin(angle))
    return out


def rotated(x: Tensor, positions: list[int], rope: Rope, length: int = 1) -> Tensor:
    return rotate(x, *table_of(rope, length, torch.float64).rows(positions))


@pytest.mark.parametrize("size", [DIM, 20], ids=["whole heads", "part of each head"])
@pytest.mark.parametrize("length", [30, 90])
@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_rotation_equals_the_obvious_one(scaling: Scaling, length: int, size: int) -> None:
    x = torch.randn(4, 3, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    positions = [0, 3, 3, 41]
    rope = Rope(theta=100.0, dim=DIM, scaling=scaling)
    expected = rotate_reference(x, positions, rope, length)
    torch.testing.assert_close(rotated(x, positions, rope, length), expected, rtol=0, atol=1e-5)


def test_what_is_not_rotated_keeps_its_bits() -> None:
    x = torch.randn(2, 3, 20, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    out = rotate(x, *table_of(Rope(theta=100.0, dim=DIM)).rows([1, 2]))
    assert out.dtype == torch.float32
    assert torch.equal(out[..., DIM:].to(torch.bfloat16), x[..., DIM:])
    assert not torch.equal(out[..., :DIM].to(torch.bfloat16), x[..., :DIM])


def test_scores_depend_on_the_distance_alone() -> None:
    q, k = torch.randn(2, 1, 1, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def score(i: int, j: int) -> float:
        return (rotated(q, [i], PLAIN) * rotated(k, [j], PLAIN)).sum().item()

    assert score(9, 4) == pytest.approx(score(25, 20), abs=1e-5)
    assert score(9, 4) != pytest.approx(score(9, 5), abs=1e-3)
    assert rotated(q, [7], PLAIN).norm().item() == pytest.approx(q.norm().item(), abs=1e-5)


def all_at_once(rope: Rope, count: int) -> tuple[Tensor, Tensor]:
    """The rows of positions ``0 .. count - 1`` in one piece."""
    frequencies = rope.scaling.frequencies(rope.theta, rope.dim, 1, CPU)
    angles = torch.arange(count, dtype=torch.float32)[:, None] * frequencies
    cosines, sines = angles.cos(), angles.sin()
    return torch.cat((cosines, cosines), -1)[:, None], torch.cat((-sines, sines), -1)[:, None]


@pytest.mark.parametrize("dim", [16, 96, 128])
def test_a_table_has_the_same_bits_however_it_grew(dim: int) -> None:
    rope, count = Rope(theta=10000.0, dim=dim), 3 * BLOCK + 7
    grown = table_of(rope)
    for start in range(0, count, 97):
        grown.run(start, min(97, count - start))
    for ours, whole in zip(grown.run(0, count), all_at_once(rope, count), strict=True):
        assert torch.equal(ours, whole)
    scattered = [5, 0, 5, count - 1, BLOCK]
    for ours, whole in zip(table_of(rope).rows(scattered), all_at_once(rope, count), strict=True):
        assert torch.equal(ours, whole[scattered])


def test_rows_taken_before_a_table_grew_stay_what_they_were() -> None:
    table = table_of(PLAIN)
    first, _ = table.run(0, 3)
    before = first.clone()
    table.reserve(BLOCK + 1)
    assert torch.equal(first, before)


def test_a_table_holds_no_more_than_whole_blocks_of_what_was_asked_for() -> None:
    table = table_of(Rope(theta=10000.0, dim=128))
    assert table.reserve(0)[0].numel() == 0
    assert table.reserve(1)[0].shape == (BLOCK, 1, 128)
    assert table.reserve(BLOCK + 1)[0].shape == (2 * BLOCK, 1, 128)
    assert table.reserve(3)[0].shape == (2 * BLOCK, 1, 128)


@pytest.mark.parametrize(
    ("name", "alike"),
    [
        ("default", [[1, 32, 33, 10**6]]),
        ("yarn", [[1, 32, 33, 10**6]]),
        ("longrope", [[1, 32], [33, 128, 10**6]]),
        ("dynamic", [[1, 32], [33], [34], [96]]),
    ],
)
def test_lengths_that_are_alike_share_a_table_and_no_others_do(name: str, alike: list[list[int]]) -> None:
    rope = Rope(theta=10000.0, dim=DIM, scaling=SCALINGS[name])
    tables = RopeTables(rope, dtype=torch.float32, device=CPU)
    groups = [[tables.table(length) for length in lengths] for lengths in alike]
    for number, lengths in enumerate(alike):
        assert all(table is groups[number][0] for table in groups[number])
        for other, others in enumerate(groups):
            assert all(tables.is_for(table, length) == (number == other) for table in others for length in lengths)
    rows = [group[0].run(0, 90)[0] for group in groups]
    assert all(not torch.equal(a, b) for i, a in enumerate(rows) for b in rows[:i])


def test_a_shared_table_is_the_one_of_each_length() -> None:
    """What is asked of a length and of the shortest alike has the same bits."""
    for scaling in SCALINGS.values():
        for length in (1, 31, 32, 33, 64, 200):
            alike = scaling.shortest_alike(length)
            assert alike <= length
            assert torch.equal(scaling.frequencies(50.0, DIM, length, CPU), scaling.frequencies(50.0, DIM, alike, CPU))


def test_long_lengths_do_not_pile_up() -> None:
    tables = RopeTables(Rope(theta=50.0, dim=DIM, scaling=SCALINGS["dynamic"]), dtype=torch.float32, device=CPU)
    first = tables.table(40)
    assert tables.table(40) is first
    for length in range(41, 60):
        tables.table(length)
    assert len(tables._recent) == 2
    again = tables.table(40)
    assert again is not first
    assert torch.equal(again.run(0, 50)[0], first.run(0, 50)[0])
