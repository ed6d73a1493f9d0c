"""The activation of a SwiGLU feed-forward (Shazeer 2020, arXiv 2002.05202), and gates on what a layer gives.

Shape suffixes: N rows, F features.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def swiglu(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up`` for gate and up side by side: ``[N, 2F] -> [N, F]``."""
    gate_NF, up_NF = gate_up.chunk(2, -1)
    return functional.silu(gate_NF).mul_(up_NF)


def swiglu_rows(gate_up: Tensor) -> Tensor:
    """The same, one row at a time.

    The vectorised exponential and its scalar tail differ in the last bit, and which elements fall into the tail
    depends on how many rows are laid end to end; a row by itself always splits the same way.
    """
    return torch.cat([swiglu(row_Y[None].clone()) for row_Y in gate_up.unbind()])


def gated(x_NF: Tensor, gate_NF: Tensor) -> Tensor:
    """``x * sigmoid(gate)`` in the dtype of ``x``; a gate ``[N, 1]`` is one for all of its row."""
    return torch.sigmoid(gate_NF.to(x_NF.dtype)) * x_NF


def gated_rows(x_NF: Tensor, gate_NF: Tensor) -> Tensor:
    """The same with the exponential one row at a time, as in :func:`swiglu_rows`."""
    opened = [torch.sigmoid(row_F.clone()) for row_F in gate_NF.to(x_NF.dtype).unbind()]
    return torch.stack(opened) * x_NF
