"""The network of a DFlash drafter, with the released tensors' names; differentiable, for training and as reference.

What it knows of the text enters as keys and values only: the same normalised mixture of the target's layers goes into
every layer's key and value projections and is never changed by the layers. The block's rows are the residual stream.

Shape suffixes: Q rows of blocks, S rows of context, H hidden, T layers read, G heads, D head size. Leading dimensions
before them, if any, are a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from surefoot.drafters.dflash.config import DFlashConfig
from surefoot.ops.norm import rms_norm


class RmsNorm(nn.Module):
    """A root-mean-square norm with a weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """``x [..., size]`` normalised."""
        return rms_norm(x.to(self.weight.dtype), self.weight, self._eps)


class Attention(nn.Module):
    """Queries of the block over keys and values of context and block."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        hidden, query, kv, size = config.hidden_size, config.query_size, config.kv_size, config.head_dim
        self.q_proj = nn.Linear(hidden, query, bias=False)
        self.k_proj = nn.Linear(hidden, kv, bias=False)
        self.v_proj = nn.Linear(hidden, kv, bias=False)
        self.o_proj = nn.Linear(query, hidden, bias=False)
        self.q_norm = RmsNorm(size, config.rms_norm_eps)
        self.k_norm = RmsNorm(size, config.rms_norm_eps)
        self._head_dim = size

    def keys_values(self, rows_H: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Rotated keys and values of rows, context or block: ``[..., G, rows, D]`` each."""
        keys = turn(self.k_norm(self._heads(self.k_proj(rows_H))), angles)
        return keys, self._heads(self.v_proj(rows_H))

    def forward(
        self, x_QH: Tensor, angles: tuple[Tensor, Tensor], keys: Tensor, values: Tensor, visible: Tensor | None
    ) -> Tensor:
        """Attention of the block's rows, ``visible [..., Q, keys]`` saying which keys each sees, all without it:
        ``[..., Q, H]``."""
        queries = turn(self.q_norm(self._heads(self.q_proj(x_QH))), angles)
        mixed = functional.scaled_dot_product_attention(
            queries,
            keys,
            values.to(queries.dtype),
            attn_mask=None if visible is None else visible.unsqueeze(-3),
            enable_gqa=True,
        )
        out: Tensor = self.o_proj(mixed.transpose(-3, -2).flatten(-2).to(x_QH.dtype))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (-1, self._head_dim))
        return heads.transpose(-3, -2)


class FeedForward(nn.Module):
    """A SwiGLU feed-forward."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``down(silu(gate(x)) * up(x))``."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """Attention and feed-forward, each after a norm of the block's rows; the context's are not normalised again."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = FeedForward(config)


class DFlashNetwork(nn.Module):
    """The drafter's parameters; embedding and output head are the target's."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.num_taps * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))

    def cast(self, dtype: torch.dtype) -> None:
        """Turns every parameter into ``dtype``."""
        self.to(dtype)

    def context(self, taps: Tensor) -> Tensor:
        """The rows every layer reads, ``[..., S, H]``, of the target's layers side by side, ``[..., S, T * H]``."""
        out: Tensor = self.hidden_norm(self.fc(taps))
        return out

    def forward(
        self,
        noise: Tensor,
        noise_positions: Tensor,
        context: Tensor,
        context_positions: Tensor,
        visible: Tensor,
    ) -> Tensor:
        """The hidden states the target's head reads, of all rows: ``[..., Q, H]``.

        Args:
            noise: embeddings of anchors and masks, ``[..., Q, H]``; several blocks may lie side by side.
            noise_positions: where they stand, ``[..., Q]``.
            context: rows of :meth:`context`, ``[..., S, H]``.
            context_positions: where they stand, ``[..., S]``.
            visible: bool ``[..., Q, S + Q]``, which rows of context, then of blocks, each row may see. Windows and
                causality of single layers are taken off here.
        """
        own, other = self.angles(noise_positions, noise), self.angles(context_positions, noise)
        positions = torch.cat((context_positions, noise_positions), -1)
        distances = noise_positions.unsqueeze(-1) - positions.unsqueeze(-2)
        x = noise
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer), layer
            normed = layer.input_layernorm(x)
            pairs = zip(
                layer.self_attn.keys_values(context, other), layer.self_attn.keys_values(normed, own), strict=True
            )
            keys, values = (torch.cat(pair, -2) for pair in pairs)
            sight = self.sight(index, distances)
            sight = visible if sight is None else visible & sight
            x = x + layer.self_attn(normed, own, keys, values, sight)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.normalised(x)

    def normalised(self, x: Tensor) -> Tensor:
        """What the target's head reads, of the stream after the last layer."""
        out: Tensor = self.norm(x)
        return out

    def angles(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines ``[..., 1, rows, D]`` of positions ``[..., rows]``, in the wider of fp32 and ``like``."""
        rope = self.config.rope
        frequencies = rope.scaling.frequencies(rope.theta, rope.dim, self.config.context_length, like.device)
        turned = positions.to(torch.float32).unsqueeze(-1) * frequencies
        turned = torch.cat((turned, turned), -1).unsqueeze(-3)
        wide = torch.float64 if like.dtype == torch.float64 else torch.float32
        factor = rope.scaling.attention_factor
        return (turned.cos() * factor).to(wide), (turned.sin() * factor).to(wide)

    def sight(self, index: int, distances: Tensor) -> Tensor | None:
        """What a layer's window and causality leave to be seen, by how far before its row a key stands: bool, or None
        where they hide nothing."""
        window, causal = self.config.windows[index], self.config.causal[index]
        if causal:
            return distances >= 0 if window is None else (distances >= 0) & (distances < window)
        return None if window is None else distances < window


def turn(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates heads ``[..., G, rows, D]``, half-split; the result is in the dtype of ``x``."""
    cosines, sines = angles
    low, high = x.chunk(2, -1)
    return (x * cosines + torch.cat((-high, low), -1) * sines).to(x.dtype)
