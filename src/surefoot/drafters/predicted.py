"""A predicted answer merged with any drafter: drafts are copied from the prediction where the answer follows it.

The case of OpenAI's ``prediction``: most of the answer is known beforehand, as when code is edited. Where the answer
has left the prediction, the other drafter drafts.
"""

from __future__ import annotations

from collections.abc import Sequence

from surefoot.drafters.alignment import LONGEST_MATCH, START, Alignment
from surefoot.protocols import Drafter, Sampler
from surefoot.tree import chain
from surefoot.types import Capture, DraftTree, Plan, TargetOutput, Tokens

_MIN_MATCH = 2
"""Tokens of the answer that have to be found again after an edit: fewer are found sooner, and wrong more often."""
_NOTHING = Plan(num_nodes=0, depth=0)


class PredictedDrafter:
    """One sequence: the place of its answer in the prediction, and the inner drafter.

    The answer is what is observed as rounds. The place is a function of it alone: how it was drafted does not matter.

    Args:
        prediction: ids of the expected answer.
        inner: a drafter on the same sequence; it sees everything.
        num_observed: tokens the inner drafter has already observed.
    """

    def __init__(self, prediction: Tokens, inner: Drafter, *, num_observed: int = 0) -> None:
        self._inner = inner
        self._num_before = num_observed
        self._alignment = Alignment(prediction, _MIN_MATCH)
        self._answer: list[int] = []
        self._trail = [(START, 0)]  # the place, and the length of the answer, after each token observed

    @property
    def capture(self) -> Capture:
        """What the inner drafter wants to see."""
        return self._inner.capture

    def observe(self, tokens: Sequence[int], out: TargetOutput, path: Sequence[int] | None) -> None:
        """Follows the answer, and tells the inner drafter."""
        for token in tokens:
            place, _ = self._trail[-1]
            if path is not None:
                self._answer.append(token)
                place = self._alignment.after(place, self._answer)
            self._trail.append((place, len(self._answer)))
        self._inner.observe(tokens, out, path)

    def propose(self, root: int, plan: Plan, sampler: Sampler) -> DraftTree:
        """What follows in the prediction, as a chain that ends where the prediction does; else the inner drafter's."""
        place = self._alignment.after(self._trail[-1][0], [*self._answer[-LONGEST_MATCH:], root])
        drafts = self._alignment.continuation(place, min(plan.num_nodes, plan.depth))
        if not drafts:
            return self._inner.propose(root, plan, sampler)
        self._inner.propose(root, _NOTHING, sampler)  # so that it knows of the round
        return chain((root, *drafts))

    def truncate(self, length: int) -> None:
        """Goes back to the first ``length`` tokens observed, the inner drafter too."""
        self._inner.truncate(length)
        kept = max(0, length - self._num_before)
        assert kept < len(self._trail), length
        del self._trail[kept + 1 :]
        del self._answer[self._trail[-1][1] :]

    def close(self) -> None:
        """Closes the inner drafter."""
        self._inner.close()
