"""Attention of new rows over a cache: grouped queries, trees, sliding windows.

Shape suffixes: N new rows, G query heads, K key-value heads, R query heads per key-value head, T rows read, D head
size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from surefoot.tree import ancestor_mask

FOLD_ROWS = 16
"""Up to this many rows, the query heads that share a key head become rows of one product, so that keys are read
once."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What the new rows of one sequence see, in a form ready for every layer with the same window.

    Attributes:
        first: the first cache row that is read.
        bias: added to the scores, 0 or -inf; None where every row sees all that is read.
        rows: for row-by-row attention, the cache rows each new row sees, in ascending order of position.
    """

    first: int
    bias: Tensor | None
    rows: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class Round:
    """Where the new rows of one forward stand.

    Attributes:
        length: committed tokens; cache row ``j < length`` has position ``j``, and node ``i`` of the round is row
            ``length + i``.
        parents: parents of all nodes of the round, the new ones last.
        depths: their depths; a node's position is ``length`` plus its depth.
        num_new: how many of the nodes are new.
        is_chain: whether every node is the child of the one before it.
    """

    length: int
    parents: Sequence[int]
    depths: Sequence[int]
    num_new: int
    is_chain: bool

    @property
    def stop(self) -> int:
        """One past the last cache row in use."""
        return self.length + len(self.parents)

    def first_visible(self, window: int | None) -> int:
        """The first cache row any new row sees."""
        if window is None:
            return 0
        shallowest = min(self.depths[-self.num_new :])
        return min(max(0, self.length + shallowest - window + 1), self.length)


def see(around: Round, window: int | None, group: int, dtype: torch.dtype, device: torch.device) -> Sight:
    """The sight of the new rows for :func:`attend`, ``group`` query heads to a key head."""
    first = around.first_visible(window)
    num_new, num_read = around.num_new, around.stop - first
    if num_new == 1 and around.is_chain:
        # A window cuts a chain's only row off at its first visible row, committed or not.
        start = 0 if window is None else max(0, around.stop - window)
        return Sight(start, None)
    if around.is_chain and (window is None or around.stop <= window):
        bias_NT = torch.full((num_new, num_read), -torch.inf, dtype=dtype, device=device)
        bias_NT.triu_(num_read - num_new + 1)
    else:
        hidden_NT = ~_visible(around, window)[:, first:]
        bias_NT = torch.zeros(hidden_NT.shape, dtype=dtype).masked_fill_(hidden_NT, -torch.inf).to(device)
    if num_new > FOLD_ROWS:
        return Sight(first, bias_NT)
    return Sight(first, bias_NT.repeat_interleave(group, 0))


def see_rows(around: Round, window: int | None, device: torch.device) -> Sight:
    """The sight of the new rows for :func:`attend_rows`."""
    visible_NT = _visible(around, window)
    rows = tuple(row.nonzero().flatten().to(device) for row in visible_NT)
    return Sight(0, None, rows)


def _visible(around: Round, window: int | None) -> Tensor:
    """Bool ``[N, stop]``: the committed rows and a node's own ancestors, as far back as the window reaches.

    Rows of a path ascend with position, so compacting a row of this keeps the order of positions.
    """
    if around.is_chain:
        visible_NT = torch.ones(around.num_new, around.stop, dtype=torch.bool).tril_(around.stop - around.num_new)
        positions_T = torch.arange(around.stop)
    else:
        committed = torch.ones(around.num_new, around.length, dtype=torch.bool)
        visible_NT = torch.cat((committed, ancestor_mask(around.parents)[-around.num_new :]), 1)
        positions_T = torch.cat((torch.arange(around.length), around.length + torch.tensor(around.depths)))
    if window is not None:
        visible_NT &= positions_T[-around.num_new :, None] - positions_T < window
    return visible_NT


def attend(q_NGD: Tensor, keys_KTD: Tensor, values_KTD: Tensor, sight: Sight) -> Tensor:
    """Attention of all new rows at once: ``[N, G * D]``. Keys and values start at ``sight.first``."""
    num_rows, num_heads, head_dim = q_NGD.shape
    num_kv = keys_KTD.shape[0]
    group = num_heads // num_kv
    if num_rows == 1:
        q_1KRD = q_NGD.reshape(1, num_kv, group, head_dim)
        out = functional.scaled_dot_product_attention(q_1KRD, keys_KTD[None], values_KTD[None], attn_mask=sight.bias)
        return out.view(1, num_heads * head_dim)
    q_NKRD = q_NGD.reshape(num_rows, num_kv, group, head_dim)
    if num_rows <= FOLD_ROWS:
        q_1KSD = q_NKRD.transpose(0, 1).reshape(1, num_kv, num_rows * group, head_dim)
        out = functional.scaled_dot_product_attention(q_1KSD, keys_KTD[None], values_KTD[None], attn_mask=sight.bias)
        return out.view(num_kv, num_rows, group, head_dim).transpose(0, 1).reshape(num_rows, num_heads * head_dim)
    shape = (num_kv, group, keys_KTD.shape[1], head_dim)
    keys_KRTD, values_KRTD = keys_KTD[:, None].expand(shape), values_KTD[:, None].expand(shape)
    q_KRND = q_NKRD.permute(1, 2, 0, 3)
    out = functional.scaled_dot_product_attention(q_KRND, keys_KRTD, values_KRTD, attn_mask=sight.bias)
    return out.permute(2, 0, 1, 3).reshape(num_rows, num_heads * head_dim)


def attend_rows(q_NGD: Tensor, keys_KTD: Tensor, values_KTD: Tensor, sight: Sight) -> Tensor:
    """Attention row by row over compacted visible keys in ascending order of position: ``[N, G * D]``.

    Every product's shape depends only on how many keys the row sees, and every operand is in memory of its own, so a
    row's bits depend neither on the rows beside it nor on where in the cache its keys lie.
    """
    num_heads, head_dim = q_NGD.shape[1:]
    num_kv = keys_KTD.shape[0]
    scale = head_dim**-0.5
    outputs = []
    for row, visible_T in enumerate(sight.rows):
        keys_KSD, values_KSD = keys_KTD.index_select(1, visible_T), values_KTD.index_select(1, visible_T)
        q_KRD = q_NGD[row].reshape(num_kv, num_heads // num_kv, head_dim).clone()
        scores_KRS = torch.bmm(q_KRD, keys_KSD.transpose(1, 2)) * scale
        weights_KRS = scores_KRS.softmax(-1, dtype=_softmax_dtype(scores_KRS.dtype)).to(values_KSD.dtype)
        outputs.append(torch.bmm(weights_KRS, values_KSD).view(1, num_heads * head_dim))
    return torch.cat(outputs)


def _softmax_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
