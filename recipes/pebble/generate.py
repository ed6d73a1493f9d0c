"""Batched sampling from a training network with a key-value cache, for on-policy text and for measurements."""

import math

import torch
from recipes.pebble.network import Layer, Network, causal_attention, rotary_tables
from torch import Tensor, nn


class CachedDecoder:
    """Decodes a batch of equally long sequences one token at a time; the caches are [B, K, T, E] per layer."""

    def __init__(self, network: Network, batch: int, capacity: int, device: torch.device) -> None:
        config = network.config
        self.network = network
        self.length = 0
        self.cos_TE, self.sin_TE = rotary_tables(capacity, config.head_size, device)
        shape = (config.layers, batch, config.kv_heads, capacity, config.head_size)
        self.keys = torch.empty(shape, dtype=torch.bfloat16, device=device)
        self.values = torch.empty(shape, dtype=torch.bfloat16, device=device)

    @torch.no_grad()
    def feed(self, ids_BT: Tensor) -> Tensor:
        """Appends `ids` [B, T] and returns the logits [B, V] after their last token.

        Only an empty cache takes more than one token at once.
        """
        start, end = self.length, self.length + ids_BT.shape[1]
        assert start == 0 or end == start + 1
        cos_TE, sin_TE = self.cos_TE[start:end], self.sin_TE[start:end]
        with torch.autocast(ids_BT.device.type, torch.bfloat16):
            x_BTD = self.network.embedding(ids_BT)
            for index, layer in enumerate(self.network.layers):
                assert isinstance(layer, Layer)
                q, k, v = layer.attention.project(layer.attention_norm(x_BTD), cos_TE, sin_TE)
                self.keys[index, :, :, start:end], self.values[index, :, :, start:end] = k, v
                mixed = causal_attention(q, k, v) if start == 0 else self._attend(q, index, end)
                x_BTD = x_BTD + layer.attention.merge(mixed)
                x_BTD = x_BTD + layer.feed_forward(layer.feed_forward_norm(x_BTD))
            last_BD = self.network.norm(x_BTD[:, -1])
            logits_BV = nn.functional.linear(last_BD, self.network.embedding.weight)
        self.length = end
        return logits_BV.float()

    def _attend(self, q_BHTE: Tensor, index: int, end: int) -> Tensor:
        batch, heads, _, size = q_BHTE.shape
        keys, values = self.keys[index, :, :, :end], self.values[index, :, :, :end]
        scores = (q_BHTE.reshape(batch, keys.shape[1], -1, size) @ keys.mT).float() / math.sqrt(size)
        return (torch.softmax(scores, dim=-1).to(values.dtype) @ values).view(batch, heads, 1, size)


def choose(logits_BV: Tensor, temperature: float, random: torch.Generator) -> Tensor:
    """Returns one token per row: the likeliest at temperature 0, otherwise a sample by Gumbel noise."""
    if temperature == 0:
        return logits_BV.argmax(dim=-1)
    exponential = torch.empty_like(logits_BV).exponential_(generator=random)
    return (logits_BV / temperature - exponential.log()).argmax(dim=-1)


def continue_prompts(
    network: Network, prompts_BT: Tensor, num_tokens: int, temperature: float, random: torch.Generator
) -> Tensor:
    """Returns the prompts [B, T] followed by `num_tokens` sampled tokens, past any end of text."""
    decoder = CachedDecoder(network, prompts_BT.shape[0], prompts_BT.shape[1] + num_tokens, prompts_BT.device)
    pieces = [prompts_BT]
    for _ in range(num_tokens):
        pieces.append(choose(decoder.feed(pieces[-1]), temperature, random)[:, None])
    return torch.cat(pieces, dim=1)
