"""The drafter of plain decoding: it never guesses."""

from __future__ import annotations

from collections.abc import Sequence

from surefoot.protocols import Sampler, Target
from surefoot.tree import chain_parents
from surefoot.types import Capture, DraftTree, Plan, TargetOutput

_CAPTURE = Capture()
_ALONE = chain_parents(1)


class NoDraft:
    """Proposes the root alone, so that a round is one step of plain decoding."""

    @property
    def capture(self) -> Capture:
        """Nothing."""
        return _CAPTURE

    def observe(self, tokens: Sequence[int], out: TargetOutput, path: Sequence[int] | None) -> None:
        """Learns nothing."""

    def propose(self, root: int, plan: Plan, sampler: Sampler) -> DraftTree:
        """The root alone."""
        return DraftTree(tokens=(root,), parents=_ALONE)

    def truncate(self, length: int) -> None:
        """Has nothing to forget."""

    def close(self) -> None:
        """Holds nothing."""


class NoDrafts:
    """The model of it: no weights."""

    method = "none"

    def start(self, target: Target) -> NoDraft:
        """A drafter that never guesses."""
        return NoDraft()
