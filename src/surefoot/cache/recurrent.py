"""What the delta layers remember of one sequence: a state of fixed size, and the tape by which a round is undone.

Shape suffixes: L delta layers, V value heads, U key heads, D key size, E value size, K taps of the convolution,
C channels, M nodes the tape has room for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from surefoot.cache.base import OpenNodes
from surefoot.ops.delta_rule import DeltaPlace, DeltaShape, DeltaState, Tape, replay

_LEAST_TAPE = 8
"""Nodes a tape is made for at first; it is made again, twice as long, where a round has more."""
_MOST_KEPT_TAPE = 64
"""A longer tape is let go of with its round."""


class Memories:
    """The memory of all delta layers after one prefix of the sequence: contiguous buffers, and each layer's views.

    Attributes:
        state: fp32 ``[L, V, D, E]``.
        history: what the convolutions read last, in the model's dtype, ``[L, K - 1, C]``, oldest first.
        layers: both of each layer.
    """

    def __init__(self, state_LVDE: Tensor, history_LKC: Tensor) -> None:
        self.state, self.history = state_LVDE, history_LKC
        self.layers = tuple(map(DeltaState, state_LVDE.unbind(), history_LKC.unbind()))

    def beside(self) -> Memories:
        """Buffers of the same kind, not filled."""
        return Memories(torch.empty_like(self.state), torch.empty_like(self.history))

    def copy(self, other: Memories) -> None:
        """Takes over the numbers of ``other``."""
        self.state.copy_(other.state)
        self.history.copy_(other.history)

    def clear(self) -> None:
        """Nothing was read yet."""
        self.state.zero_()
        self.history.zero_()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRecord:
    """Where the buffers lie, for kernels on the host: addresses of contiguous memory, the layouts of
    :class:`RecurrentStates`.

    Attributes:
        front_state, front_history: the memory of the committed tokens; a forward only reads it.
        back_state, back_history: where a chain's memory after its last node goes, and a replay's.
        qkv, k, delta, alpha: the tape; 0 where the round keeps none.
        capacity: nodes the tape has room for in each layer, M: its layers lie that many rows apart.
        continues: whether the back holds the memory after the last old node.
    """

    front_state: int
    front_history: int
    back_state: int
    back_history: int
    qkv: int
    k: int
    delta: int
    alpha: int
    capacity: int
    continues: bool


class RecurrentStates:
    """The delta layers' share of a cache's transaction.

    Three buffers change places and are never copied in decoding:

    - *front* ``state [L, V, D, E]`` fp32 and ``history [L, K - 1, C]``: the memory of the committed tokens. No forward
      writes it, so that forgetting a round costs nothing.
    - *back*, likewise: the memory after the last node, where the round is a chain. A commit of the whole chain swaps
      the two.
    - *kept*, likewise, from the second prefill chunk on: the memory before the last prefill chunk, to which a
      conversation can go back. It costs as much as the front.

    The tape has for each node of the open round ``qkv [L, M, C]`` in the model's dtype and, all fp32, the normalised
    ``k [L, M, U, D]``, ``delta [L, M, V, E]`` and ``alpha [L, M, V]``. A commit of any other path replays it from the
    front into the back and swaps. A prefill chunk keeps no tape: all of it is committed.

    The back is believed only for the round it was written for, so a forward that fails between leaves nothing wrong: a
    later one replays.
    """

    def __init__(self, shape: DeltaShape, num_layers: int, like: Tensor, replayer: Replayer | None = None) -> None:
        """Nothing read yet.

        Args:
            shape: the sizes of every delta layer.
            num_layers: how many there are.
            like: has the dtype and device of the model.
            replayer: replays a tape as the model's forwards compute; None where torch computes them.
        """
        self.shape, self.num_layers = shape, num_layers
        self._replayer = replay_in_torch if replayer is None else replayer
        heads = (num_layers, shape.num_value_heads, shape.key_dim, shape.value_dim)
        state_LVDE = torch.zeros(heads, dtype=torch.float32, device=like.device)
        self._front = Memories(state_LVDE, like.new_zeros(num_layers, shape.conv_size - 1, shape.channels))
        self._back = self._front.beside()
        self._kept: Memories | None = None
        self._kept_length = 0
        self._tape: Tape | None = None
        self._reached = 0
        self._continues = self._keeps_tape = False

    @property
    def committed(self) -> Memories:
        """The memory of the committed tokens: the front."""
        return self._front

    @property
    def tentative(self) -> Memories:
        """Where the memory after a chain, or after a replay, is written: the back."""
        return self._back

    @property
    def kept_length(self) -> int:
        """The length whose memory is kept beside the present one's; 0, which needs none, where there is no other."""
        return self._kept_length

    @property
    def tape(self) -> Tape | None:
        """The tape of all layers, ``[L, M, ...]``; None before the first round."""
        return self._tape

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers."""
        sides = [side for side in (self._front, self._back, self._kept) if side is not None]
        tensors = [*(self._tape or ()), *(tensor for side in sides for tensor in (side.state, side.history))]
        return sum(tensor.nbytes for tensor in tensors)

    def open(self, before: OpenNodes, nodes: OpenNodes, *, keeps_tape: bool) -> None:
        """Makes room for a forward that appends to the round ``before``, so that it becomes ``nodes``.

        A round that keeps no tape is a chain, is written by one forward and is committed as it is. Call it before
        :meth:`places` and :attr:`record`; nothing of what is committed or open changes.
        """
        assert keeps_tape or (nodes.is_chain and not before.parents), "a round without a tape is one chain"
        num_old, num_all = len(before.parents), len(nodes.parents)
        if keeps_tape:
            self._reserve(num_all, num_old)
        self._continues = num_old > 0 and nodes.is_chain and self._reached == num_old
        self._keeps_tape = keeps_tape
        self._reached = num_all if nodes.is_chain else 0

    def places(self, nodes: OpenNodes, num_new: int) -> tuple[DeltaPlace, ...]:
        """Each layer's place in the forward that was opened for."""
        tapes: Sequence[Tape | None] = [None] * self.num_layers
        if self._keeps_tape and self._tape is not None:
            tapes = [Tape(*rows) for rows in zip(*(tensor.unbind() for tensor in self._tape), strict=True)]
        return tuple(
            DeltaPlace(
                parents=nodes.parents,
                num_new=num_new,
                committed=committed,
                after=after if nodes.is_chain else None,
                continues=self._continues,
                tape=tape,
            )
            for committed, after, tape in zip(self._front.layers, self._back.layers, tapes, strict=True)
        )

    @property
    def record(self) -> StateRecord:
        """Where everything lies in the forward that was opened for, or for a replay; it moves with every commit."""
        tape = self._tape if self._keeps_tape else None
        qkv, k, delta, alpha = (0, 0, 0, 0) if tape is None else (tensor.data_ptr() for tensor in tape)
        return StateRecord(
            front_state=self._front.state.data_ptr(),
            front_history=self._front.history.data_ptr(),
            back_state=self._back.state.data_ptr(),
            back_history=self._back.history.data_ptr(),
            qkv=qkv,
            k=k,
            delta=delta,
            alpha=alpha,
            capacity=0 if tape is None else tape.qkv.shape[1],
            continues=self._continues,
        )

    def commit(self, path: Sequence[int], nodes: OpenNodes) -> None:
        """Makes the memory after ``path`` the committed one: a swap where that is the whole chain, else a replay."""
        if not (nodes.is_chain and len(path) == len(nodes.parents) == self._reached):
            self._replayer(self, path)
        self._front, self._back = self._back, self._front
        self._close()

    def commit_chunk(self, length: int) -> None:
        """Makes the memory after a prefill chunk the committed one, and keeps the one before it, of ``length`` tokens.

        Nothing is kept of length 0, to which there is always a way back.
        """
        if length == 0:
            self._front, self._back = self._back, self._front
        else:
            spare = self._front.beside() if self._kept is None else self._kept
            self._front, self._kept, self._back = self._back, self._front, spare
            self._kept_length = length
        self._close()

    def restore(self, length: int) -> None:
        """Goes back to the memory of ``length`` tokens: 0, or :attr:`kept_length`."""
        with torch.inference_mode():
            if length == 0:
                self._front.clear()
                self._kept, self._kept_length = None, 0  # of a text that is gone
            else:
                assert self._kept is not None, length
                self._front.copy(self._kept)
        self._reached = 0

    def fork(self) -> RecurrentStates:
        """States of their own with the same committed memory; what was kept of an earlier length stays here."""
        with torch.inference_mode():
            other = RecurrentStates(self.shape, self.num_layers, self._front.history, self._replayer)
            other._front.copy(self._front)
        return other

    def fill_committed(self, length: int, generator: torch.Generator) -> None:
        """Makes up the memory of ``length`` tokens, and keeps it, for a test of the arithmetic."""
        with torch.inference_mode():
            for tensor in (self._front.state, self._front.history):
                tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=torch.float32))
            self._kept, self._kept_length = None, 0
            if length:
                self._kept, self._kept_length = self._front.beside(), length
                self._kept.copy(self._front)
            else:
                self._front.clear()
        self._reached = 0

    def _reserve(self, num_nodes: int, num_old: int) -> None:
        """Has a tape with room for ``num_nodes``, the rows of ``num_old`` as they were."""
        had = 0 if self._tape is None else self._tape.qkv.shape[1]
        if num_nodes <= had:
            return
        room, shape = max(num_nodes, 2 * had, _LEAST_TAPE), self.shape
        state, history = self._front.state, self._front.history
        tape = Tape(
            qkv=history.new_empty(self.num_layers, room, shape.channels),
            k=state.new_empty(self.num_layers, room, shape.num_key_heads, shape.key_dim),
            delta=state.new_empty(self.num_layers, room, shape.num_value_heads, shape.value_dim),
            alpha=state.new_empty(self.num_layers, room, shape.num_value_heads),
        )
        if self._tape is not None and num_old:
            for new, old in zip(tape, self._tape, strict=True):
                new.narrow(1, 0, num_old).copy_(old.narrow(1, 0, num_old))
        self._tape = tape

    def _close(self) -> None:
        """The round is over: the back holds nothing, and a long tape is let go of."""
        self._reached, self._continues = 0, False
        if self._tape is not None and self._tape.qkv.shape[1] > _MOST_KEPT_TAPE:
            self._tape = None


Replayer: TypeAlias = Callable[[RecurrentStates, Sequence[int]], None]
"""Writes to ``tentative`` of every layer the memory after a path of the open round, from ``committed`` and ``tape``.

It must give the very bits of the forwards whose tape it reads, so a model whose forwards run on the kernels hands its
caches theirs (one call for all layers on :attr:`RecurrentStates.record`), and one that runs on torch none."""


def replay_in_torch(states: RecurrentStates, path: Sequence[int]) -> None:
    """Replays layer by layer with the very operations of :func:`surefoot.ops.delta_rule.gated_delta`."""
    tape = states.tape
    assert tape is not None, "a round that was not written as a chain has a tape"
    with torch.inference_mode():
        for layer, (before, after) in enumerate(zip(states.committed.layers, states.tentative.layers, strict=True)):
            memory = replay(before, Tape(*(rows[layer] for rows in tape)), path)
            after.state.copy_(memory.state)
            after.history.copy_(memory.history)
