"""Keys and values of what a drafter knows of one sequence: one row per committed position, in order.

Rows beyond the last are room for a block, whose keys and values are never kept.

Shape suffixes: L layers, K key-value heads, C capacity, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.drafters.dflash.config import DFlashConfig

_FIRST_CAPACITY = 256


class Context:
    """Row ``j < length`` is position ``j``; forgetting rows is therefore exact.

    Attributes:
        length: committed positions.
    """

    def __init__(self, config: DFlashConfig, like: Tensor) -> None:
        """Empty, of the dtype of ``like`` and where it is."""
        self.length = 0
        self._rows_LKCD = like.new_empty(2 * config.num_layers, config.num_kv_heads, 0, config.head_dim)

    @property
    def capacity(self) -> int:
        """Rows that fit."""
        return self._rows_LKCD.shape[2]

    @property
    def address(self) -> int:
        """Where the rows lie, ``[2 * L, K, C, D]`` in one piece: a layer's keys before its values."""
        return self._rows_LKCD.data_ptr()

    def rows(self, start: int, count: int) -> Tensor:
        """A view of rows ``start .. start + count - 1`` of all layers: ``[2 * L, K, count, D]``."""
        return self._rows_LKCD.narrow(2, start, count)

    def reserve(self, count: int) -> None:
        """Makes room for ``count`` rows beyond ``length``; what is known is copied only when it doubles."""
        needed = self.length + count
        if needed > self.capacity:
            layers, heads, _, size = self._rows_LKCD.shape
            with torch.inference_mode():
                wider = self._rows_LKCD.new_empty(layers, heads, max(2 * needed, _FIRST_CAPACITY), size)
                wider.narrow(2, 0, self.length).copy_(self.rows(0, self.length))
            self._rows_LKCD = wider

    def truncate(self, length: int) -> None:
        """Forgets all but the first ``length`` rows."""
        assert 0 <= length <= self.length, (length, self.length)
        self.length = length
