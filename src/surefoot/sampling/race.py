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
STRETCH = 256
"""Tokens that share one bound, as in ``native/source/race.hpp``."""
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

    @property
    def for_kernels(self) -> tuple[int, int, float, float]:
        """The row as the kernels take it; it must outlive their call."""
        return self.narrow.ctypes.data, len(self.narrow), self.top, self.temperature

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
    """One request's draws."""

    def __init__(self, noise: PositionNoise) -> None:
        """``noise`` is the request's own."""
        self._noise = noise

    def winner(self, row: Row, position: int, *, top_p: float = 1.0, min_p: float = 0.0) -> int | None:
        """The token drawn at a position from what ``top_p`` and ``min_p`` leave; None where bounds do not decide."""
        if not row.bounded:
            return None
        floor = -math.inf
        while True:
            token = self._first(row, position, floor)
            stays = _stays(row, token, top_p=top_p, min_p=min_p)
            if stays is None or stays:
                return token if stays else None
            floor = float(row.narrow[token])  # truncation keeps nothing less likely than what it drops

    def _first(self, row: Row, position: int, floor: float) -> int:
        """The token of the greatest score among those with logits above ``floor``; of tied ones the lowest."""
        least = self._bounds(row, position, floor)
        ids, scores = self._scores(row, position, np.array([least.argmin()]), floor)
        stretches = np.flatnonzero(least <= np.float32(math.exp(-scores.max()) * SLACK))
        if len(stretches) > 1:
            ids, scores = self._scores(row, position, stretches, floor)
        return int(ids[scores.argmax()])

    def _bounds(self, row: Row, position: int, floor: float) -> Narrow:
        """A bound from below of the times of every stretch, ``[ceil(W / STRETCH)]``."""
        size = len(row.narrow)
        library = native.available()
        if library is None:
            return bounds_reference(self._noise.missing_to_one(position, size), row, floor)
        least = np.empty(-(-size // STRETCH), dtype=np.float32)
        library.race(self._noise.key(position), row.for_kernels, floor, least.ctypes.data)
        return least

    def _scores(self, row: Row, position: int, stretches: IntArray, floor: float) -> tuple[IntArray, FloatArray]:
        """The ids of stretches, ascending, and their scores as they are defined."""
        ids = (stretches[:, None] * STRETCH + np.arange(STRETCH)).ravel()
        ids = ids[ids < len(row.narrow)]
        scores = row.shifted(ids) + self._noise.at(position, ids)
        scores[row.narrow[ids] <= floor] = -np.inf
        return ids, scores


def bounds_reference(missing: FloatArray, row: Row, floor: float) -> Narrow:
    """The bounds of the stretches without the kernels, from ``1 - u``, ``[W]``."""
    times = np.full(-(-len(missing) // STRETCH) * STRETCH, np.inf, dtype=np.float32)
    np.divide(
        missing, _weights(row.narrow, row), out=times[: len(missing)], where=row.narrow > floor, casting="same_kind"
    )
    least: Narrow = times.reshape(-1, STRETCH).min(axis=1)
    return least


def _weights(logits: Narrow, row: Row) -> Narrow:
    shifted = (logits - np.float32(row.top)) / np.float32(row.temperature)
    weights: Narrow = np.exp(np.maximum(shifted, np.float32(-87)))
    return weights


def mass_above(row: Row, bound: float) -> tuple[float, float]:
    """The sum of ``e^l`` of the tokens whose logits are above a bound, and of all."""
    library = native.available()
    if library is None:
        weights = _weights(row.narrow, row)
        return float(weights.sum(where=row.narrow > np.float32(bound))), float(weights.sum())
    return library.mass_above(row.for_kernels, bound)


def _stays(row: Row, token: int, *, top_p: float, min_p: float) -> bool | None:
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
    if x > row.top - near and np.count_nonzero(row.narrow > np.float32(x - near)) == 1:
        return True if tail + MASS_SLACK < 1 else None  # nothing likelier, nothing tied
    likelier_or_tied, total = mass_above(row, x - near)
    if 1 - (likelier_or_tied - math.exp(logit.item())) / total > tail + MASS_SLACK:
        return True
    likelier, total = mass_above(row, x + near)
    return False if 1 - likelier / total < tail - MASS_SLACK else None


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
