"""Answers of past requests, for lookup to copy from (the shared tree of SuffixDecoding, arXiv 2411.04975).

Answers share automata of a bounded number of tokens; the oldest automaton makes room for a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

from surefoot.drafters.suffix import NO_MATCH, SuffixAutomaton
from surefoot.errors import OptionError

_BOUNDARY = -1
"""Stands between answers; no token matches it, no draft runs across it."""
_MOST_SEGMENTS = 16
"""Each is looked at in every round."""
_MOST_SEGMENT_TOKENS = 8192
_BYTES_PER_TOKEN = 600
"""Of an automaton over source text, rounded up."""
_LEAST_BYTES = 1 << 20
_LONGEST_MATCH = 32
"""Matches are as long as this at most: a sequence's last tokens, no more, say where it stands in an answer."""


class _Segment(NamedTuple):
    text: SuffixAutomaton
    num_bytes: int


class AnswerStore:
    """Past answers, shared by all requests of a ``Lookup``; any thread may add and read.

    Args:
        max_bytes: memory for all of them. Past it the oldest eighth is dropped; 70 MB are used at most.
    """

    def __init__(self, *, max_bytes: int = 32 << 20) -> None:
        if not isinstance(max_bytes, int) or isinstance(max_bytes, bool) or max_bytes < _LEAST_BYTES:
            raise OptionError(f"max_bytes is {max_bytes!r}; expected an integer of at least {_LEAST_BYTES}")
        self._max_bytes = max_bytes
        self._segment_tokens = min(_MOST_SEGMENT_TOKENS, max_bytes // (8 * _BYTES_PER_TOKEN))
        self._lock = Lock()
        self._segments: list[_Segment] = []

    def add(self, answer: Sequence[int]) -> None:
        """Keeps an answer as the newest, unless it is kept already."""
        with self._lock:
            for start in range(0, len(answer), self._segment_tokens):
                piece = answer[start : start + self._segment_tokens]
                if not any(segment.text.holds(piece) for segment in self._segments):
                    self._append(piece)

    def segments(self) -> tuple[SuffixAutomaton, ...]:
        """The automata over what is kept now, newest first; they are never written to again."""
        with self._lock:
            return tuple(segment.text for segment in reversed(self._segments))

    @property
    def num_bytes(self) -> int:
        """The memory it holds, as estimated."""
        with self._lock:
            return self._sum_bytes()

    def _append(self, piece: Sequence[int]) -> None:
        """Replaces the newest segment by one with the piece, or begins another; drops the oldest past the limits."""
        text = SuffixAutomaton()
        if self._segments and len(self._segments[-1].text.tokens) + len(piece) < self._segment_tokens:
            text = self._segments.pop().text
        text = text.extended((*piece, _BOUNDARY))
        self._segments.append(_Segment(text, text.num_bytes))
        while len(self._segments) > _MOST_SEGMENTS or self._sum_bytes() > self._max_bytes:
            del self._segments[0]

    def _sum_bytes(self) -> int:
        return sum(segment.num_bytes for segment in self._segments)


class PastAnswers:
    """One sequence's place in each of the answers that were kept when it began.

    A place depends on the sequence's last ``_LONGEST_MATCH`` tokens alone, so it is brought up to date when it is asked
    for, however much was observed meanwhile.
    """

    def __init__(self, segments: Sequence[SuffixAutomaton]) -> None:
        self._segments = segments
        self.forget()

    def forget(self) -> None:
        """Starts anew: the sequence was taken back."""
        self._matches = [NO_MATCH] * len(self._segments)
        self._num_read = 0

    def continuation(self, text: Sequence[int], root: int, *, longer_than: int, count: int) -> list[int] | None:
        """Up to ``count`` tokens that followed the longest match of the end of ``text + [root]``, the newest of equals.

        None where no match of more than ``longer_than`` tokens goes on.
        """
        if not self._segments:
            return None
        self._read(text)
        longest: list[int] | None = None
        for segment, match in zip(self._segments, self._matches, strict=True):
            here = segment.follow(match, root, _LONGEST_MATCH)
            start = segment.end(here) + 1
            if here[1] > longer_than and segment.tokens[start] != _BOUNDARY:
                longer_than, longest = here[1], segment.tokens[start : start + count]
        if longest and _BOUNDARY in longest:
            del longest[longest.index(_BOUNDARY) :]
        return longest

    def _read(self, text: Sequence[int]) -> None:
        """Follows the tokens of ``text`` that were not read yet. Of many the last are enough, whatever came before:
        with as many as a match may have, every match lies within them."""
        new = text[max(len(text) - _LONGEST_MATCH, self._num_read) :]
        for i, segment in enumerate(self._segments):
            match = self._matches[i]
            for token in new:
                match = segment.follow(match, token, _LONGEST_MATCH)
            self._matches[i] = match
        self._num_read = len(text)
