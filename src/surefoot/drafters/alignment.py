"""Where an answer stands in a text it repeats with edits."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from surefoot.types import Tokens

_MOST_PLACES = 32
"""Occurrences tried on either side of the last place; of commoner runs the farther ones are not seen."""
LONGEST_MATCH = 32
"""Tokens up to which matches are told apart by their length; no more of an answer's end is read."""


class Place(NamedTuple):
    """What is known after a token of the answer.

    Attributes:
        next: index in the text of the token expected next; None where the answer has left the text.
        last: the index expected where the answer last left the text, or where it is now.
    """

    next: int | None
    last: int


START = Place(0, 0)
"""An answer is expected to begin as the text does."""


class Alignment:
    """Follows an answer through ``text``.

    An answer that has left the text is found again by its last ``min_match`` tokens: where the match is longest and,
    among equals, nearest, at or after the place it left rather than before, as edits move forward.
    """

    def __init__(self, text: Tokens, min_match: int) -> None:
        self._text = text
        self._min_match = min_match
        self._ends: dict[Tokens, list[int]] = {}
        for end in range(min_match, len(text) + 1):
            self._ends.setdefault(text[end - min_match : end], []).append(end)

    def after(self, place: Place, answer: list[int]) -> Place:
        """The place after the last token of ``answer``, given the one before it."""
        expected = place.next
        if expected is not None and expected < len(self._text) and self._text[expected] == answer[-1]:
            return Place(expected + 1, expected + 1)
        found = self._find(place.last, answer)
        if found is not None:
            return Place(found, found)
        # A single token, such as a line break, may stand before all else: the text's beginning is still expected then.
        return START if len(answer) == 1 else Place(None, place.last)

    def continuation(self, place: Place, count: int) -> Tokens:
        """Up to ``count`` tokens of the text from a place on; none where the answer has left it."""
        return () if place.next is None else self._text[place.next : place.next + count]

    def _find(self, last: int, answer: list[int]) -> int | None:
        """The index after the best match of the answer's end, or None."""
        if len(answer) < self._min_match:
            return None
        ends = self._ends.get(tuple(answer[-self._min_match :]), [])
        middle = bisect_left(ends, last)
        near = ends[max(0, middle - _MOST_PLACES) : middle + _MOST_PLACES]
        return max(near, key=lambda end: (self._match(end, answer), end >= last, -abs(end - last)), default=None)

    def _match(self, end: int, answer: list[int]) -> int:
        """How many tokens before index ``end`` of the text are those at the answer's end."""
        most = min(end, len(answer), LONGEST_MATCH)
        length = self._min_match
        while length < most and self._text[end - length - 1] == answer[-length - 1]:
            length += 1
        return length
