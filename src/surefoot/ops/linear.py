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


def linear(x_NK: Tensor, weight_MK: Tensor, bias_M: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``, ``[N, M]``, by the library's choice of kernel for this N."""
    return functional.linear(x_NK, weight_MK, bias_M)


def linear_blocks(x_NK: Tensor, weight_MK: Tensor, bias_M: Tensor | None) -> Tensor:
    """The same product in blocks of exactly ``BLOCK_ROWS`` rows, the last one padded with zeros.

    Libraries choose their kernel, and with it the order of summation, by the number of rows. With that number fixed and
    each block in memory of its own (hence equally aligned), a row's bits depend on that row alone.
    """
    num_rows = x_NK.shape[0]
    outputs = []
    for start in range(0, num_rows, BLOCK_ROWS):
        rows = x_NK[start : start + BLOCK_ROWS]
        block = x_NK.new_zeros(BLOCK_ROWS, x_NK.shape[1])
        block[: rows.shape[0]] = rows
        outputs.append(functional.linear(block, weight_MK, bias_M)[: rows.shape[0]])
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)
