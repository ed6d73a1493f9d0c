"""The parameters of a decoder layer, and plain views of them for the forward.

Shape legend: H hidden, Q all query heads together, X query, key and value heads together, F feed-forward, G query
and key heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from surefoot.models.config import DecoderConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer's tensors as the forward reads them, without a module call.

    Shapes: ``qkv [X, H]``, ``qk_norm [G, D]`` (None without norms on heads), ``out [H, Q]``, ``gate_up [2F, H]``,
    ``down [H, F]``; norms ``[H]``; biases as long as their linear's rows, or None.
    """

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class DecoderLayer(nn.Module):
    """One layer's parameters; query, key and value in one matrix, gate and up in another, one below the other."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        fused = config.query_size + 2 * config.kv_size
        self._config = config
        self.attention_norm = _parameter(hidden)
        self.qkv = _parameter(fused, hidden)
        self.qkv_bias = _parameter(fused) if config.qkv_bias else None
        self.q_norm = _parameter(config.head_dim) if config.qk_norm else None
        self.k_norm = _parameter(config.head_dim) if config.qk_norm else None
        self.out = _parameter(hidden, config.query_size)
        self.out_bias = _parameter(hidden) if config.out_bias else None
        self.mlp_norm = _parameter(hidden)
        self.gate_up = _parameter(2 * inner, hidden)
        self.gate_up_bias = _parameter(2 * inner) if config.mlp_bias else None
        self.down = _parameter(hidden, inner)
        self.down_bias = _parameter(hidden) if config.mlp_bias else None

    def views(self) -> LayerWeights:
        """The tensors behind the parameters; the norms of query and key heads side by side, a row per head."""
        return LayerWeights(
            attention_norm=self.attention_norm.detach(),
            qkv=self.qkv.detach(),
            qkv_bias=_detached(self.qkv_bias),
            qk_norm=self._head_norms(),
            out=self.out.detach(),
            out_bias=_detached(self.out_bias),
            mlp_norm=self.mlp_norm.detach(),
            gate_up=self.gate_up.detach(),
            gate_up_bias=_detached(self.gate_up_bias),
            down=self.down.detach(),
            down_bias=_detached(self.down_bias),
        )

    def _head_norms(self) -> Tensor | None:
        if self.q_norm is None or self.k_norm is None:
            return None
        heads = (self.q_norm.expand(self._config.num_heads, -1), self.k_norm.expand(self._config.num_kv_heads, -1))
        return torch.cat(heads).detach()


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape), requires_grad=False)


def _detached(parameter: nn.Parameter | None) -> Tensor | None:
    return None if parameter is None else parameter.detach()
