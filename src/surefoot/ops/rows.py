"""The two row arithmetics a model may run on: the library's fastest, and one whose rows do not know of each other.

Shape suffixes: N rows, K inputs, M outputs, G query heads, T rows read, D head size.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from surefoot.ops.attention import Round, Sight, attend, attend_rows, see, see_rows
from surefoot.ops.linear import linear, linear_blocks
from surefoot.ops.mlp import gated, gated_rows, swiglu, swiglu_rows


class RowArithmetic(Protocol):
    """The operations in which stock kernels let a row's bits depend on the other rows."""

    def linear(self, x_NK: Tensor, weight_MK: Tensor, bias_M: Tensor | None) -> Tensor:
        """``x @ weight.T + bias``."""
        ...

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """``silu(gate) * up`` for gate and up side by side."""
        ...

    def gated(self, x_NF: Tensor, gate_NF: Tensor) -> Tensor:
        """``x * sigmoid(gate)``."""
        ...

    def see(self, around: Round, window: int | None, group: int, dtype: torch.dtype, device: torch.device) -> Sight:
        """What the new rows of a round see, for :meth:`attend`."""
        ...

    def attend(self, q_NGD: Tensor, keys_KTD: Tensor, values_KTD: Tensor, sight: Sight) -> Tensor:
        """Attention over cache rows from ``sight.first`` on."""
        ...


class FastRows:
    """Every operation as one call of the library's kernel."""

    linear = staticmethod(linear)
    swiglu = staticmethod(swiglu)
    gated = staticmethod(gated)
    see = staticmethod(see)
    attend = staticmethod(attend)


class ExactRows:
    """Products in blocks of one fixed number of rows, activation, gates and attention row by row."""

    linear = staticmethod(linear_blocks)
    swiglu = staticmethod(swiglu_rows)
    gated = staticmethod(gated_rows)
    attend = staticmethod(attend_rows)

    @staticmethod
    def see(around: Round, window: int | None, group: int, dtype: torch.dtype, device: torch.device) -> Sight:
        """What the new rows see, as lists of cache rows; neither ``group`` nor ``dtype`` matters."""
        return see_rows(around, window, device)
