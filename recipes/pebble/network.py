"""The training network: a dense decoder with exactly the mathematics of Hugging Face's Qwen3.

Shape suffixes: B batch, T time, D hidden, H query heads, K key-value heads, E head dimension, F feed-forward,
V vocabulary.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

NORM_EPSILON = 1e-6
ROPE_THETA = 10000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """The sizes of one network."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    head_size: int = 64
    vocabulary: int = 4096


TARGET = NetworkConfig(hidden=320, layers=8, heads=5, kv_heads=1, feed_forward=880)
DRAFT = NetworkConfig(hidden=256, layers=2, heads=4, kv_heads=1, feed_forward=704)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, computed in float32."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + NORM_EPSILON) * self.weight


class Attention(nn.Module):
    """Causal grouped-query attention with a norm on each head's query and key, then rotary positions."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.row_blocks = (
            config.heads * config.head_size,
            config.kv_heads * config.head_size,
            config.kv_heads * config.head_size,
        )
        self.qkv = nn.Linear(config.hidden, sum(self.row_blocks), bias=False)
        self.out = nn.Linear(self.row_blocks[0], config.hidden, bias=False)
        self.q_norm = RMSNorm(config.head_size)
        self.k_norm = RMSNorm(config.head_size)

    def project(self, x_BTD: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the turned queries [B, H, T, E], the turned keys and the values [B, K, T, E]."""
        batch, time, _ = x_BTD.shape
        size = self.config.head_size
        q, k, v = self.qkv(x_BTD).split(self.row_blocks, dim=-1)
        q_BHTE = self.q_norm(q.view(batch, time, -1, size)).transpose(1, 2)
        k_BKTE = self.k_norm(k.view(batch, time, -1, size)).transpose(1, 2)
        q_BHTE, k_BKTE = rotate(q_BHTE, cos_TE, sin_TE), rotate(k_BKTE, cos_TE, sin_TE)
        v_BKTE = v.view(batch, time, -1, size).transpose(1, 2)
        return q_BHTE.to(v.dtype), k_BKTE.to(v.dtype), v_BKTE

    def merge(self, mixed_BHTE: Tensor) -> Tensor:
        """Returns the heads' outputs projected back to [B, T, D]."""
        batch, _, time, _ = mixed_BHTE.shape
        return self.out(mixed_BHTE.transpose(1, 2).reshape(batch, time, -1))

    def forward(self, x_BTD: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
        return self.merge(causal_attention(*self.project(x_BTD, cos_TE, sin_TE)))


class FeedForward(nn.Module):
    """SwiGLU with the gate and the up projection in one matrix."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.row_blocks = (config.feed_forward, config.feed_forward)
        self.gate_up = nn.Linear(config.hidden, sum(self.row_blocks), bias=False)
        self.down = nn.Linear(config.feed_forward, config.hidden, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        gate_BTF, up_BTF = self.gate_up(x_BTD).split(self.row_blocks, dim=-1)
        return self.down(nn.functional.silu(gate_BTF) * up_BTF)


class Layer(nn.Module):
    """One pre-norm decoder layer."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden)
        self.attention = Attention(config)
        self.feed_forward_norm = RMSNorm(config.hidden)
        self.feed_forward = FeedForward(config)

    def forward(self, x_BTD: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), cos_TE, sin_TE)
        return x_BTD + self.feed_forward(self.feed_forward_norm(x_BTD))


class Decoder(nn.Module):
    """Layers between an embedding and itself as output matrix; a layer takes the stream and the rotary tables."""

    def __init__(self, config: NetworkConfig, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.head_size = config.head_size
        self.embedding = nn.Embedding(config.vocabulary, config.hidden)
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(config.hidden)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Returns the final normed hidden states [B, T, D]."""
        cos_TE, sin_TE = rotary_tables(ids_BT.shape[1], self.head_size, ids_BT.device)
        x_BTD = self.embedding(ids_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD, cos_TE, sin_TE)
        return self.norm(x_BTD)

    def logits(self, ids_BT: Tensor) -> Tensor:
        """Returns the logits [B, T, V]."""
        return nn.functional.linear(self(ids_BT), self.embedding.weight)


class Network(Decoder):
    """The dense decoder."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config, (Layer(config) for _ in range(config.layers)))
        self.config = config

    def matrices(self) -> Iterator[tuple[nn.Parameter, tuple[int, ...]]]:
        """Yields each hidden matrix with the rows of the projections fused in it."""
        for layer in self.layers:
            assert isinstance(layer, Layer)
            yield layer.attention.qkv.weight, layer.attention.row_blocks
            yield layer.attention.out.weight, (self.config.hidden,)
            yield layer.feed_forward.gate_up.weight, layer.feed_forward.row_blocks
            yield layer.feed_forward.down.weight, (self.config.hidden,)


def causal_attention(q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor) -> Tensor:
    """Returns the attention output [B, H, T, E]; each query sees the keys up to its own."""
    groups = q_BHTE.shape[1] // k_BKTE.shape[1]
    k_BHTE, v_BHTE = (x.repeat_interleave(groups, dim=1) for x in (k_BKTE, v_BKTE))
    return nn.functional.scaled_dot_product_attention(q_BHTE, k_BHTE, v_BHTE, is_causal=True)


def rotary_tables(time: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the cosines and sines [T, E] of positions 0 to `time`."""
    frequencies = ROPE_THETA ** (-torch.arange(0, size, 2, dtype=torch.float32, device=device) / size)
    angles = torch.outer(torch.arange(time, dtype=torch.float32, device=device), frequencies)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x_BHTE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    """Returns `x` turned by its positions, first half against second half (`rotate_half`)."""
    first, second = x_BHTE.chunk(2, dim=-1)
    return x_BHTE * cos_TE + torch.cat([-second, first], dim=-1) * sin_TE


def build_network(config: NetworkConfig, seed: int) -> Network:
    """Returns a freshly initialised network: normal weights, output projections at zero."""
    generator = torch.Generator().manual_seed(seed)
    network = Network(config)
    with torch.no_grad():
        network.embedding.weight.normal_(0.0, 0.02, generator=generator)
        for weight, _ in network.matrices():
            weight.normal_(0.0, 1.0 / math.sqrt(weight.shape[1]), generator=generator)
        for layer in network.layers:
            assert isinstance(layer, Layer)
            layer.attention.out.weight.zero_()
            layer.feed_forward.down.weight.zero_()
    return network


def count_parameters(network: Network) -> int:
    """Returns the number of weights; the tied output matrix counts once."""
    return sum(weight.numel() for weight in network.parameters())
