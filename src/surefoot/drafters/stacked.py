"""Two drafters on one sequence: the first drafts where it has a guess, the second everywhere else.

The case of prompt lookup before a trained drafter: a text that repeats itself is copied at no cost.
"""

from __future__ import annotations

from collections.abc import Sequence

from surefoot.errors import OptionError
from surefoot.protocols import Drafter, DrafterModel, Sampler, Target
from surefoot.types import Capture, DraftTree, Plan, TargetOutput

MIN_MATCH = 4
"""Equal tokens after which lookup goes before another drafter, which guesses better after fewer."""
_NOTHING = Plan(num_nodes=0, depth=0)


class Stacked:
    """The models of both.

    Args:
        first: what is asked first; it must not read the target's rows.
        then: what drafts where the first has no guess.
    """

    def __init__(self, first: DrafterModel, then: DrafterModel) -> None:
        self.first, self.then = first, then

    @property
    def method(self) -> str:
        """Both methods, such as ``lookup+dflash``."""
        return f"{self.first.method}+{self.then.method}"

    def start(self, target: Target) -> StackedDrafter:
        """Both drafters, on a sequence of their own. Raises ``OptionError`` where the first one reads rows."""
        return StackedDrafter(self.first.start(target), self.then.start(target))


class StackedDrafter:
    """Both drafters; each sees everything."""

    def __init__(self, first: Drafter, then: Drafter) -> None:
        if first.capture != Capture():
            raise OptionError(
                f"the first drafter reads {first.capture} of the target; expected one that reads token ids, as lookup"
            )
        self._first, self._then = first, then

    @property
    def capture(self) -> Capture:
        """What the second one wants to see."""
        return self._then.capture

    def observe(self, tokens: Sequence[int], out: TargetOutput, path: Sequence[int] | None) -> None:
        """Tells both."""
        self._first.observe(tokens, out, path)
        self._then.observe(tokens, out, path)

    def propose(self, root: int, plan: Plan, sampler: Sampler) -> DraftTree:
        """The first one's tree, or the second one's where that is the root alone."""
        tree = self._first.propose(root, plan, sampler)
        if len(tree) == 1:
            return self._then.propose(root, plan, sampler)
        self._then.propose(root, _NOTHING, sampler)  # so that it knows of the round
        return tree

    def truncate(self, length: int) -> None:
        """Both go back."""
        self._first.truncate(length)
        self._then.truncate(length)

    def close(self) -> None:
        """Closes both."""
        try:
            self._first.close()
        finally:
            self._then.close()
