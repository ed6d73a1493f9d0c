"""The CPU kernels: C++ of our own, compiled at install, that gives a row the same bits beside any other rows.

``library`` opens them, or says why there are none; ``records`` mirrors what they are handed; ``tensors`` calls them on
torch tensors. The sources are in ``source/``.
"""

from __future__ import annotations

from surefoot.native.library import available, why_not
from surefoot.native.tensors import (
    BestTokens,
    Packed,
    best,
    best_reference,
    likeliest,
    likeliest_reference,
    normalise,
    pack,
    pack_in_place,
    pack_pairs,
    product,
    readable,
    unpack_rows,
)

__all__ = [
    "BestTokens",
    "Packed",
    "available",
    "best",
    "best_reference",
    "likeliest",
    "likeliest_reference",
    "normalise",
    "pack",
    "pack_in_place",
    "pack_pairs",
    "product",
    "readable",
    "unpack_rows",
    "why_not",
]
