"""Chi-square tests without a statistics package."""

from __future__ import annotations

from collections.abc import Sequence


def chi_square(counts: Sequence[int], probs: Sequence[float]) -> float:
    """Pearson's statistic of counts against a law; cells of probability 0 must be empty."""
    total = sum(counts)
    statistic = 0.0
    for count, prob in zip(counts, probs, strict=True):
        if prob == 0:
            assert count == 0, "a token of probability 0 was drawn"
        else:
            statistic += (count - total * prob) ** 2 / (total * prob)
    return statistic


def chi_square_limit(degrees: int, z: float = 6.0) -> float:
    """The value a chi-square variate exceeds as rarely as a normal one exceeds ``z`` (Wilson and Hilferty 1931)."""
    return degrees * (1 - 2 / (9 * degrees) + z * (2 / (9 * degrees)) ** 0.5) ** 3
