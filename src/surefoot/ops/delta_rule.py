"""Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464): the sizes and weights of one layer's recurrence."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaShape:
    """The sizes of a Gated DeltaNet layer.

    Attributes:
        num_key_heads: heads of queries and keys; each serves ``num_value_heads / num_key_heads`` value heads.
        num_value_heads: heads of values and of the state.
        key_dim: size of a query or key head.
        value_dim: size of a value head.
        conv_size: taps of the causal convolution.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_size: int = 4

    @property
    def key_size(self) -> int:
        """Width of all keys side by side, and of all queries."""
        return self.num_key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        """Width of all values side by side."""
        return self.num_value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """What the convolution reads: queries, keys and values side by side."""
        return 2 * self.key_size + self.value_size

    @property
    def projected(self) -> int:
        """Rows of the input projection: the channels, the output gate (as wide as the values), and two gates a head."""
        return self.channels + self.value_size + 2 * self.num_value_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaParameters:
    """What a Gated DeltaNet layer holds beside its projections.

    Attributes:
        conv: taps ``[C, K]`` of each channel, oldest first, in the model's dtype.
        a_log: fp32 ``[Hv]``, the logarithm of each head's decay rate.
        dt_bias: fp32 ``[Hv]``, what is added to a head's decay gate.
        norm: ``[Dv]``, the weight of the norm of each head's output, as it is (not ``1 + w``).
        eps: of that norm.
    """

    conv: Tensor
    a_log: Tensor
    dt_bias: Tensor
    norm: Tensor
    eps: float
