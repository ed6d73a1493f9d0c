"""The transaction every cache goes through: which tokens are committed, which nodes are open, what may happen next."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from surefoot.errors import BrokenCacheError, CacheError, CapacityError, TargetError
from surefoot.tree import chain_parents, chain_path, is_chain


class OpenNodes(NamedTuple):
    """The nodes of the open round: parents, depths, and whether each is the child of the one before it."""

    parents: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    is_chain: bool = True


NONE_OPEN = OpenNodes()


@lru_cache(maxsize=256)
def chain_nodes(count: int) -> OpenNodes:
    """The open nodes of a round that is one chain."""
    return OpenNodes(chain_parents(count), chain_path(count), True)


class Transaction:
    """Counts the committed tokens and the open round's nodes of one sequence, and refuses what may not happen.

    It holds no tensors. State changes by single assignments, after all checks: an error leaves it as it was.
    """

    def __init__(self, capacity: int) -> None:
        if not isinstance(capacity, int) or isinstance(capacity, bool) or capacity < 1:
            raise CapacityError(f"a cache for {capacity!r} tokens was asked for; expected an integer of at least 1")
        self.capacity = capacity
        self.length = 0
        self.open = NONE_OPEN
        self._broken = False

    def require_sound(self) -> None:
        """Raises ``BrokenCacheError`` where a commit was interrupted."""
        if self._broken:
            raise BrokenCacheError(
                "this cache was interrupted inside a commit, so its rows may be half moved; expected a sound cache. "
                "Make a new one and prefill it again"
            )

    def require_closed(self, verb: str) -> None:
        """Raises where a round is open, or the cache is broken."""
        self.require_sound()
        if self.open.parents:
            raise CacheError(
                f"{verb} while a round of {len(self.open.parents)} nodes is open; expected no open round. "
                "Commit or roll back first"
            )

    def require_room(self, count: int) -> None:
        """Raises ``CapacityError`` where ``count`` more tokens do not fit."""
        used = self.length + len(self.open.parents)
        if used + count > self.capacity:
            raise CapacityError(
                f"{count} more tokens were given to a cache that holds {used} of {self.capacity}; expected at most "
                f"{self.capacity - used}. Make the cache larger or the draft smaller"
            )

    def extended(self, parents: Sequence[int]) -> OpenNodes:
        """The open nodes with new ones appended; ``parents`` index all nodes of the round. Changes nothing yet."""
        self.require_sound()
        if not parents:
            raise TargetError("an empty tree was given; expected a root at least")
        self.require_room(len(parents))
        before = self.open
        if not before.parents and is_chain(parents):
            return chain_nodes(len(parents))
        all_parents, depths, still_chain = [*before.parents], [*before.depths], before.is_chain
        for parent in parents:
            node = len(all_parents)
            if node == 0 and parent == -1:
                depth = 0
            elif node > 0 and 0 <= parent < node:
                depth = depths[parent] + 1
            else:
                raise TargetError(_wrong_parent(node, parent))
            still_chain = still_chain and parent == node - 1
            all_parents.append(parent)
            depths.append(depth)
        return OpenNodes(tuple(all_parents), tuple(depths), still_chain)

    def checked_path(self, path: Sequence[int]) -> tuple[int, ...]:
        """``path`` as a tuple, known to lead from the root of the open round down to one of its nodes."""
        if self._broken:
            self.require_sound()
        open_nodes, count = self.open, len(path)
        if open_nodes.is_chain and 0 < count <= len(open_nodes.parents):
            along = chain_path(count)
            if path is along:
                return along
        if not self.open.parents:
            raise CacheError("a commit without an open round; expected nodes to be scored before it")
        try:
            nodes = tuple(operator.index(node) for node in path)
        except TypeError:
            raise CacheError(f"path {path!r:.80} was given; expected node indices, integers") from None
        expected = -1
        for node in nodes:
            if not 0 <= node < len(self.open.parents) or self.open.parents[node] != expected:
                raise CacheError(
                    f"path {nodes} was given for a round with parents {self.open.parents}; expected node indices from "
                    "the root on, each the child of the one before"
                )
            expected = node
        if not nodes:
            raise CacheError("an empty path was given; expected the root at least. Roll back to keep nothing")
        return nodes

    def begin_commit(self) -> None:
        """Marks the start of moving what is remembered: until it has ended the cache counts as broken."""
        self._broken = True

    def end_commit(self, count: int) -> None:
        """Makes ``count`` nodes committed and closes the round; lengths are written last."""
        self.open, self.length = NONE_OPEN, self.length + count
        self._broken = False

    def rollback(self) -> None:
        """Forgets the open nodes. Quiet on a broken cache, so that it may stand in a ``finally``."""
        self.open = NONE_OPEN

    def require_shorter(self, length: int) -> None:
        """Raises where a round is open, or ``length`` is not that of a prefix of the committed tokens."""
        self.require_closed("truncate")
        if not isinstance(length, int) or isinstance(length, bool) or not 0 <= length <= self.length:
            raise CacheError(f"truncate to {length!r} of {self.length} tokens; expected 0 to {self.length}")

    def truncate(self, length: int) -> None:
        """Goes back to ``length`` committed tokens."""
        self.require_shorter(length)
        self.end_truncate(length)

    def end_truncate(self, length: int) -> None:
        """Makes ``length`` tokens the committed ones, after :meth:`begin_commit` where more than a number changed."""
        self.length = length
        self._broken = False

    def fork(self, capacity: int) -> Transaction:
        """A transaction of its own with the same committed tokens, for at most ``capacity``."""
        self.require_closed("fork")
        other = Transaction(capacity)
        if capacity < self.length:
            raise CapacityError(
                f"a fork for {capacity} tokens was asked of a cache that holds {self.length}; expected at least "
                f"{self.length}. Ask for more, or truncate first"
            )
        other.length = self.length
        return other


def _wrong_parent(node: int, parent: int) -> str:
    if node == 0:
        return f"the first node of a round has parent {parent}; expected -1, as it is the root"
    return f"node {node} of the round has parent {parent}; expected a node before it, 0 to {node - 1}"
