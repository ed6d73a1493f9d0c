"""Matrix products: the fast one, and one whose rows do not know how many they are.

Shape suffixes: N rows, K inputs, M outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

BLOCK_ROWS = 8
"""Rows of every product in exact arithmetic: enough for each of two threads to get the four that MKL's fp32 kernel for
several rows wants, and few enough to be nearly free in plain decoding."""
INPUT_STEP = 16
"""Inputs of every product in exact arithmetic come in whole steps of so many, zeros filling the last: rows that begin
elsewhere in a cache line are summed in another order. Published models have such widths already."""


def linear(x_NK: Tensor, weight_MK: Tensor, bias_M: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``, ``[N, M]``, by the library's choice of kernel for this N."""
    return functional.linear(x_NK, weight_MK, bias_M)


def linear_blocks(x_NK: Tensor, weight_MK: Tensor, bias_M: Tensor | None) -> Tensor:
    """The same product in blocks of exactly ``BLOCK_ROWS`` rows, the last one padded with zeros.

    Libraries choose their kernel, and with it the order of summation, by the number of rows. With that number fixed and
    each block in memory of its own, its rows whole steps apart (hence all equally aligned), a row's bits depend on that
    row alone.
    """
    num_rows, width = x_NK.shape
    padding = -width % INPUT_STEP
    if padding:
        weight_MK = functional.pad(weight_MK, (0, padding))
    outputs = []
    for start in range(0, num_rows, BLOCK_ROWS):
        rows = x_NK[start : start + BLOCK_ROWS]
        block = x_NK.new_zeros(BLOCK_ROWS, width + padding)
        block[: rows.shape[0], :width] = rows
        outputs.append(functional.linear(block, weight_MK, bias_M)[: rows.shape[0]])
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)
