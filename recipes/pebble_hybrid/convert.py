"""Makes a hybrid out of the trained dense model, so that little is left to learn.

Everything outside the replaced mixers is copied. The kept attention layers get a gate that is one half everywhere and
output weights twice as large, which is the same function. A delta mixer takes the replaced attention's projections,
each query head with the one shared key and value; its heads forget at different rates.
"""

import math

import torch
from recipes.pebble.network import Layer as DenseLayer
from recipes.pebble.network import Network
from recipes.pebble_hybrid.network import CONV_SIZE, GatedAttention, GatedDelta, Hybrid, HybridConfig, Layer
from torch import Tensor

FORGOTTEN = (0.002, 0.01, 0.04, 0.15, 0.5)
"""The share of its state that each head forgets per token, at first; fewer heads take every so many of these."""
CONVOLVED = 0.3
"""The own tap of a fresh convolution: small, where silu is nearly linear; the norms after it undo the scale."""


def convert(dense: Network, config: HybridConfig, seed: int) -> Hybrid:
    """Returns the hybrid of a trained dense network."""
    random = torch.Generator().manual_seed(seed)
    hybrid = Hybrid(config)
    with torch.no_grad():
        hybrid.embedding.weight.copy_(dense.embedding.weight)
        hybrid.norm.weight.copy_(dense.norm.weight)
        for source, layer in zip(dense.layers, hybrid.layers, strict=True):
            assert isinstance(source, DenseLayer)
            assert isinstance(layer, Layer)
            layer.mixer_norm.load_state_dict(source.attention_norm.state_dict())
            layer.feed_forward_norm.load_state_dict(source.feed_forward_norm.state_dict())
            layer.feed_forward.load_state_dict(source.feed_forward.state_dict())
            if isinstance(layer.mixer, GatedAttention):
                _copy_attention(source, layer.mixer)
            else:
                _start_delta(source, layer.mixer, random)
    return hybrid


def _copy_attention(source: DenseLayer, mixer: GatedAttention) -> None:
    mixer.load_state_dict({**source.attention.state_dict(), "gate.weight": torch.zeros_like(mixer.gate.weight)})
    mixer.out.weight.mul_(2.0)


def _start_delta(source: DenseLayer, mixer: GatedDelta, random: torch.Generator) -> None:
    config, attention = mixer.config, source.attention
    heads, size = config.delta_heads, attention.config.head_size
    if (heads, config.value_size) != (attention.config.heads, size):
        raise ValueError(f"{heads} heads of {config.value_size} cannot take over {attention.config.heads} of {size}")
    q, k, v = attention.qkv.weight.split(attention.row_blocks)
    narrow = torch.randn(config.key_size, size, generator=random) / math.sqrt(size)
    if config.key_size == size:
        narrow = torch.eye(size)
    q_HED = narrow @ (q.unflatten(0, (heads, size)) * attention.q_norm.weight[:, None])
    k_ED = narrow @ (k * attention.k_norm.weight[:, None])
    groups = heads // attention.config.kv_heads
    mixer.qkvz.weight.copy_(
        torch.cat([q_HED.flatten(0, 1), k_ED.repeat(groups, 1), v.repeat(groups, 1), _normal(q.shape, random)])
    )
    mixer.rates.weight.copy_(0.1 * _normal(mixer.rates.weight.shape, random))
    mixer.conv.copy_(0.02 * torch.randn(mixer.conv.shape, generator=random))
    mixer.conv[:, CONV_SIZE - 1] += CONVOLVED
    steps = torch.linspace(0, len(FORGOTTEN) - 1, heads)
    forgotten = torch.tensor([FORGOTTEN[round(step)] for step in steps.tolist()])
    mixer.dt_bias.copy_(torch.log(torch.expm1(-torch.log1p(-forgotten))))
    mixer.out.weight.copy_(attention.out.weight)


def _normal(shape: torch.Size, random: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=random) / math.sqrt(shape[1])
