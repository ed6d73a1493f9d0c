"""What a drafter computes while decoding, on torch: rows added to a context, and a block filled in over it.

Shape suffixes: S rows of context, Q rows of a block, H hidden, T layers read, K key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from surefoot.drafters.dflash.context import Context
from surefoot.drafters.dflash.network import DFlashNetwork, Layer


class Blocks(Protocol):
    """The network laid out for decoding; sequences share it."""

    @property
    def dtype(self) -> torch.dtype:
        """What rows and embeddings are given in."""
        ...

    def new_context(self) -> Context:
        """An empty context."""
        ...

    def extend(self, context: Context, taps: Sequence[Tensor]) -> None:
        """Appends the rows that follow: the target's layers, each ``[S, H]``, in the config's order."""
        ...

    def denoise(self, context: Context, noise: Tensor) -> Tensor:
        """The hidden states the target's head reads, of a block ``[Q, H]`` that follows the context."""
        ...


class TorchBlocks:
    """The network's own modules; works wherever torch does."""

    def __init__(self, network: DFlashNetwork) -> None:
        self._network = network
        self._weight = network.norm.weight

    @property
    def dtype(self) -> torch.dtype:
        """The weights'."""
        return self._weight.dtype

    def new_context(self) -> Context:
        """Rows in the weights' dtype."""
        return Context(self._network.config, self._weight.detach())

    def extend(self, context: Context, taps: Sequence[Tensor]) -> None:
        """As in :class:`Blocks`."""
        count = len(taps[0])
        with torch.inference_mode():
            rows_SH = self._network.context(torch.cat(tuple(taps), -1).to(self.dtype))
            angles = self._angles(context.length, count, rows_SH)
            context.reserve(count)
            for index, layer in enumerate(self._layers()):
                self._write(context, index, layer.self_attn.keys_values(rows_SH, angles))
        context.length += count

    def denoise(self, context: Context, noise: Tensor) -> Tensor:
        """As in :class:`Blocks`."""
        count = len(noise)
        stop = context.length + count
        with torch.inference_mode():
            angles = self._angles(context.length, count, noise)
            context.reserve(count)
            positions = torch.arange(stop, device=noise.device)
            distances = positions[context.length :, None] - positions
            x = noise
            for index, layer in enumerate(self._layers()):
                normed = layer.input_layernorm(x)
                self._write(context, index, layer.self_attn.keys_values(normed, angles))
                keys, values = context.rows(0, stop)[2 * index : 2 * index + 2]
                sight = self._network.sight(index, distances)
                x = x + layer.self_attn(normed, angles, keys, values, sight)
                x = x + layer.mlp(layer.post_attention_layernorm(x))
            return self._network.normalised(x)

    def _layers(self) -> list[Layer]:
        return [layer for layer in self._network.layers if isinstance(layer, Layer)]

    def _angles(self, start: int, count: int, like: Tensor) -> tuple[Tensor, Tensor]:
        return self._network.angles(torch.arange(start, start + count, device=like.device), like)

    def _write(self, context: Context, index: int, keys_values: tuple[Tensor, Tensor]) -> None:
        """Puts a layer's keys and values ``[K, rows, D]`` after the context's."""
        for offset, rows in enumerate(keys_values):
            context.rows(context.length, rows.shape[-2])[2 * index + offset].copy_(rows)
