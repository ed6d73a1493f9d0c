"""Keys and values of one sequence for all attention layers, allocated once.

Shape suffixes: L layers, K key-value heads, C capacity, N rows, T rows read, D head size.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from surefoot.cache.base import Transaction
from surefoot.native import available
from surefoot.ops.rope import RopeTable

LayerRows = tuple[Tensor, ...]
"""One tensor per layer and kind: layer ``i`` has its keys at ``2 * i`` and its values at ``2 * i + 1``."""


class KVCache:
    """A transaction over rows of keys and values.

    Row ``j < length`` belongs to committed position ``j``; node ``i`` of the open round is row ``length + i``.
    Layers with a sliding window keep all rows too, so that every earlier length can be truncated to.

    ``owner`` is the model the rows belong to; only that model writes and reads them. ``rope`` is the table their keys
    are rotated by, all of them, whatever else the model has.
    """

    def __init__(
        self,
        *,
        owner: object,
        capacity: int,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        rope: RopeTable,
        like: Tensor,
    ) -> None:
        self.owner = owner
        self.transaction = Transaction(capacity)
        self._rows_LKCD = like.new_empty(2 * num_layers, num_kv_heads, capacity, head_dim)
        self.rotate_by(rope)

    def rotate_by(self, rope: RopeTable) -> None:
        """Takes the table that the keys are rotated by; before there are any."""
        self.rope = rope
        # Held: another cache may make the table longer, which lets go of these.
        first, second = self._factors = rope.reserve(self.capacity)
        rotations = (first.data_ptr(), second.data_ptr(), first.shape[-1])
        self.record = (self._rows_LKCD.data_ptr(), self.capacity, *rotations, 0)
        """The words of the kernels' ``Sequence``: where rows and rotations lie, and no states."""

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self.transaction.length

    @property
    def capacity(self) -> int:
        """Tokens, committed and tentative together, that fit."""
        return self.transaction.capacity

    @property
    def num_open(self) -> int:
        """Nodes of the open round; 0 when none is open."""
        return len(self.transaction.open.parents)

    def fill_committed(self, length: int, generator: torch.Generator) -> None:
        """Makes the first ``length`` rows committed ones that mean nothing, for a test of the arithmetic."""
        with torch.inference_mode():
            drawn = torch.randn(self._rows_LKCD.shape, generator=generator, dtype=torch.float32)
            self._rows_LKCD.copy_(drawn)
        self.transaction.begin_commit()
        self.transaction.end_commit(length)

    def rows_to_write(self, start: int, count: int) -> LayerRows:
        """Where each layer puts the keys and values of rows ``start .. start + count - 1``: views ``[N, K, D]``."""
        return self._rows_LKCD.narrow(2, start, count).transpose(1, 2).unbind(0)

    def rows_to_read(self, first: int, stop: int) -> LayerRows:
        """Each layer's keys and values in rows ``first .. stop - 1``: views ``[K, T, D]``."""
        return self._rows_LKCD.narrow(2, first, stop - first).unbind(0)

    def commit(self, path: Sequence[int]) -> None:
        """Keeps the nodes of ``path``, moved together in all layers, forgets the rest, and closes the round.

        Nodes that stand where they belong are not moved: none, where the path is a prefix of the round. Interrupted
        while rows move, the cache is broken and says so at the next use.
        """
        transaction = self.transaction
        nodes = transaction.checked_path(path)
        if nodes[-1] >= len(nodes):  # as they ascend, the path is no prefix
            transaction.begin_commit()
            self._settle(nodes)
        transaction.end_commit(len(nodes))

    def commit_chunk(self, count: int) -> None:
        """Keeps the ``count`` rows that a prefill chunk wrote, without a round."""
        self.transaction.end_commit(count)

    def rollback(self) -> None:
        """Forgets all that is tentative; a no-op when no round is open."""
        self.transaction.rollback()

    def restorable(self, length: int) -> int:
        """The longest committed length, at most ``length``, that :meth:`truncate` can go back to."""
        return min(length, self.length)

    def truncate(self, length: int) -> None:
        """Goes back to an earlier committed length, between rounds."""
        self.transaction.truncate(length)

    def fork(self, capacity: int) -> KVCache:
        """A cache of its own with the same committed tokens, between rounds; what befalls one never shows in the other.

        Raises:
            CacheError: a round is open, or the cache is broken.
            CapacityError: ``capacity`` is less than :attr:`length`.
        """
        transaction = self.transaction.fork(capacity)
        other = self._beside(capacity)
        other._rows_LKCD.narrow(2, 0, self.length).copy_(self._rows_LKCD.narrow(2, 0, self.length))
        other.transaction = transaction
        return other

    def _beside(self, capacity: int) -> KVCache:
        """A cache like this one without its rows; :meth:`fork` fills it."""
        doubled_layers, num_kv_heads, _, head_dim = self._rows_LKCD.shape
        return KVCache(
            owner=self.owner,
            capacity=capacity,
            num_layers=doubled_layers // 2,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            rope=self.rope,
            like=self._rows_LKCD,
        )

    def _settle(self, nodes: Sequence[int]) -> None:
        """Moves the rows of a path to where committed ones belong; those that lie there already stay."""
        settled = 0
        while settled < len(nodes) and nodes[settled] == settled:
            settled += 1
        if settled < len(nodes):
            self._move(nodes[settled:], self.length + settled)

    def _move(self, nodes: Sequence[int], start: int) -> None:
        """Moves the rows of ``nodes``, ascending, to row ``start`` and on: none of them lies before where it goes."""
        kernels = available() if self._rows_LKCD.is_cpu else None
        if kernels is not None:
            doubled_layers, num_kv_heads, capacity, head_dim = self._rows_LKCD.shape
            places = array("q", [self.length + node for node in nodes])
            planes = doubled_layers * num_kv_heads, capacity, head_dim * self._rows_LKCD.element_size()
            kernels.move_rows(self._rows_LKCD.data_ptr(), *planes, places.buffer_info()[0], len(places), start)
            return
        with torch.inference_mode():  # the cache may have been made in inference mode, and is then written only there
            rows = torch.tensor(nodes, device=self._rows_LKCD.device) + self.length
            kept_LKND = self._rows_LKCD.index_select(2, rows)
            self._rows_LKCD.narrow(2, start, len(nodes)).copy_(kept_LKND)
