"""Many blocks of a sequence in one forward: where they begin, what they may see, and what they should say.

A block begins at an anchor, a token of the text; each of its rows sees the context before the anchor, and its own
block. So one forward over all blocks is what each would be alone (Chen et al. 2026, arXiv 2602.06036).

Shape suffixes: W sequences side by side, S tokens of one, N blocks of one, B rows of a block, K = B - 1 of them that
stand for tokens, Q = N * B.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surefoot.train.data import Sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Blocks of sequences side by side.

    Attributes:
        anchors: where each begins, int64 ``[W, N]``.
        first: the tokens there, int64 ``[W, N]``.
        labels: the tokens after them, int64 ``[W, N, K]``; any id where they do not count.
        valid: which of these count, bool ``[W, N, K]``: a block ends where what is learnt ends.
        length: S, or less where no block begins later: rows of context that may be seen.
        weight: the sum of the weights of all that count.
    """

    anchors: Tensor
    first: Tensor
    labels: Tensor
    valid: Tensor
    length: int
    weight: float

    @property
    def positions(self) -> Tensor:
        """Where the rows stand: int64 ``[W, Q]``."""
        rows = torch.arange(self.labels.shape[-1] + 1, device=self.anchors.device)
        return (self.anchors[..., None] + rows).flatten(1)

    @property
    def visible(self) -> Tensor:
        """Which rows of context, then of blocks, each row sees: bool ``[W, Q, S + Q]``."""
        return sparse_mask(self.anchors, self.length, self.labels.shape[-1] + 1)

    def groups(self, size: int) -> Iterator[Blocks]:
        """The same blocks, so many of each sequence at a time, each group with no more context than its last sees."""
        for start in range(0, self.anchors.shape[1], size):
            part = slice(start, start + size)
            yield replace(
                self,
                anchors=self.anchors[:, part],
                first=self.first[:, part],
                labels=self.labels[:, part],
                valid=self.valid[:, part],
                length=max(1, int(self.anchors[:, part].max())),
            )


def sparse_mask(anchors_WN: Tensor, length: int, block_size: int) -> Tensor:
    """The context before its block's anchor, and its own block: bool ``[W, Q, S + Q]``.

    The anchor's own place in the context is not seen: when drafting the target has not read it yet.
    """
    device = anchors_WN.device
    rows_WQ = anchors_WN.repeat_interleave(block_size, dim=1)
    context_WQS = torch.arange(length, device=device) < rows_WQ[..., None]
    block_Q = torch.arange(rows_WQ.shape[1], device=device) // block_size
    own_QQ = block_Q[:, None] == block_Q
    return torch.cat((context_WQS, own_QQ.expand(len(rows_WQ), -1, -1)), -1)


def draw_anchors(learnt_S: NDArray[np.bool_], count: int, stream: np.random.Generator) -> NDArray[np.int64]:
    """At most ``count`` places, ascending, none twice, whose token and the next are learnt; never the first place,
    which has no context."""
    places = 1 + np.flatnonzero(learnt_S[1:-1] & learnt_S[2:])
    return np.sort(stream.choice(places, size=min(count, len(places)), replace=False))


def make_blocks(
    sequences: Sequences, anchors: Sequence[NDArray[np.int64]], slot_weights: NDArray[np.float32], device: torch.device
) -> Blocks:
    """The blocks that begin at ``anchors`` of each sequence; where one has fewer than another, or none has any, blocks
    that do not count fill up. ``slot_weights`` is ``[K]``."""
    num_slots, length = len(slot_weights), sequences.length
    shape = (len(sequences), max(1, *map(len, anchors)))
    anchors_WN, kept_WN = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.bool_)
    for row, places in enumerate(anchors):
        anchors_WN[row, : len(places)], kept_WN[row, : len(places)] = places, True
    places_WNK = anchors_WN[..., None] + 1 + np.arange(num_slots)
    inside_WNK = np.minimum(places_WNK, length - 1)
    each_W = np.arange(len(sequences))[:, None, None]
    learnt_WNK = sequences.learnt[each_W, inside_WNK] & (places_WNK < length) & kept_WN[..., None]
    valid_WNK = np.logical_and.accumulate(learnt_WNK, axis=-1)
    labels_WNK = sequences.ids[each_W, inside_WNK].astype(np.int64)
    first_WN = sequences.ids[each_W[..., 0], anchors_WN].astype(np.int64)
    on_device = [torch.from_numpy(array).to(device) for array in (anchors_WN, first_WN, labels_WNK, valid_WNK)]
    return Blocks(
        anchors=on_device[0],
        first=on_device[1],
        labels=on_device[2],
        valid=on_device[3],
        length=length,
        weight=float((valid_WNK * slot_weights).sum()),
    )
