"""The training network of the hybrid: three Gated DeltaNet layers to one of gated attention, exactly as qwen3_5.

Norm weights are plain here; the export takes one from each, because the format's norms are zero-centred.

Shape suffixes: B batch, T time, D hidden, H heads, E key dimension, F value dimension, C convolved channels,
V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from recipes.pebble.network import (
    TARGET,
    Attention,
    Decoder,
    FeedForward,
    NetworkConfig,
    RMSNorm,
    causal_attention,
)
from torch import Tensor, nn

from surefoot.ops.delta_chunked import CHUNK_SIZE, gated_delta_chunked

NORM_EPSILON = 1e-6
CONV_SIZE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridConfig:
    """The sizes of one hybrid; everything outside the mixers is as in `dense`."""

    dense: NetworkConfig = TARGET
    delta_heads: int = 5
    key_size: int = 64
    value_size: int = 64
    attention_interval: int = 4

    def is_delta(self, layer: int) -> bool:
        """Returns whether this layer mixes by the delta rule."""
        return (layer + 1) % self.attention_interval != 0


HYBRID = HybridConfig()


class GatedAttention(Attention):
    """The dense attention whose heads' outputs are multiplied by the sigmoid of a gate."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config)
        self.gate = nn.Linear(config.hidden, self.row_blocks[0], bias=False)

    def forward(self, x_BTD: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
        batch, time, _ = x_BTD.shape
        mixed_BHTE = causal_attention(*self.project(x_BTD, cos_TE, sin_TE))
        mixed_BTD = mixed_BHTE.transpose(1, 2).reshape(batch, time, -1)
        return self.out(mixed_BTD * torch.sigmoid(self.gate(x_BTD)))


@dataclass(frozen=True, slots=True)
class Memory:
    """What a delta mixer knows of the tokens before: convolution rows [B, 3, C], states [B, H, E, F]."""

    rows: Tensor
    state: Tensor


class GatedDelta(nn.Module):
    """One Gated DeltaNet mixer: a short convolution, the gated delta rule, a gated norm."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.config = config
        hidden, heads = config.dense.hidden, config.delta_heads
        keys, values = heads * config.key_size, heads * config.value_size
        self.row_blocks = (keys, keys, values, values)
        self.qkvz = nn.Linear(hidden, sum(self.row_blocks), bias=False)
        self.rates = nn.Linear(hidden, 2 * heads, bias=False)
        self.conv = nn.Parameter(torch.zeros(2 * keys + values, CONV_SIZE))
        self.a_log = nn.Parameter(torch.zeros(heads))
        self.dt_bias = nn.Parameter(torch.zeros(heads))
        self.norm = RMSNorm(config.value_size)
        self.out = nn.Linear(values, hidden, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.out(self.mix(x_BTD)[0])

    def mix(self, x_BTD: Tensor, memory: Memory | None = None) -> tuple[Tensor, Memory]:
        """Returns the gated outputs of all heads [B, T, H * F], before the output projection, and what to go on from.

        Without a `memory` the sequence begins here.
        """
        heads, keys = self.config.delta_heads, self.row_blocks[0]
        qkv_BTC, z_BTD = self.qkvz(x_BTD).split((self.conv.shape[0], self.row_blocks[3]), dim=-1)
        before = qkv_BTC.new_zeros(len(x_BTD), CONV_SIZE - 1, qkv_BTC.shape[-1]) if memory is None else memory.rows
        rows_BTC = torch.cat([before, qkv_BTC], dim=1)
        q, k, v = convolved(rows_BTC, self.conv).split(self.row_blocks[:3], dim=-1)
        q_BTHE, k_BTHE = (unit(x.unflatten(-1, (heads, keys // heads))) for x in (q, k))
        with torch.autocast(x_BTD.device.type, enabled=False):
            b_BTH, a_BTH = nn.functional.linear(x_BTD.float(), self.rates.weight).chunk(2, dim=-1)
            log_decay_BTH = -self.a_log.exp() * nn.functional.softplus(a_BTH + self.dt_bias)
            q_BTHE = q_BTHE * self.config.key_size**-0.5
            out_BTHF, state = gated_delta_chunked(
                q_BTHE,
                k_BTHE,
                v.unflatten(-1, (heads, -1)),
                log_decay_BTH,
                torch.sigmoid(b_BTH),
                state_BHED=None if memory is None else memory.state,
                chunk_size=min(CHUNK_SIZE, x_BTD.shape[1]),
            )
        gate_BTHF = nn.functional.silu(z_BTD.float()).unflatten(-1, (heads, -1))
        return (self.norm(out_BTHF) * gate_BTHF).flatten(-2), Memory(rows_BTC[:, 1 - CONV_SIZE :], state)


class Layer(nn.Module):
    """One pre-norm decoder layer."""

    def __init__(self, config: HybridConfig, index: int) -> None:
        super().__init__()
        self.mixer_norm = RMSNorm(config.dense.hidden)
        self.mixer: GatedDelta | GatedAttention = (
            GatedDelta(config) if config.is_delta(index) else GatedAttention(config.dense)
        )
        self.feed_forward_norm = RMSNorm(config.dense.hidden)
        self.feed_forward = FeedForward(config.dense)

    def forward(self, x_BTD: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
        normed_BTD = self.mixer_norm(x_BTD)
        if isinstance(self.mixer, GatedDelta):
            x_BTD = x_BTD + self.mixer(normed_BTD)
        else:
            x_BTD = x_BTD + self.mixer(normed_BTD, cos_TE, sin_TE)
        return x_BTD + self.feed_forward(self.feed_forward_norm(x_BTD))


class Hybrid(Decoder):
    """The decoder whose layers mix by the delta rule or by attention."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__(config.dense, (Layer(config, index) for index in range(config.dense.layers)))
        self.config = config

    def mixer_matrices(self) -> Iterator[tuple[nn.Parameter, tuple[int, ...]]]:
        """Yields the mixers' matrices with the rows of the projections fused in each."""
        for layer in self.layers:
            assert isinstance(layer, Layer)
            mixer = layer.mixer
            if isinstance(mixer, GatedDelta):
                yield mixer.qkvz.weight, mixer.row_blocks
            else:
                yield mixer.qkv.weight, mixer.row_blocks
                yield mixer.gate.weight, (mixer.row_blocks[0],)
            yield mixer.out.weight, (self.config.dense.hidden,)


def convolved(rows_BTC: Tensor, weight_CK: Tensor) -> Tensor:
    """Returns silu of the convolution of each channel; the first rows, one less than taps, are only read."""
    taps = weight_CK.shape[1]
    time = rows_BTC.shape[1] - taps + 1
    rows_BTC = rows_BTC.float()
    return nn.functional.silu(sum(rows_BTC[:, tap : tap + time] * weight_CK[:, tap] for tap in range(taps)))


def unit(x_BTHE: Tensor) -> Tensor:
    """Returns the vectors at length one; epsilon is added to the sum of squares."""
    return x_BTHE * torch.rsqrt(x_BTHE.square().sum(-1, keepdim=True) + NORM_EPSILON)
