"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864), in the half-split layout of Hugging Face checkpoints.

Shape suffixes: N rows, G heads, D head size, R rotated dimensions of a head, P positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from surefoot.ops.rope_scaling import Scaling

Factors: TypeAlias = tuple[Tensor, Tensor]
"""What :func:`rotate` multiplies rows by, ``[N, 1, R]`` each."""

BLOCK = 512
"""Positions that are computed at a time."""

_UNSCALED = Scaling()
_KEPT = 2
"""Tables kept for the next sequence: all there are, but for ``dynamic``, where every long length has its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """How positions become angles.

    Attributes:
        theta: the base of the geometric series of frequencies.
        dim: the first dimensions of each head that are rotated, an even number; the others stay as they are.
        scaling: the type, with its numbers.
    """

    theta: float
    dim: int
    scaling: Scaling = _UNSCALED

    @property
    def kind(self) -> str:
        """The name of the type in a ``config.json``."""
        return self.scaling.kind


class RopeTable:
    """The factors of :func:`rotate` at positions 0, 1, ..., in sequences of one length; it grows as positions are used.

    Rows are computed in blocks at fixed places, so their bits do not depend on when they were first needed.
    """

    def __init__(self, rope: Rope, length: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.length = rope.scaling.shortest_alike(length)
        """The least length of a sequence that this table is for: tables of the same length are the same."""
        self._scale = rope.scaling.attention_factor
        self._frequencies_R = rope.scaling.frequencies(rope.theta, rope.dim, self.length, device)
        nothing = torch.empty(0, 1, rope.dim, dtype=dtype, device=device)
        self._factors: Factors = (nothing, nothing)

    def reserve(self, num_positions: int) -> Factors:
        """Computes what is missing of the first ``num_positions`` rows; returns all there are."""
        factors = self._factors
        have = factors[0].shape[0]
        if num_positions > have:
            with torch.inference_mode():
                blocks = [self._block(start) for start in range(have, num_positions, BLOCK)]
                firsts, seconds = zip(factors, *blocks, strict=True)
                factors = (torch.cat(firsts), torch.cat(seconds))
            self._factors = factors
        return factors

    def run(self, start: int, count: int) -> Factors:
        """The rows of positions ``start .. start + count - 1``: views."""
        first_P1R, second_P1R = self.reserve(start + count)
        return first_P1R.narrow(0, start, count), second_P1R.narrow(0, start, count)

    def rows(self, positions: Sequence[int]) -> Factors:
        """The rows of ``positions``, in their order."""
        first_P1R, second_P1R = self.reserve(max(positions) + 1)
        positions_N = torch.tensor(positions, device=first_P1R.device)
        return first_P1R.index_select(0, positions_N), second_P1R.index_select(0, positions_N)

    def _block(self, start: int) -> Factors:
        """``BLOCK`` rows: the cosine of each angle, twice over; the sine, negated in its first half.

        A rotation is then ``x * first + swap(x) * second``, where ``swap`` exchanges the halves of what is rotated.
        """
        positions_P = torch.arange(start, start + BLOCK, dtype=torch.float32, device=self._frequencies_R.device)
        angles = positions_P[:, None] * self._frequencies_R
        cosines, sines = angles.cos() * self._scale, angles.sin() * self._scale
        dtype = self._factors[0].dtype
        first_PR, second_PR = torch.cat((cosines, cosines), -1), torch.cat((-sines, sines), -1)
        return first_PR[:, None].to(dtype), second_PR[:, None].to(dtype)


class RopeTables:
    """The tables of one model: sequences whose lengths are alike share one."""

    def __init__(self, rope: Rope, *, dtype: torch.dtype, device: torch.device) -> None:
        self._rope, self._dtype, self._device = rope, dtype, device
        self._recent: dict[int, RopeTable] = {}

    def table(self, length: int) -> RopeTable:
        """The table of a sequence of at most ``length`` tokens."""
        alike = self._rope.scaling.shortest_alike(length)
        table = self._recent.pop(alike, None) or RopeTable(self._rope, alike, dtype=self._dtype, device=self._device)
        self._recent[alike] = table
        while len(self._recent) > _KEPT:
            del self._recent[next(iter(self._recent))]
        return table

    def is_for(self, table: RopeTable, length: int) -> bool:
        """Whether a sequence of at most ``length`` tokens has this table."""
        return table.length == self._rope.scaling.shortest_alike(length)


def rotate(x_NGD: Tensor, first_N1R: Tensor, second_N1R: Tensor) -> Tensor:
    """Rotates the first R dimensions of each head by its row's angles; the factors are rows of a :class:`RopeTable`.

    Products and sum are rounded one by one, so that vector and scalar code agree to the bit.
    """
    size = first_N1R.shape[-1]
    if size < x_NGD.shape[-1]:
        turned_NGR = rotate(x_NGD[..., :size], first_N1R, second_N1R)
        return torch.cat((turned_NGR, x_NGD[..., size:].to(turned_NGR.dtype)), -1)
    return x_NGD * first_N1R + x_NGD.roll(size // 2, -1) * second_N1R
