"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864), in the half-split layout of Hugging Face checkpoints.

Shape suffixes: N rows, G heads, D head size, P positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

RopeKind = Literal["default", "linear", "llama3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """How positions become angles.

    Attributes:
        theta: the base of the geometric series of frequencies.
        kind: ``default``; ``linear``: all frequencies divided by ``factor``; ``llama3``: long wavelengths divided by
            ``factor``, short ones kept, a linear blend between.
        low_freq_factor, high_freq_factor: the blend begins at a wavelength of ``original_context / high_freq_factor``
            and ends at ``original_context / low_freq_factor``.
    """

    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


def rope_frequencies(rope: Rope, head_dim: int, device: torch.device) -> Tensor:
    """Radians per position of each rotated pair: fp32 ``[D / 2]``, computed in fp32 as in training."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        wavelengths = 2 * math.pi / frequencies
        longest, shortest = rope.original_context / rope.low_freq_factor, rope.original_context / rope.high_freq_factor
        kept = (rope.original_context / wavelengths - rope.low_freq_factor) / (
            rope.high_freq_factor - rope.low_freq_factor
        )
        blend = (1 - kept) * frequencies / rope.factor + kept * frequencies
        scaled = torch.where(wavelengths > longest, frequencies / rope.factor, frequencies)
        return torch.where((wavelengths >= shortest) & (wavelengths <= longest), blend, scaled)
    return frequencies


def rope_tables(rope: Rope, head_dim: int, num_positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The factors of :func:`rotate` for positions ``0 .. num_positions - 1``: two fp32 tensors ``[P, 1, D]``.

    The first is the cosine of each angle, twice over; the second the sine, negated in its first half, so that a
    rotation is ``x * first + swap(x) * second`` where ``swap`` exchanges the halves of the head.
    """
    positions = torch.arange(num_positions, dtype=torch.float32, device=device)
    angles = positions[:, None] * rope_frequencies(rope, head_dim, device)
    cosines, sines = angles.cos(), angles.sin()
    return torch.cat((cosines, cosines), -1)[:, None], torch.cat((-sines, sines), -1)[:, None]


def rotate(x_NGD: Tensor, first_N1D: Tensor, second_N1D: Tensor) -> Tensor:
    """Rotates each head by its row's angles; the factors are rows of :func:`rope_tables`.

    Products and sum are rounded one by one, so that vector and scalar code agree to the bit.
    """
    half = x_NGD.shape[-1] // 2
    return x_NGD * first_N1D + x_NGD.roll(half, -1) * second_N1D
