"""Suffix lookup: proposes what followed the last time the text ended like this.

Prompt lookup (Saxena 2023) on a suffix automaton (SAM-Decoding, arXiv 2411.10666): the longest match of any length,
its most recent occurrence, and a continuation that goes round where the copied text meets its own end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from surefoot.drafters.store import AnswerStore, PastAnswers
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
        store: past answers to look up in too, and to add each answer to; None keeps requests apart.
    """

    min_match: int = 2
    store: AnswerStore | None = None
    method: ClassVar[str] = "lookup"

    def __post_init__(self) -> None:
        if self.min_match < 1:
            raise OptionError(f"min_match is {self.min_match}; expected at least 1")

    def start(self, target: Target) -> LookupDrafter:
        """A drafter that knows no text yet but the answers that are stored now."""
        return LookupDrafter(self)


class LookupDrafter:
    """Lookup over one sequence: its prompt, its answer, and the answers stored when it began.

    What was observed as rounds is the answer. It is stored when the drafter is closed, a cancelled one too, but not
    where the last round was never observed: then something failed.
    """

    def __init__(self, options: Lookup) -> None:
        self._min_match = options.min_match
        self._store = options.store
        self._past = PastAnswers(options.store.segments() if options.store else ())
        self._text = SuffixAutomaton()
        self._answers: list[range] = []
        self._round_is_open = False

    @property
    def capture(self) -> Capture:
        """Nothing: it reads token ids."""
        return _CAPTURE

    def observe(self, tokens: Sequence[int], out: TargetOutput, path: Sequence[int] | None) -> None:
        """Appends committed tokens to the text."""
        start = len(self._text.tokens)
        self._text.extend(tokens)
        if path is not None:
            if self._answers and self._answers[-1].stop == start:
                start = self._answers.pop().start
            self._answers.append(range(start, len(self._text.tokens)))
        self._round_is_open = False

    def propose(self, root: int, plan: Plan, sampler: Sampler) -> DraftTree:
        """A chain of what followed the longest match, or the root alone where no match is long enough.

        Of matches as long as each other the text's own comes first.
        """
        self._round_is_open = True
        count = min(plan.num_nodes, plan.depth)
        if not count:
            return chain((root,))
        length, end = self._text.longest_match(root)
        longer_than = max(length, self._min_match - 1)
        drafts = self._past.continuation(self._text.tokens, root, longer_than=longer_than, count=count)
        if drafts is None:
            drafts = self._continuation(root, end, count) if length >= self._min_match else []
        return chain((root, *drafts))

    def truncate(self, length: int) -> None:
        """Goes back to the first ``length`` tokens observed: builds the automaton again, a few microseconds a token."""
        assert 0 <= length <= len(self._text.tokens), length
        if length < len(self._text.tokens):
            self._text = SuffixAutomaton(self._text.tokens[:length])
            self._answers = [range(a.start, min(a.stop, length)) for a in self._answers if a.start < length]
            self._past.forget()

    def close(self) -> None:
        """Stores the answers, and forgets the text."""
        if self._store is not None and not self._round_is_open:
            for answer in self._answers:
                self._store.add(self._text.tokens[answer.start : answer.stop])
        self._answers = []
        self._text = SuffixAutomaton()

    def _continuation(self, root: int, end: int, count: int) -> list[int]:
        """Up to ``count`` tokens after index ``end`` of the text that ``root`` closes, going round at its end."""
        copied = self._text.tokens[end + 1 : end + 1 + count]
        if len(copied) < count:
            copied.append(root)
            copied = (copied * (count // len(copied) + 1))[:count]
        return copied
