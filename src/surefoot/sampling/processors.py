"""Processors of one row of logits: pure functions in fp64, with the order, semantics and edges of transformers.

A row is ``[W]``, indexed by token id; a :class:`Support` is what truncation left of it. Order: logit bias, repetition
penalty, presence and frequency penalties, forbidden tokens; then temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from surefoot.noise import FloatArray, IntArray

BoolArray: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """Tokens a draw may pick from.

    Attributes:
        ids: ascending token ids ``[S]``, so that a first maximum is the lowest id; None when ``logits`` is a whole row.
        logits: ``[S]``, shifted so that the largest is 0; not normalised.
    """

    ids: IntArray | None
    logits: FloatArray

    def keep(self, mask: BoolArray) -> Support:
        """The tokens where ``mask [S]`` is true."""
        ids = np.flatnonzero(mask) if self.ids is None else self.ids[mask]
        return Support(ids=ids, logits=self.logits[mask])

    def token(self, index: int) -> int:
        """The id at an index of the support."""
        return index if self.ids is None else int(self.ids[index])

    def probabilities(self) -> FloatArray:
        """The normalised law on the support, ``[S]``."""
        weights: FloatArray = np.exp(self.logits)
        weights /= weights.sum()
        return weights


def add_bias(row: FloatArray, ids: IntArray, bias: FloatArray) -> FloatArray:
    """Adds ``bias [S]`` to the logits of ``ids [S]``; ids beyond the row are ignored."""
    inside = ids < len(row)
    result = row.copy()
    result[ids[inside]] += bias[inside]
    return result


def penalise_repetition(row: FloatArray, seen: IntArray, penalty: float) -> FloatArray:
    """Divides positive and multiplies other logits of the distinct ids ``seen`` in the text (CTRL, 1909.05858)."""
    ids = seen[seen < len(row)]
    values = row[ids]
    result = row.copy()
    result[ids] = np.where(values < 0, values * penalty, values / penalty)
    return result


def penalise_presence_and_frequency(
    row: FloatArray, ids: IntArray, counts: IntArray, presence: float, frequency: float
) -> FloatArray:
    """Subtracts ``presence + count * frequency`` from the distinct output ids, as OpenAI's interface defines them."""
    inside = ids < len(row)
    result = row.copy()
    result[ids[inside]] -= presence + counts[inside] * frequency
    return result


def forbid(row: FloatArray, ids: IntArray) -> FloatArray:
    """Makes ``ids`` impossible."""
    result = row.copy()
    result[ids[ids < len(row)]] = -np.inf
    return result


def allow_only(row: FloatArray, ids: IntArray) -> FloatArray:
    """Makes all but ``ids`` impossible."""
    inside = ids[ids < len(row)]
    result = np.full_like(row, -np.inf)
    result[inside] = row[inside]
    return result


def with_temperature(row: FloatArray, temperature: float) -> Support:
    """The whole row, shifted to a maximum of 0 before the division so that no temperature can overflow it."""
    return Support(ids=None, logits=(row - row.max()) / temperature)


def top_k(support: Support, k: int) -> Support:
    """Keeps every token at least as likely as the k-th likeliest: ties with the k-th are all kept."""
    size = len(support.logits)
    if k >= size:
        return support
    threshold = np.partition(support.logits, size - k)[size - k]
    return support.keep(support.logits >= threshold)


def top_p(support: Support, p: float) -> Support:
    """Drops the least likely tokens while they sum to at most ``1 - p``; of tied tokens the highest ids go first.

    The likeliest token always stays.
    """
    probs = support.probabilities()
    tail = 1 - p
    # Those below tail / size sum to less than the tail, so all of them go: only the others are sorted.
    candidates = np.flatnonzero(probs >= tail / len(probs))
    ascending = candidates[np.argsort(-probs[candidates], kind="stable")[::-1]]
    dropped_mass = probs.sum(where=probs < tail / len(probs))
    kept = dropped_mass + np.cumsum(probs[ascending]) > tail
    kept[-1] = True
    mask = np.zeros(len(probs), dtype=np.bool_)
    mask[ascending[kept]] = True
    return support.keep(mask)


def min_p(support: Support, share: float) -> Support:
    """Keeps tokens at least ``share`` times as likely as the likeliest."""
    return support.keep(np.exp(support.logits - support.logits.max()) >= share)
