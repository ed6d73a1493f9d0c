"""Policies: how much a drafter may draft in a round."""

from __future__ import annotations

from surefoot.types import Plan, Verdict


class FixedPolicy:
    """Drafts the same number of tokens every round, fewer only where fewer can be emitted.

    Nothing is learnt from the rounds, so speculation may be slower than plain decoding where drafts are rarely right.
    """

    def __init__(self, num_draft: int, width: int = 1) -> None:
        self._plans = tuple(Plan(num_nodes=count, depth=count, width=width) for count in range(num_draft + 1))

    def plan(self, remaining: int) -> Plan:
        """``remaining - 1`` at most: the round's last token is the target's own."""
        plans = self._plans
        return plans[-1] if remaining >= len(plans) else plans[max(0, remaining - 1)]

    def update(self, verdict: Verdict, seconds: float) -> None:
        """Ignores the round."""
