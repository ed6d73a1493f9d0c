"""The types of rotary positions: how each scales the series of frequencies, and which lengths it treats alike.

Every formula is computed in fp32 in the order of ``transformers``, so that tables agree to the bit. R is the number of
dimensions of a head that are rotated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


def series(theta: float | Tensor, dim: int, device: torch.device) -> Tensor:
    """Positions per radian of each rotated pair before any scaling: fp32 ``[R / 2]``."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim
    positions_per_radian: Tensor = theta**exponents
    return positions_per_radian


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """The type ``default``, and what every type answers: nothing is scaled, all lengths are alike.

    Attributes:
        attention_factor: multiplies every cosine and sine, and so every score by its square.
    """

    kind: ClassVar[str] = "default"
    attention_factor: float = 1.0

    def shortest_alike(self, length: int) -> int:
        """The least length whose sequences have the frequencies of one of ``length`` tokens."""
        return 1

    def frequencies(self, theta: float, dim: int, length: int, device: torch.device) -> Tensor:
        """Radians per position of each of the ``dim / 2`` pairs, in sequences of ``length``: fp32 ``[R / 2]``."""
        return 1.0 / series(theta, dim, device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear(Scaling):
    """All frequencies divided by ``factor``."""

    kind: ClassVar[str] = "linear"
    factor: float

    def frequencies(self, theta: float, dim: int, length: int, device: torch.device) -> Tensor:
        """The series, divided."""
        return 1.0 / series(theta, dim, device) / self.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Dynamic(Scaling):
    """NTK-aware scaling: beyond ``trained_context`` tokens the base grows with the length, by ``factor``."""

    kind: ClassVar[str] = "dynamic"
    factor: float
    trained_context: int

    def shortest_alike(self, length: int) -> int:
        """Within the trained context all lengths are alike, beyond it each has frequencies of its own."""
        return length if length > self.trained_context else 1

    def frequencies(self, theta: float, dim: int, length: int, device: torch.device) -> Tensor:
        """The series of a base that was raised for ``length``."""
        if length <= self.trained_context:
            return 1.0 / series(theta, dim, device)
        tokens = torch.tensor(length, dtype=torch.float32, device=device)
        growth = self.factor * tokens / self.trained_context - (self.factor - 1)
        return 1.0 / series(theta * growth ** (dim / (dim - 2)), dim, device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Yarn(Scaling):
    """YaRN (Peng et al. 2023, arXiv 2309.00071): fast pairs are kept, slow ones divided, a linear blend between.

    Attributes:
        factor: what slow pairs are divided by.
        original_context: the context before the extension, in which turns are counted.
        beta_fast, beta_slow: pairs that turn more often than ``beta_fast`` times are kept, those that turn less often
            than ``beta_slow`` times divided.
        truncate: whether the ends of the blend are moved out to whole pairs.
    """

    kind: ClassVar[str] = "yarn"
    factor: float
    original_context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def frequencies(self, theta: float, dim: int, length: int, device: torch.device) -> Tensor:
        """The series, each pair kept, divided or between."""
        positions_per_radian = series(theta, dim, device)
        first, last = (self._pair_that_turns(turns, theta, dim) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dim - 1)
        width = last - first if first != last else 0.001  # no blend at all would divide by zero
        ramp = (torch.arange(dim // 2, dtype=torch.float32, device=device) - first) / width
        kept = 1 - ramp.clamp(0, 1)
        divided = 1.0 / (self.factor * positions_per_radian)
        return divided * (1 - kept) + 1.0 / positions_per_radian * kept

    def _pair_that_turns(self, turns: float, theta: float, dim: int) -> float:
        """The (fractional) index of the pair that turns ``turns`` times within the original context."""
        return dim * math.log(self.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRope(Scaling):
    """LongRoPE (Ding et al. 2024, arXiv 2402.13753): each pair divided by a factor of its own.

    Attributes:
        short_factors: for sequences of up to ``original_context`` tokens, one for each pair.
        long_factors: for longer ones.
        original_context: the context before the extension.
    """

    kind: ClassVar[str] = "longrope"
    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_context: int

    def shortest_alike(self, length: int) -> int:
        """There are two kinds of lengths: within the original context, and beyond."""
        return self.original_context + 1 if length > self.original_context else 1

    def frequencies(self, theta: float, dim: int, length: int, device: torch.device) -> Tensor:
        """The series, pair by pair divided by the factors for ``length``."""
        factors = self.long_factors if length > self.original_context else self.short_factors
        return 1.0 / (torch.tensor(factors, dtype=torch.float32, device=device) * series(theta, dim, device))


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3(Scaling):
    """Long wavelengths divided by ``factor``, short ones kept, a linear blend between (Llama 3.1).

    The blend begins at a wavelength of ``original_context / high_freq_factor`` and ends at ``original_context /
    low_freq_factor``.
    """

    kind: ClassVar[str] = "llama3"
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192

    def frequencies(self, theta: float, dim: int, length: int, device: torch.device) -> Tensor:
        """The series, each pair kept, divided or between."""
        low, high, context = self.low_freq_factor, self.high_freq_factor, self.original_context
        plain = 1.0 / series(theta, dim, device)
        wavelengths = 2 * math.pi / plain
        longest, shortest = context / low, context / high
        kept = (context / wavelengths - low) / (high - low)
        blend = (1 - kept) * plain / self.factor + kept * plain
        scaled = torch.where(wavelengths > longest, plain / self.factor, plain)
        return torch.where((wavelengths >= shortest) & (wavelengths <= longest), blend, scaled)
