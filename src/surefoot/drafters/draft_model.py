"""A smaller model as drafter (Leviathan et al. 2022, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318).

The draft model keeps a cache of its own. Its drafts stay tentative there until the target has spoken; then the accepted
ones are committed without being computed again. The last draft of a round is never fed, so a round in which everything
was accepted leaves one committed token to catch up with.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from surefoot.errors import DrafterError
from surefoot.protocols import Cache, Sampler, Target
from surefoot.tree import chain
from surefoot.types import Capture, DraftTree, Plan, TargetOutput

_CAPTURE = Capture()
_MOST_CATCH_UP = 16
"""Committed tokens fed together with the root; more are prefilled first."""
_SPARE_CAPACITY = 1024
"""Room a cache is made with beyond what it must hold, in tokens."""


class DraftModel:
    """Any supported model as drafter; its tokens are the target's.

    Args:
        model: the draft model.
        shared_noise: at temperature > 0 draw drafts under the target's own noise; otherwise take the likeliest token.
    """

    method = "draft"

    def __init__(self, model: Target, *, shared_noise: bool = True) -> None:
        self.model = model
        self.shared_noise = shared_noise

    def start(self, target: Target) -> DraftModelDrafter:
        """A drafter with an empty cache of its own."""
        return DraftModelDrafter(self)


class DraftModelDrafter:
    """The draft model on one sequence.

    Between rounds ``_context`` is what was observed; the cache holds a prefix of it, and while a round is open the
    tokens of ``_open`` beyond that prefix.
    """

    def __init__(self, shared: DraftModel) -> None:
        self._model = shared.model
        self._shared_noise = shared.shared_noise
        self._context: list[int] = []
        self._open: list[int] = []
        self._cache: Cache | None = None

    @property
    def capture(self) -> Capture:
        """Nothing: it reads token ids."""
        return _CAPTURE

    def observe(self, tokens: Sequence[int], out: TargetOutput, path: Sequence[int] | None) -> None:
        """Appends committed tokens; those that lie tentatively in the cache are committed there."""
        self._context.extend(tokens)
        if self._open and self._cache is not None:
            count = self._num_confirmed(self._cache.length)
            self._open = []
            if count:
                self._cache.commit(range(count))
            else:
                self._cache.rollback()

    def propose(self, root: int, plan: Plan, sampler: Sampler) -> DraftTree:
        """A chain of ``plan.num_nodes`` drafts; under rejection sampling with the laws they were drawn from.

        Raises:
            DrafterError: the sequence outgrew the draft model's context.
        """
        count = min(plan.num_nodes, plan.depth)
        if count == 0:
            return chain((root,))
        cache = self._ready_cache(count)
        feed = [*self._context[cache.length :], root]
        drafted: list[int] = []
        laws: list[Tensor] = []
        while True:
            logits = self._feed(cache, feed)
            token, law = sampler.draft(logits, drafted, shared_noise=self._shared_noise)
            drafted.append(token)
            if law is not None:
                laws.append(law)
            if len(drafted) == count:
                return chain((root, *drafted), q=torch.stack(laws) if laws else None)
            feed = [token]

    def truncate(self, length: int) -> None:
        """Goes back to the first ``length`` tokens observed; the cache keeps what it can of them."""
        assert 0 <= length <= len(self._context), length
        del self._context[length:]
        self._open = []
        if self._cache is not None:
            self._cache.rollback()
            self._cache.truncate(self._cache.restorable(length))

    def close(self) -> None:
        """Frees the cache."""
        self._cache = None
        self._open = []

    def _num_confirmed(self, length: int) -> int:
        """How many open nodes the committed tokens beyond ``length`` agree with."""
        count = 0
        for fed, committed in zip(self._open, self._context[length:], strict=False):
            if fed != committed:
                break
            count += 1
        return count

    def _ready_cache(self, count: int) -> Cache:
        """The cache without open nodes, with room for a round, at most ``_MOST_CATCH_UP`` tokens behind."""
        needed = len(self._context) + count
        if needed > self._model.context_length:
            raise DrafterError(
                f"the sequence needs {needed} tokens of the draft model's context, which has "
                f"{self._model.context_length}; use a draft model with a longer context"
            )
        cache = self._cache
        if cache is None or cache.capacity < needed:
            capacity = min(self._model.context_length, 2 * needed + _SPARE_CAPACITY)
            cache = self._cache = self._model.new_cache(capacity)
        self._open = []
        cache.rollback()
        behind = self._context[cache.length :]
        if len(behind) > _MOST_CATCH_UP:
            for _ in self._model.prefill(behind, cache, _CAPTURE):
                pass
        return cache

    def _feed(self, cache: Cache, tokens: list[int]) -> Tensor:
        """Appends tokens to the open round as a chain; the last one's logits ``[V]``."""
        first = len(self._open)
        nodes = DraftTree(tokens=tuple(tokens), parents=tuple(range(first - 1, first + len(tokens) - 1)))
        (out,) = self._model.score([(nodes, cache)], _CAPTURE)
        self._open.extend(tokens)
        assert out.logits is not None
        return out.logits[-1]
