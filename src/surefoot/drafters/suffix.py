"""A suffix automaton over token ids: where did the longest suffix of a text occur before?

Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text"; built online, amortised constant time a
token. States also carry the most recent position their strings end at.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TypeAlias

Match: TypeAlias = tuple[int, int]
"""A string that occurs: its state, and its length."""

NO_MATCH: Match = (0, 0)
_MOST_HOPS = 64
"""States refreshed per token along the suffix links; past it an occurrence may be an older one, never a wrong one."""
_INT_BYTES = 32
"""An integer that is not one of the interpreter's own small ones, as it lies in memory."""


class SuffixAutomaton:
    """All substrings of the tokens so far.

    State ``v`` stands for a class of substrings with the same end positions: ``_length[v]`` is its longest one's
    length, ``_link[v]`` the class of the longest suffix outside it, ``_next[v]`` its continuations, ``_end[v]`` the
    most recent index its strings end at.
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [-1]
        self._last = 0
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens."""
        continuations, links, lengths = self._next, self._link, self._length
        states = []
        for token in tokens:
            state = self._add_state({}, lengths[self._last] + 1, 0, len(self.tokens))
            self.tokens.append(token)
            walk = self._last
            while walk != -1 and token not in continuations[walk]:
                continuations[walk][token] = state
                walk = links[walk]
            if walk != -1:
                after = continuations[walk][token]
                links[state] = after if lengths[after] == lengths[walk] + 1 else self._split(walk, token, after)
            self._last = state
            states.append(state)
        for back, state in enumerate(reversed(states), 1):
            self._refresh_ends(state, len(self.tokens) - back)

    def longest_match(self, token: int) -> tuple[int, int]:
        """The longest suffix of ``tokens + [token]`` that occurs in ``tokens``: its length and the most recent index it
        ends at; ``(0, -1)`` where even ``token`` alone does not occur."""
        state = self._last
        while state != -1:
            after = self._next[state].get(token)
            if after is not None:
                return self._length[state] + 1, self._end[after]
            state = self._link[state]
        return 0, -1

    def extended(self, tokens: Iterable[int]) -> SuffixAutomaton:
        """A copy with more tokens; this one stays as it is."""
        copy = SuffixAutomaton()
        copy.tokens, copy._link, copy._length, copy._end = (
            list(column) for column in (self.tokens, self._link, self._length, self._end)
        )
        copy._next = [dict(continuations) for continuations in self._next]
        copy._last = self._last
        copy.extend(tokens)
        return copy

    def holds(self, tokens: Iterable[int]) -> bool:
        """Whether a string occurs."""
        state = 0
        for token in tokens:
            after = self._next[state].get(token)
            if after is None:
                return False
            state = after
        return True

    def follow(self, match: Match, token: int, most: int) -> Match:
        """The longest string that occurs in ``tokens`` among the suffixes of ``match`` and ``token``, of at most
        ``most`` tokens."""
        state, length = match
        while state != -1:
            after = self._next[state].get(token)
            if after is not None:
                length = min(length + 1, most)
                while self._length[self._link[after]] >= length:
                    after = self._link[after]
                return after, length
            state = self._link[state]
            length = self._length[state]
        return NO_MATCH

    def end(self, match: Match) -> int:
        """The most recent index the matched string ends at."""
        return self._end[match[0]]

    @property
    def num_bytes(self) -> int:
        """The memory it holds: tables, and the integers in them."""
        tables = (self.tokens, self._next, self._link, self._length, self._end, *self._next)
        num_ints = 2 * len(self.tokens) + 2 * len(self._next)  # tokens, indices, states, lengths
        return sum(map(sys.getsizeof, tables)) + _INT_BYTES * num_ints

    def _add_state(self, continuations: dict[int, int], length: int, link: int, end: int) -> int:
        self._next.append(continuations)
        self._length.append(length)
        self._link.append(link)
        self._end.append(end)
        return len(self._next) - 1

    def _split(self, walk: int, token: int, after: int) -> int:
        """The class that holds just ``longest(walk) + token``, split off the wider one ``after``."""
        clone = self._add_state(dict(self._next[after]), self._length[walk] + 1, self._link[after], self._end[after])
        while walk != -1 and self._next[walk].get(token) == after:
            self._next[walk][token] = clone
            walk = self._link[walk]
        self._link[after] = clone
        return clone

    def _refresh_ends(self, state: int, index: int) -> None:
        """Notes that the suffixes of ``state`` end at ``index``; of tokens appended together the last comes first.

        Where a suffix is known to end later, so do all shorter ones.
        """
        ends, links = self._end, self._link
        for _ in range(_MOST_HOPS):
            state = links[state]
            if state <= 0 or ends[state] > index:
                return
            ends[state] = index
