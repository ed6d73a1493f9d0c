"""The depthwise causal convolution before a delta layer's rule, over a history in chronological order.

Shape suffixes: N new rows, E rows of history and round end to end, C channels, K taps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def causal_conv(rows_EC: Tensor, taps_CK: Tensor, parents: Sequence[int], num_new: int) -> Tensor:
    """Each new node's window of the last K rows up to its own, times the taps, summed: ``[N, C]``.

    Args:
        rows_EC: the K - 1 rows before the round, oldest first, then one row for each of its nodes.
        taps_CK: each channel's taps, oldest first.
        parents: those of all nodes of the round, the new ones last; a window reaches back along ancestors, and from
            the root on into the history.
        num_new: how many of the nodes are new.

    Half-width rows are multiplied and summed in fp32, and the sum is rounded once. Products and sums are single
    operations, in the order of time, so a row's bits are those it has alone.
    """
    num_taps = taps_CK.shape[1]
    wide = rows_EC.dtype if rows_EC.dtype == torch.float64 else torch.float32
    taps_KC = taps_CK.t().to(wide).contiguous()
    first = len(parents) - num_new
    if all(parents[node] == node - 1 for node in range(len(parents))):
        seen = [rows_EC.narrow(0, first + tap, num_new) for tap in range(num_taps)]
    else:
        windows = window_rows(parents, num_new, num_taps)
        seen = [rows_EC.index_select(0, row) for row in torch.tensor(windows, device=rows_EC.device).t()]
    summed = seen[0].to(wide) * taps_KC[0]
    for tap in range(1, num_taps):
        summed += seen[tap].to(wide) * taps_KC[tap]
    return summed.to(rows_EC.dtype)


def window_rows(parents: Sequence[int], num_new: int, num_taps: int) -> list[list[int]]:
    """For each new node the rows of its window, oldest first, counted from the start of the history."""
    return [_last_rows(parents, node, num_taps, num_taps - 1) for node in range(len(parents) - num_new, len(parents))]


def history_after(history_KC: Tensor, rows_NC: Tensor) -> Tensor:
    """The history after more rows of a chain: the last of both, as many as there were."""
    kept = history_KC.shape[0]
    if rows_NC.shape[0] >= kept:
        return rows_NC.narrow(0, rows_NC.shape[0] - kept, kept)
    return torch.cat((history_KC, rows_NC))[rows_NC.shape[0] :]


def _last_rows(parents: Sequence[int], node: int, count: int, num_before: int) -> list[int]:
    """``node`` and the rows before it on its path, ``num_before`` of them older than the round; oldest first."""
    rows = []
    for _ in range(count):
        rows.append(num_before + node)
        node = parents[node] if node >= 0 else node - 1
    return rows[::-1]
