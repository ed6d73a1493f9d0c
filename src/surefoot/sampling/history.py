"""Counts the tokens a request has seen, with the drafted path to a row added for that row alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from surefoot.noise import IntArray


class Occurrences:
    """How often each token id occurs in a growing sequence."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self._counts: dict[int, int] = {}
        self._arrays: tuple[IntArray, IntArray] | None = None
        self.add(tokens)

    def add(self, tokens: Sequence[int]) -> None:
        """Appends tokens to the sequence."""
        for token in tokens:
            self._counts[token] = self._counts.get(token, 0) + 1
        self._arrays = None

    def with_path(self, path: Sequence[int]) -> tuple[IntArray, IntArray]:
        """The distinct ids of the sequence followed by ``path``, and their counts: both ``[S]``, in any order."""
        if not path:
            if self._arrays is None:
                self._arrays = _arrays(self._counts)
            return self._arrays
        counts = dict(self._counts)
        for token in path:
            counts[token] = counts.get(token, 0) + 1
        return _arrays(counts)


def _arrays(counts: dict[int, int]) -> tuple[IntArray, IntArray]:
    size = len(counts)
    return np.fromiter(counts.keys(), np.int64, size), np.fromiter(counts.values(), np.int64, size)
