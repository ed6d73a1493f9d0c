"""Rotary positions: relative, norm-preserving, scaled as each kind says."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from surefoot.ops.rope import Rope, rope_frequencies, rope_tables, rotate

CPU = torch.device("cpu")
LLAMA3 = Rope(theta=10000.0, kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=64)


def rotate_reference(x_NGD: Tensor, positions: list[int], frequencies: Tensor) -> Tensor:
    """Each pair (i, i + D/2) turned by its angle, one number at a time."""
    out = x_NGD.clone()
    half = x_NGD.shape[-1] // 2
    for row, position in enumerate(positions):
        for pair in range(half):
            angle = position * frequencies[pair].item()
            a, b = x_NGD[row, :, pair], x_NGD[row, :, pair + half]
            out[row, :, pair] = a * math.cos(angle) - b * math.sin(angle)
            out[row, :, pair + half] = b * math.cos(angle) + a * math.sin(angle)
    return out


def rotated(x: Tensor, positions: list[int], rope: Rope) -> Tensor:
    first, second = rope_tables(rope, x.shape[-1], max(positions) + 1, CPU)
    return rotate(x, first[positions].double(), second[positions].double())


@pytest.mark.parametrize("rope", [Rope(theta=10000.0), Rope(theta=100.0, kind="linear", factor=2.5), LLAMA3])
def test_rotation_equals_the_obvious_one(rope: Rope) -> None:
    x = torch.randn(4, 3, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    positions = [0, 3, 3, 41]
    expected = rotate_reference(x, positions, rope_frequencies(rope, 12, CPU))
    torch.testing.assert_close(rotated(x, positions, rope), expected, rtol=0, atol=1e-5)


def test_scores_depend_on_the_distance_alone() -> None:
    q, k = torch.randn(2, 1, 1, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rope = Rope(theta=50.0)

    def score(i: int, j: int) -> float:
        return (rotated(q, [i], rope) * rotated(k, [j], rope)).sum().item()

    assert score(9, 4) == pytest.approx(score(25, 20), abs=1e-5)
    assert score(9, 4) != pytest.approx(score(9, 5), abs=1e-3)
    assert rotated(q, [7], rope).norm().item() == pytest.approx(q.norm().item(), abs=1e-5)


def test_kinds_scale_frequencies_as_they_say() -> None:
    plain = rope_frequencies(Rope(theta=10000.0), 32, CPU)
    linear = rope_frequencies(Rope(theta=10000.0, kind="linear", factor=4.0), 32, CPU)
    torch.testing.assert_close(linear, plain / 4)
    scaled = rope_frequencies(LLAMA3, 32, CPU)
    wavelengths = 2 * math.pi / plain
    assert torch.equal(scaled[wavelengths < 16], plain[wavelengths < 16])
    torch.testing.assert_close(scaled[wavelengths > 64], plain[wavelengths > 64] / 8)
    between = (wavelengths > 16) & (wavelengths < 64)
    assert between.any()
    assert ((scaled < plain) & (scaled > plain / 8))[between].all()


def test_tables_do_not_depend_on_their_length() -> None:
    short, long = (rope_tables(LLAMA3, 16, count, CPU) for count in (32, 64))
    assert all(torch.equal(a, b[:32]) for a, b in zip(short, long, strict=True))
