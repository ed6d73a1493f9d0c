"""Policies: how much a drafter may draft in a round."""

from __future__ import annotations

from surefoot.types import Plan, Verdict


class FixedPolicy:
    """Drafts the same number of tokens every round, fewer only where fewer can be emitted.

    Nothing is learnt from the rounds, so speculation may be slower than plain decoding where drafts are rarely right.
    """

    def __init__(self, num_draft: int, width: int = 1) -> None:
        self._num_draft, self._width = num_draft, width

    def plan(self, remaining: int) -> Plan:
        """``remaining - 1`` at most: the round's last token is the target's own."""
        count = max(0, min(self._num_draft, remaining - 1))
        return Plan(num_nodes=count, depth=count, width=self._width)

    def update(self, verdict: Verdict, seconds: float) -> None:
        """Ignores the round."""
