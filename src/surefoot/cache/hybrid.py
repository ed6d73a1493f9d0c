"""What a model with delta layers remembers: keys and values of its attention layers, and recurrent states, as one
transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from surefoot.cache.kv import KVCache
from surefoot.cache.recurrent import RecurrentStates
from surefoot.errors import CacheError
from surefoot.ops.rope import RopeTable


class AttentionRows(NamedTuple):
    """The sizes of the rows of keys and values: of how many layers, and their heads."""

    num_layers: int
    num_kv_heads: int
    head_dim: int


class HybridCache(KVCache):
    """A cache whose delta layers forget the past as they go: it goes back only to lengths whose memory is kept.

    Attributes:
        states: the delta layers' memory and tape; the model's forward reads and writes them.
    """

    def __init__(
        self,
        *,
        owner: object,
        capacity: int,
        rows: AttentionRows,
        rope: RopeTable,
        like: Tensor,
        states: RecurrentStates,
    ) -> None:
        super().__init__(
            owner=owner,
            capacity=capacity,
            num_layers=rows.num_layers,
            num_kv_heads=rows.num_kv_heads,
            head_dim=rows.head_dim,
            rope=rope,
            like=like,
        )
        self.states = states

    def fill_committed(self, length: int, generator: torch.Generator) -> None:
        """As for keys and values, and states as after a long run; ``length`` can be gone back to until a prefill."""
        super().fill_committed(length, generator)
        self.states.fill_committed(length, generator)

    def commit(self, path: Sequence[int]) -> None:
        """Keeps the nodes of ``path`` in all layers of both kinds, forgets the rest, and closes the round.

        Interrupted inside, the cache is broken and says so at the next use.
        """
        nodes = self.transaction.checked_path(path)
        self.transaction.begin_commit()
        self.states.commit(nodes, self.transaction.open)
        self._settle(nodes)
        self.transaction.end_commit(len(nodes))

    def commit_chunk(self, count: int) -> None:
        """Keeps what a prefill chunk of ``count`` rows left, and the states before it."""
        self.transaction.begin_commit()
        self.states.commit_chunk(self.length)
        self.transaction.end_commit(count)

    def restorable(self, length: int) -> int:
        """``length`` where that is the present one, else the length before the last prefill chunk, else 0."""
        if length >= self.length:
            return self.length
        return self.states.kept_length if length >= self.states.kept_length else 0

    def truncate(self, length: int) -> None:
        """Goes back, between rounds, to a length that :meth:`restorable` gives.

        Raises:
            CacheError: the states of that length are gone; nothing has changed.
        """
        self.transaction.require_shorter(length)
        if length == self.length:
            return
        if length != self.restorable(length):
            raise CacheError(
                f"truncate to {length} of {self.length} tokens, whose recurrent states are gone; expected "
                f"{self.length}, {self.states.kept_length} or 0. Ask restorable for the nearest"
            )
        self.transaction.begin_commit()
        self.states.restore(length)
        self.transaction.end_truncate(length)

    def fork(self, capacity: int) -> HybridCache:
        """As of keys and values; of the states it has the present ones, so it goes back to its length or to 0."""
        other = super().fork(capacity)
        assert isinstance(other, HybridCache), other
        return other

    def _beside(self, capacity: int) -> HybridCache:
        doubled_layers, num_kv_heads, _, head_dim = self._rows_LKCD.shape
        return HybridCache(
            owner=self.owner,
            capacity=capacity,
            rows=AttentionRows(doubled_layers // 2, num_kv_heads, head_dim),
            rope=self.rope,
            like=self._rows_LKCD,
            states=self.states.fork(),
        )
