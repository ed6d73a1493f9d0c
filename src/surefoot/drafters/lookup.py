"""Suffix lookup: proposes what followed the last time the text ended like this.

Prompt lookup (Saxena 2023) on a suffix automaton (SAM-Decoding, arXiv 2411.10666): the longest match of any length,
its most recent occurrence, and a continuation that goes round where the copied text meets its own end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from surefoot.drafters.suffix import SuffixAutomaton
from surefoot.errors import OptionError
from surefoot.protocols import Sampler, Target
from surefoot.tree import chain
from surefoot.types import Capture, DraftTree, Plan, TargetOutput

_CAPTURE = Capture()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """The options of lookup; it has no weights.

    Attributes:
        min_match: shortest suffix, in tokens, that has to be found again before anything is drafted.
    """

    min_match: int = 2
    method: ClassVar[str] = "lookup"

    def __post_init__(self) -> None:
        if self.min_match < 1:
            raise OptionError(f"min_match is {self.min_match}; expected at least 1")

    def start(self, target: Target) -> LookupDrafter:
        """A drafter that knows no text yet."""
        return LookupDrafter(self)


class LookupDrafter:
    """Lookup over one sequence: its prompt and its answer."""

    def __init__(self, options: Lookup) -> None:
        self._min_match = options.min_match
        self._text = SuffixAutomaton()

    @property
    def capture(self) -> Capture:
        """Nothing: it reads token ids."""
        return _CAPTURE

    def observe(self, tokens: Sequence[int], out: TargetOutput, path: Sequence[int] | None) -> None:
        """Appends committed tokens to the text."""
        for token in tokens:
            self._text.extend(token)

    def propose(self, root: int, plan: Plan, sampler: Sampler) -> DraftTree:
        """A chain of what followed the longest match, or the root alone where no match is long enough."""
        tokens = [root]
        if plan.num_nodes:
            length, end = self._text.longest_match(root)
            if length >= self._min_match:
                tokens += self._continuation(root, end, min(plan.num_nodes, plan.depth))
        return chain(tokens)

    def truncate(self, length: int) -> None:
        """Goes back to the first ``length`` tokens observed: builds the automaton again, a few microseconds a token."""
        assert 0 <= length <= len(self._text.tokens), length
        if length < len(self._text.tokens):
            self._text = SuffixAutomaton(self._text.tokens[:length])

    def close(self) -> None:
        """Forgets the text."""
        self._text = SuffixAutomaton()

    def _continuation(self, root: int, end: int, count: int) -> list[int]:
        """Up to ``count`` tokens after index ``end`` of the text that ``root`` closes, going round at its end."""
        known = self._text.tokens
        period = len(known) - end
        indices = (end + 1 + step % period for step in range(count))
        return [root if index == len(known) else known[index] for index in indices]
