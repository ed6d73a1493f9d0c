"""Recurrent states as the kernels are told of them, and the commit of a path by the kernels."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from surefoot.cache.base import OpenNodes
from surefoot.cache.recurrent import RecurrentStates
from surefoot.native.library import Library
from surefoot.native.records import type_code

NUM_WORDS = 14
"""Words of a ``States``."""


def state_words(
    states: RecurrentStates, nodes: OpenNodes, length: int, first_row: int, num_rows: int
) -> tuple[int, ...]:
    """The words of the record ``States`` of a forward that was opened for.

    Args:
        states: a sequence's.
        nodes: its round, the new nodes at the end.
        length: its committed tokens.
        first_row: the forward's row of the first new node.
        num_rows: new nodes.
    """
    record = states.record
    chain = nodes.is_chain
    return (
        *(length, len(nodes.parents) - num_rows, first_row, num_rows),
        *(record.front_state, record.front_history),
        *((record.back_state, record.back_history) if chain else (0, 0)),
        *(int(record.continues and chain), record.capacity),
        *(record.qkv, record.k, record.delta, record.alpha),
    )


class NativeReplayer:
    """Replays a round's tape with the kernels: all layers in one call, to the bits their forwards gave."""

    def __init__(self, library: Library) -> None:
        """``library`` is the one the forwards run on."""
        self._library = library

    def __call__(self, states: RecurrentStates, path: Sequence[int]) -> None:
        """Writes the states after ``path`` to the tentative ones."""
        record, shape = states.record, states.shape
        words = array("q", [0] * 4)
        words.extend((record.front_state, record.front_history, record.back_state, record.back_history))
        words.extend((0, record.capacity, record.qkv, record.k, record.delta, record.alpha))
        nodes = array("q", path)
        sizes = (shape.num_key_heads, shape.num_value_heads, shape.key_dim, shape.value_dim, shape.conv_size)
        code = type_code(states.committed.history.dtype)
        places = words.buffer_info()[0], nodes.buffer_info()[0]
        call = array("q", (*places, len(nodes), code, states.num_layers, *sizes))
        self._library.replay(call.buffer_info()[0])
