"""Delta blocks driven through their records alone, and the same blocks by the plain operations.

Shape suffixes: N rows, H hidden, P projected, Y all value heads together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from tests.native.driving import EPS, Node, call, draw, narrowing, nodes_of
from torch import Tensor
from torch.nn import functional

from surefoot.cache.base import OpenNodes, Transaction
from surefoot.cache.recurrent import RecurrentStates
from surefoot.models.native_blocks import delta_block
from surefoot.models.native_states import NUM_WORDS, NativeReplayer, state_words
from surefoot.models.weights import DeltaWeights
from surefoot.native.library import required
from surefoot.native.records import Sequence as SequenceRecord
from surefoot.native.records import States
from surefoot.ops.delta_rule import DeltaParameters, DeltaShape, gated_delta
from surefoot.ops.norm import rms_norm

LAYER, LAYERS = 1, 2
"""A block stands in the second of two layers, so that a wrong offset into states or tape shows."""
COMMITTED = 9


@dataclass
class Text:
    """One sequence: its states, and how its round stands."""

    states: RecurrentStates
    transaction: Transaction = field(default_factory=lambda: Transaction(4096))

    def commit(self, path: Sequence[int]) -> None:
        """Commits a path of the open round."""
        self.states.commit(path, self.transaction.open)
        self.transaction.begin_commit()
        self.transaction.end_commit(len(path))

    def commit_chunk(self, count: int) -> None:
        """Commits a chunk that kept no tape."""
        self.states.commit_chunk(self.transaction.length)
        self.transaction.begin_commit()
        self.transaction.end_commit(count)

    @property
    def memory(self) -> tuple[Tensor, Tensor]:
        """Copies of the block's state and history, as committed."""
        committed = self.states.committed
        return committed.state[LAYER].clone(), committed.history[LAYER].clone()


class DeltaBlock:
    """A delta block of random weights."""

    def __init__(self, shape: DeltaShape, hidden: int, dtype: torch.dtype) -> None:
        self.shape, self.hidden, self.dtype = shape, hidden, dtype
        heads = shape.num_value_heads
        in_proj = draw(shape.projected, hidden) * hidden**-0.5
        in_proj[-2 * heads :] *= 2
        self.weights = DeltaWeights(
            norm=1 + 0.2 * draw(hidden),
            in_proj=in_proj.to(dtype),
            parameters=DeltaParameters(
                conv=(0.6 * draw(shape.channels, shape.conv_size)).to(dtype),
                a_log=0.5 * draw(heads) - 1,
                dt_bias=draw(heads, seed=1),
                norm=(1 + 0.2 * draw(shape.value_dim)).to(dtype),
                eps=EPS,
            ),
            out=(draw(hidden, shape.value_size) * shape.value_size**-0.5).to(dtype),
        )
        self.block = delta_block(self.weights, shape, slot=LAYER, eps=EPS)

    def text(self, seed: int = 3) -> Text:
        """A sequence of some committed tokens."""
        states = RecurrentStates(self.shape, LAYERS, torch.empty(0, dtype=self.dtype), NativeReplayer(required()))
        states.fill_committed(COMMITTED, torch.Generator().manual_seed(seed))
        text = Text(states)
        text.transaction.begin_commit()
        text.transaction.end_commit(COMMITTED)
        return text

    def run(
        self,
        x_NH: Tensor,
        rounds: Sequence[tuple[Text, Sequence[int]]],
        *,
        keeps_tape: bool = True,
        as_rows: bool = False,
    ) -> Tensor:
        """The block on rows ``x_NH``, of which each sequence brings as many as it has parents; their rounds grow.

        ``as_rows`` lays chains out as trees are; otherwise all before a row of a chain lies in one piece.
        """
        nodes: list[Node] = []
        words, records = (States * len(rounds))(), (SequenceRecord * len(rounds))()
        for index, (text, parents) in enumerate(rounds):
            before, length = text.transaction.open, text.transaction.length
            grown = text.transaction.extended(parents)
            text.states.open(before, grown, keeps_tape=keeps_tape)
            told = state_words(text.states, grown, length, len(nodes), len(parents))
            assert len(told) == NUM_WORDS
            words[index] = States(*told)
            records[index].states = words[index].address
            nodes += rows_of(grown, length, len(before.parents), index, as_rows=as_rows)
            text.transaction.open = grown if keeps_tape else before
        return call(x_NH, self.block.kind, self.block.record, nodes, records)  # type: ignore[arg-type]

    def reference(self, x_NH: Tensor, text: Text, parents: Sequence[int], *, rounds: bool) -> Tensor:
        """The same of one sequence by the plain operations, products in fp64; with ``rounds``, rounded where the
        kernels round."""
        narrow = narrowing(self.dtype) if rounds else narrowing(torch.float32)
        dtype = self.dtype if rounds else torch.float32
        weights, parameters = self.weights, self.weights.parameters
        before = text.transaction.open
        grown = text.transaction.extended(parents)
        text.states.open(before, grown, keeps_tape=True)
        place = text.states.places(grown, len(parents))[LAYER]
        x = x_NH.double()
        h = narrow(rms_norm(x, weights.norm.double(), EPS))
        projected_NP = narrow(functional.linear(h, weights.in_proj.double())).to(dtype)
        wide = DeltaParameters(
            conv=parameters.conv.to(dtype),
            a_log=parameters.a_log,
            dt_bias=parameters.dt_bias,
            norm=parameters.norm.to(dtype),
            eps=EPS,
        )
        mixed_NY = gated_delta(projected_NP, wide, self.shape, place).double()
        text.transaction.open = grown
        return narrow(x + narrow(functional.linear(mixed_NY, weights.out.double())))


def rows_of(nodes: OpenNodes, length: int, first: int, sequence: int, *, as_rows: bool) -> list[Node]:
    """The records of a round's nodes from ``first`` on."""
    if not nodes.is_chain or as_rows:
        return nodes_of(nodes.parents, length, first=first, sequence=sequence)
    places = range(length + first, length + len(nodes.parents))
    return [Node(sequence, place, place, place, (place,)) for place in places]
