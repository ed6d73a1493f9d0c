"""Gumbel noise as a pure function of seed, sample index, position and token id.

``argmax(log p + noise)`` is a draw from ``p`` (the Gumbel-max trick). Keying the noise by position rather than by call
makes the draw a function of weights, prompt, parameters and seed, so speculation cannot change it.

A key is absorbed word by word with splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
2014); the ids of one position are the outputs of that generator started at the key. Everything up to the uniform
variate is exact arithmetic on 64-bit words, the same on every device. Of the 64 bits 52 are used, each value in the
middle of its interval: a uniform is never 0 or 1, so the noise lies in (-3.61, 36.74) and is never infinite.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB
_ONE_BITS = 0x3FF0000000000000  # the bits of 1.0: OR-ing 52 random bits in gives a float in [1, 2)
_NOISE_DOMAIN = 0x4E4F495345  # tells keys of noise from keys of other streams


def splitmix64(state: int) -> int:
    """One output of splitmix64 from a 64-bit state."""
    z = (state + _GOLDEN) & _WORD
    z = ((z ^ (z >> 30)) * _MULTIPLIER_1) & _WORD
    z = ((z ^ (z >> 27)) * _MULTIPLIER_2) & _WORD
    return z ^ (z >> 31)


def stream_key(*parts: int) -> int:
    """A 64-bit key that depends on every part and on their order."""
    key = 0
    for part in parts:
        key = splitmix64(key ^ (part & _WORD))
    return key


def uniform(word: int) -> float:
    """A float in (0, 1), never 0 or 1, from the upper 52 bits of a 64-bit word."""
    return ((word >> 12) + 0.5) * 2.0**-52


def position_key(seed: int, sample: int, position: int) -> int:
    """The key of one position's noise."""
    return stream_key(_NOISE_DOMAIN, seed, sample, position)


def gumbel(seed: int, sample: int, position: int, ids: Tensor | int, device: torch.device | str = "cpu") -> Tensor:
    """The noise of token ids at one position: fp64 ``[S]`` for int64 ids ``[S]``, or ``[V]`` for a vocabulary size.

    Any subset of ids gets the same values. The uniforms are the same on every device; their logarithms are rounded by
    the device's own library, so the noise of two devices may differ in its last bits.
    """
    key = position_key(seed, sample, position)
    place = torch.device(device)
    if isinstance(ids, int):
        ids = torch.arange(ids, dtype=torch.int64, device=place)
    if place.type != "cpu":
        return gumbel_on_device(key, ids.to(place))
    return torch.from_numpy(gumbel_of_weyl(key, weyl_words(ids.cpu().numpy())))


def weyl_words(ids: IntArray) -> npt.NDArray[np.uint64]:
    """The part of the generator's state that depends on the ids alone."""
    return np.ascontiguousarray(ids).astype(np.uint64) * np.uint64(_GOLDEN)


def uniforms_of_weyl(key: int, weyl: npt.NDArray[np.uint64]) -> FloatArray:
    """The uniforms of a key at the ids of ``weyl``, on the host. Always contiguous."""
    z = weyl + np.uint64((key + _GOLDEN) & _WORD)
    z ^= z >> np.uint64(30)
    z *= np.uint64(_MULTIPLIER_1)
    z ^= z >> np.uint64(27)
    z *= np.uint64(_MULTIPLIER_2)
    z ^= z >> np.uint64(31)
    z >>= np.uint64(12)
    z |= np.uint64(_ONE_BITS)
    uniforms = z.view(np.float64)
    uniforms -= 1.0 - 2.0**-53  # exact: the result needs 53 bits
    return uniforms


def gumbel_of_weyl(key: int, weyl: npt.NDArray[np.uint64]) -> FloatArray:
    """The noise of a key at the ids of ``weyl``, on the host. Always contiguous, so each element is rounded alike."""
    noise = uniforms_of_weyl(key, weyl)
    np.log(noise, out=noise)
    np.negative(noise, out=noise)
    np.log(noise, out=noise)
    return np.negative(noise, out=noise)


def gumbel_on_device(key: int, ids: Tensor) -> Tensor:
    """:func:`gumbel_of_weyl` in torch: int64 products wrap alike on every device, shifts are made logical by masks."""
    z = ids * _signed(_GOLDEN) + _signed((key + _GOLDEN) & _WORD)
    z = (z ^ ((z >> 30) & (2**34 - 1))) * _signed(_MULTIPLIER_1)
    z = (z ^ ((z >> 27) & (2**37 - 1))) * _signed(_MULTIPLIER_2)
    z = z ^ ((z >> 31) & (2**33 - 1))
    bits = ((z >> 12) & (2**52 - 1)) | _ONE_BITS
    u = bits.view(torch.float64) - (1.0 - 2.0**-53)
    return -torch.log(-torch.log(u))


def gumbel_reference(seed: int, sample: int, position: int, token: int) -> float:
    """The noise of one token id, spelled out in Python numbers."""
    word = splitmix64((position_key(seed, sample, position) + token * _GOLDEN) & _WORD)
    return -math.log(-math.log(uniform(word)))


class PositionNoise:
    """One request's noise: whole rows are kept until their position is past, so drafter and target share one."""

    def __init__(self, seed: int, sample: int, vocab_size: int) -> None:
        self._seed = seed
        self._sample = sample
        self._weyl = weyl_words(np.arange(vocab_size, dtype=np.int64))
        self._rows: dict[int, FloatArray] = {}

    def row(self, position: int) -> FloatArray:
        """The noise of every id at a position, ``[V]``. Read only."""
        row = self._rows.get(position)
        if row is None:
            row = gumbel_of_weyl(self.key(position), self._weyl)
            self._rows[position] = row
        return row

    def at(self, position: int, ids: IntArray) -> FloatArray:
        """The noise of some ids at a position, ``[S]``: computed for these alone unless the row is there."""
        row = self._rows.get(position)
        if row is not None:
            return row[ids]
        return gumbel_of_weyl(self.key(position), self._weyl[ids])

    def key(self, position: int) -> int:
        """The key of a position's noise."""
        return position_key(self._seed, self._sample, position)

    def missing_to_one(self, position: int, size: int) -> FloatArray:
        """``1 - u`` of the first ``size`` ids at a position, exactly."""
        return np.subtract(1.0, uniforms_of_weyl(self.key(position), self._weyl[:size]))

    def forget_before(self, position: int) -> None:
        """Drops the rows of positions that have been emitted."""
        if self._rows:
            self._rows = {kept: row for kept, row in self._rows.items() if kept >= position}


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
