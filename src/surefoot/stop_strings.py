"""Finds stop strings in a text that comes piece by piece, and holds back what may yet become one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

_ROOT = 0


@dataclass(slots=True)
class _Node:
    """A beginning of some stop strings.

    Attributes:
        edges: the node that each next character leads to.
        suffix: the node of the longest proper suffix that begins a stop string too.
        depth: its characters.
        ended: characters of the longest stop string that ends here; 0 where none does.
        open: characters of its longest suffix, itself included, that another character may continue.
    """

    edges: dict[str, int] = field(default_factory=dict)
    suffix: int = _ROOT
    depth: int = 0
    ended: int = 0
    open: int = 0


class StopStrings:
    """The automaton of Aho and Corasick (1975) over one request's stop strings, and its state in the text.

    A character costs the same however long the text is and however many strings there are. Until a match is found, what
    :meth:`feed` gives and what it still holds concatenate to the text.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._nodes = _automaton(stops)
        self._state = _ROOT
        self._held = ""

    def feed(self, text: str, *, may_end: bool = True) -> tuple[str, str | None]:
        """Reads on: the text that cannot become a stop string any more, and the stop string that ends with this piece.

        Of several that end with it the one that begins first counts, then the longest; the text given then ends before
        it. Without ``may_end`` what ends here is text like any other.
        """
        if len(self._nodes) == 1:
            return text, None
        known = self._held + text
        begin, end = len(known), 0
        for place in range(len(self._held), len(known)):
            length = self._step(known[place])
            if length and may_end and place + 1 - length <= begin:
                begin, end = place + 1 - length, place + 1
        if end:
            self._state, self._held = _ROOT, ""
            return known[:begin], known[begin:end]
        final = len(known) - self._nodes[self._state].open
        self._held = known[final:]
        return known[:final], None

    def flush(self) -> str:
        """What is held back; the text is over."""
        rest, self._held, self._state = self._held, "", _ROOT
        return rest

    def _step(self, character: str) -> int:
        """Follows one character; the length of the longest stop string that ends with it, or 0."""
        state = self._state
        while state != _ROOT and character not in self._nodes[state].edges:
            state = self._nodes[state].suffix
        self._state = self._nodes[state].edges.get(character, _ROOT)
        return self._nodes[self._state].ended


def _automaton(stops: Sequence[str]) -> list[_Node]:
    """The nodes of all beginnings, each with what its suffixes know; the root, the empty one, is the first."""
    nodes = [_Node()]
    for stop in stops:
        state = _ROOT
        for character in stop:
            if character not in nodes[state].edges:
                nodes[state].edges[character] = len(nodes)
                nodes.append(_Node(depth=nodes[state].depth + 1))
            state = nodes[state].edges[character]
        nodes[state].ended = len(stop)
    pending = deque([_ROOT])
    while pending:  # shorter beginnings come first, so a node's suffix is complete before the node
        state = pending.popleft()
        node = nodes[state]
        pending.extend(node.edges.values())
        node.ended = node.ended or nodes[node.suffix].ended
        node.open = node.depth if node.edges else nodes[node.suffix].open
        for character, child in node.edges.items():
            if state != _ROOT:
                suffix = node.suffix
                while suffix != _ROOT and character not in nodes[suffix].edges:
                    suffix = nodes[suffix].suffix
                nodes[child].suffix = nodes[suffix].edges.get(character, _ROOT)
    return nodes
