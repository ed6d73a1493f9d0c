"""Draws under Gumbel noise from bounds over the row that leave a handful of tokens to compute exactly.

``argmax(l + g)`` with ``g = -log(-log u)`` is the least of the times ``-log(u) / e^l``: tokens race. As ``1 - u`` is at
most ``-log u``, ``(1 - u) / e^l`` bounds a time from below, and one token's own time bounds the winner's from above.
Only tokens between the two can win, and their scores are computed as :mod:`surefoot.noise` and
:mod:`surefoot.sampling.processors` define them. So the bounds, and whatever computes them, cannot change a bit of the
outcome; where they decide nothing, nothing is returned and the definition itself is evaluated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from surefoot import native
from surefoot.noise import FloatArray, IntArray, PositionNoise
from surefoot.sampling import processors
from surefoot.sampling.processors import Support

Narrow: TypeAlias = npt.NDArray[np.float32]

SLACK = 1.01
"""How much greater a bound from below may come out than it is: fp32 errs by less than 1e-4."""
MASS_SLACK = 2.0**-13
"""How far a share of the probability may be off: fp32 errs by less than 2e-5."""
NEAR = 2.0**-21
"""Logits this near to each other, relative to their size, may be tied once they are probabilities."""
LARGEST = 256.0
"""The largest logit, in units of the temperature, whose rounding to fp32 the slack allows for."""
STACKED = 32
"""Logits of which one maximum is taken to bound the k-th largest."""
MANY = 16
"""One token in this many is too many to be looked at one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of logits, after bias and penalties.

    Attributes:
        exact: the logits ``[W]`` as they are, fp32 or fp64.
        narrow: the same rounded to fp32; contiguous.
        top: the largest of ``exact``, finite.
        temperature: above 0.
    """

    exact: Narrow | FloatArray
    narrow: Narrow
    top: float
    temperature: float

    @property
    def bounded(self) -> bool:
        """Whether rounding to fp32 is within the slack."""
        return self.exact is self.narrow or abs(self.top) <= LARGEST * self.temperature

    def shifted(self, ids: IntArray) -> FloatArray:
        """The logits of ids ``[S]`` as :func:`surefoot.sampling.processors.with_temperature` gives them."""
        logits: FloatArray = (self.exact[ids].astype(np.float64) - self.top) / self.temperature
        return logits


def narrowed(exact: FloatArray, temperature: float) -> Row:
    """The row of fp64 logits; those too small for fp32 become minus infinity there."""
    with np.errstate(over="ignore"):
        narrow = exact.astype(np.float32)
    return Row(exact=exact, narrow=narrow, top=float(exact.max()), temperature=temperature)


class Race:
    """One request's draws; keeps the memory of the bounds."""

    def __init__(self, noise: PositionNoise) -> None:
        """``noise`` is the request's own."""
        self._noise = noise
        self._times: Narrow = np.empty(0, dtype=np.float32)

    def winner(self, row: Row, position: int, *, top_p: float = 1.0, min_p: float = 0.0) -> int | None:
        """The token drawn at a position from what ``top_p`` and ``min_p`` leave; None where bounds do not decide."""
        if not row.bounded:
            return None
        times, total = self._start(row, position)
        while True:
            token = self._first(row, position, times)
            stays = _stays(row, token, total, top_p=top_p, min_p=min_p)
            if stays is None or stays:
                return token if stays else None
            # Truncation keeps nothing less likely than what it drops.
            np.copyto(times, np.inf, where=row.narrow <= row.narrow[token])

    def _start(self, row: Row, position: int) -> tuple[Narrow, float]:
        """The bounds ``[W]`` of all times, and the sum of ``e^l``."""
        size = len(row.narrow)
        library = native.available()
        if library is None:
            return times_reference(self._noise.missing_to_one(position, size), row)
        if len(self._times) < size:
            self._times = np.empty(size, dtype=np.float32)
        times = self._times[:size]
        total = library.race(
            self._noise.key(position), row.narrow.ctypes.data, size, row.top, row.temperature, times.ctypes.data
        )
        return times, total

    def _first(self, row: Row, position: int, times: Narrow) -> int:
        """The token of the greatest score among those whose bounds are not infinite; of tied ones the lowest."""
        likely = int(times.argmin())
        score = row.shifted(np.array([likely])).item() + self._noise.roughly(position, likely)
        ids = np.flatnonzero(times <= np.float32(math.exp(-score) * SLACK))
        scores = row.shifted(ids) + self._noise.at(position, ids)
        return int(ids[scores.argmax()])


def times_reference(missing: FloatArray, row: Row) -> tuple[Narrow, float]:
    """The bounds of the times and the sum of ``e^l`` without the kernels, from ``1 - u``, ``[W]``."""
    weights = _weights(row.narrow, row)
    return missing.astype(np.float32) / weights, float(weights.sum())


def _weights(logits: Narrow, row: Row) -> Narrow:
    shifted = (logits - np.float32(row.top)) / np.float32(row.temperature)
    weights: Narrow = np.exp(np.maximum(shifted, np.float32(-87)))
    return weights


def mass_above(row: Row, bound: float) -> float:
    """The sum of ``e^l`` of the tokens whose logits are above a bound."""
    library = native.available()
    if library is None:
        return float(_weights(row.narrow[row.narrow > np.float32(bound)], row).sum())
    return library.mass_above(row.narrow.ctypes.data, len(row.narrow), row.top, row.temperature, bound)


def _stays(row: Row, token: int, total: float, *, top_p: float, min_p: float) -> bool | None:
    """Whether truncation keeps a token; None where that hangs on ties or on the last digits of a sum.

    Top-p keeps a token whose own probability and that of all that are dropped before it exceed ``1 - p``. False means
    that those of the same logit are dropped too.
    """
    logit = row.shifted(np.array([token]))
    if min_p > 0 and not (np.exp(logit) >= min_p).item():
        return False
    if top_p >= 1:
        return True
    x = float(row.narrow[token])
    near = _near(row, x)
    tail = 1 - top_p
    likelier_or_tied = mass_above(row, x - near) - math.exp(logit.item())
    if 1 - likelier_or_tied / total > tail + MASS_SLACK:
        return True
    return False if 1 - mass_above(row, x + near) / total < tail - MASS_SLACK else None


def _near(row: Row, logit: float) -> float:
    """How far from a logit others may be tied with it."""
    return NEAR * (abs(logit) + abs(row.top) + row.temperature)


def _support_above(row: Row, bound: float) -> Support | None:
    """The tokens with logits above a bound, and all that may be tied with one at it; None where they are many, or where
    fp32 does not tell."""
    if not row.bounded:
        return None
    ids = np.flatnonzero(row.narrow >= np.float32(bound - _near(row, bound)))
    if len(ids) > len(row.narrow) // MANY:
        return None
    return Support(ids=ids, logits=row.shifted(ids))


def top_k(row: Row, k: int) -> Support | None:
    """What :func:`surefoot.sampling.processors.top_k` leaves of the row; None for a large part of it.

    Of the maxima of disjoint parts of the row the k-th is at most the k-th largest of the row.
    """
    parts = len(row.narrow) // STACKED
    if k > parts:
        return None  # nor could they be few
    maxima = row.narrow[: parts * STACKED].reshape(STACKED, parts).max(axis=0)
    bound = float(np.partition(maxima, parts - k)[parts - k])
    support = _support_above(row, bound)
    return None if support is None else processors.top_k(support, k)


def min_p(row: Row, share: float) -> Support | None:
    """What :func:`surefoot.sampling.processors.min_p` leaves of the row; None for a large part of it."""
    support = _support_above(row, row.top + row.temperature * math.log(share))
    return None if support is None else processors.min_p(support, share)
