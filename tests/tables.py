"""A target that is a table: its logits are a fixed function of the whole context, and its cache is a list of tokens.

It implements the protocols in the most obvious way, so the loop can be watched without a network.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from surefoot.tree import path_to
from surefoot.types import Capture, DraftTree, TargetOutput, Tokens, host_tokens


class TableCache:
    """Committed tokens and the open round's nodes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tokens: list[int] = []
        self.open_tokens: list[int] = []
        self.open_parents: list[int] = []

    @property
    def length(self) -> int:
        return len(self.tokens)

    def commit(self, path: Sequence[int]) -> None:
        assert list(path) == path_to(self.open_parents, path[-1]), "the path must run from the root to a node"
        self.tokens += [self.open_tokens[node] for node in path]
        self.rollback()

    def rollback(self) -> None:
        self.open_tokens, self.open_parents = [], []

    def restorable(self, length: int) -> int:
        return min(length, len(self.tokens))

    def truncate(self, length: int) -> None:
        assert not self.open_tokens
        assert 0 <= length <= len(self.tokens)
        del self.tokens[length:]

    def fork(self, capacity: int) -> TableCache:
        assert not self.open_tokens
        assert len(self.tokens) <= capacity
        copy = TableCache(capacity)
        copy.tokens = list(self.tokens)
        return copy


class TableTarget:
    """Logits by context: ``scale`` spreads them, ``seed`` chooses the table, only the last ``order`` tokens count.

    ``fail_at`` raises on that call of ``score``.
    """

    strict = True

    def __init__(
        self,
        vocab_size: int = 5,
        context_length: int = 64,
        *,
        seed: int = 0,
        scale: float = 2.0,
        order: int | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.seed = seed
        self.scale = scale
        self.order = order
        self.num_forwards = 0
        self.fail_at = -1

    def row(self, context: Sequence[int]) -> Tensor:
        """The logits after ``context``: fp64 ``[V]``."""
        past = tuple(context if self.order is None else context[-self.order :])
        key = hashlib.sha256(repr((self.seed, past)).encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key[:6], "big"))
        return torch.randn(self.vocab_size, generator=generator, dtype=torch.float64) * self.scale

    def new_cache(self, length: int, *, spare: int = 0) -> TableCache:
        return TableCache(length + spare)

    def serves(self, cache: TableCache, length: int) -> bool:
        return True

    def prefill(
        self, tokens: Sequence[int], cache: TableCache, capture: Capture
    ) -> Iterator[tuple[Tokens, TargetOutput]]:
        for start in range(0, len(tokens), 3):
            chunk = tuple(tokens[start : start + 3])
            before = list(cache.tokens)
            cache.tokens += chunk
            assert len(cache.tokens) <= cache.capacity
            rows = [self.row([*before, *chunk[: i + 1]]) for i in range(len(chunk))]
            last = start + 3 >= len(tokens)
            logits = torch.stack(rows) if capture.logits else rows[-1][None] if last else None
            yield chunk, TargetOutput(logits=logits)

    def score(self, rounds: Sequence[tuple[DraftTree, TableCache]], capture: Capture) -> list[TargetOutput]:
        self.num_forwards += 1
        if self.num_forwards == self.fail_at:
            raise RuntimeError("out of memory")
        outs = []
        for tree, cache in rounds:
            first = len(cache.open_tokens)
            cache.open_tokens += host_tokens(tree.tokens)
            cache.open_parents += tree.parents
            assert len(cache.tokens) + len(cache.open_tokens) <= cache.capacity
            rows = []
            for node in range(first, len(cache.open_tokens)):
                path = path_to(cache.open_parents, node)
                rows.append(self.row([*cache.tokens, *(cache.open_tokens[i] for i in path)]))
            outs.append(TargetOutput(logits=torch.stack(rows)))
        return outs

    def embed(self, tokens: Tensor) -> Tensor:
        raise NotImplementedError("a table has no embeddings")

    def unembed(self, hidden: Tensor) -> Tensor:
        raise NotImplementedError("a table has no hidden states")
