"""One pass of rows through the decoder's layers, for one sequence or several.

Shape suffixes: N rows of the forward, H hidden, V vocabulary, G query and key heads, K key-value heads, T rows read,
D head size, R rotated dimensions of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from surefoot.cache.base import OpenNodes
from surefoot.cache.kv import KVCache, LayerRows
from surefoot.models.config import DecoderConfig
from surefoot.models.weights import AttentionWeights, DenseWeights, LayerWeights
from surefoot.ops.attention import Round, Sight
from surefoot.ops.exactness import RowShapes, differing_rows
from surefoot.ops.norm import rms_norm
from surefoot.ops.rope import Factors, RopeTables, rotate
from surefoot.ops.rows import RowArithmetic


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's share of a forward: the last ``num_new`` of ``nodes`` are the rows it brings."""

    cache: KVCache
    nodes: OpenNodes
    num_new: int


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a span's rows are written, and for each layer what they read and see."""

    writes: LayerRows
    reads: tuple[LayerRows, ...]
    sights: tuple[Sight, ...]


class Forward:
    """The weights of a decoder laid out for its forward, with its RoPE tables and row arithmetic."""

    def __init__(
        self,
        *,
        config: DecoderConfig,
        layers: Sequence[LayerWeights],
        norm: Tensor,
        embedding: Tensor,
        head: Tensor,
        rows: RowArithmetic,
        cache_dtype: torch.dtype,
    ) -> None:
        self.layers = tuple(layers)
        self.cache_dtype = cache_dtype
        self._norm, self._head, self._rows, self._eps = norm, head, rows, config.rms_norm_eps
        self._config, self._embedding = config, embedding
        self._heads = (config.num_heads + config.num_kv_heads, config.num_kv_heads)
        self._rotated_heads = (config.num_heads, config.num_kv_heads)
        self._group = config.num_heads // config.num_kv_heads
        self._head_dim = config.head_dim
        self._distinct_windows = tuple(dict.fromkeys(config.windows))
        self._window_of_layer = tuple(self._distinct_windows.index(window) for window in config.windows)
        # fp32 tables serve half-width models as they are: the rotation is computed, and its result cached, in fp32.
        wide = torch.float64 if norm.dtype == torch.float64 else torch.float32
        self.rope_tables = RopeTables(config.rope, dtype=wide, device=norm.device)

    def embed(self, tokens: Tensor) -> Tensor:
        """Input embeddings ``[..., H]`` of int64 tokens."""
        return functional.embedding(tokens, self._embedding)

    def differing_rows(self, *, stop_early: bool) -> list[str]:
        """The classes of shapes in which some row's bits depend on the rows beside it, as far as a test can tell."""
        config = self._config
        mixer, feed_forward = self.layers[0].mixer, self.layers[0].feed_forward
        assert isinstance(mixer, AttentionWeights), mixer
        assert isinstance(feed_forward, DenseWeights), feed_forward
        shapes = RowShapes(
            linears={
                "query, key and value": (mixer.qkv, mixer.qkv_bias),
                "attention output": (mixer.out, mixer.out_bias),
                "gate and up": (feed_forward.gate_up, feed_forward.gate_up_bias),
                "down": (feed_forward.down, feed_forward.down_bias),
                "output head": (self._head, None),
            },
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            attention_dtype=self.cache_dtype,
            windows=self._distinct_windows,
            context_length=config.context_length,
        )
        return differing_rows(self._rows, shapes, stop_early=stop_early)

    def run(self, x: Tensor, spans: Sequence[Span], capture: Sequence[int]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Embedded rows ``[N, H]``, the spans' one after the other, to the residual stream after the last layer.

        Writes keys and values into each span's cache beyond its rows in use, and changes nothing else there. Also
        returns the streams after the layers of ``capture``, in its order.
        """
        rows, eps = self._rows, self._eps
        first_N1R, second_N1R = self._angles(spans)
        places = [self._place(span) for span in spans]
        counts = [span.num_new for span in spans]
        captured: dict[int, Tensor] = {}
        for layer, weights in enumerate(self.layers):
            mixer, feed_forward = weights.mixer, weights.feed_forward
            assert isinstance(mixer, AttentionWeights), mixer
            assert isinstance(feed_forward, DenseWeights), feed_forward
            h = rms_norm(x, mixer.norm, eps)
            qkv = rows.linear(h, mixer.qkv, mixer.qkv_bias).view(x.shape[0], -1, self._head_dim)
            qk_NGD, v_NKD = qkv.split_with_sizes(self._heads, 1)
            if mixer.qk_norm is not None:
                qk_NGD = rms_norm(qk_NGD, None, eps) * mixer.qk_norm
            qk_NGD = rotate(qk_NGD, first_N1R, second_N1R)
            q_NGD, k_NKD = qk_NGD.split_with_sizes(self._rotated_heads, 1)
            if len(places) == 1:
                mixed = self._attend(layer, places[0], q_NGD, k_NKD, v_NKD)
            else:
                parts = (rows_NGD.split_with_sizes(counts) for rows_NGD in (q_NGD, k_NKD, v_NKD))
                shares = zip(places, *parts, strict=True)
                mixed = torch.cat([self._attend(layer, *share) for share in shares])
            x = x + rows.linear(mixed.to(x.dtype), mixer.out, mixer.out_bias)
            h = rms_norm(x, feed_forward.norm, eps)
            h = rows.swiglu(rows.linear(h, feed_forward.gate_up, feed_forward.gate_up_bias))
            x = x + rows.linear(h, feed_forward.down, feed_forward.down_bias)
            if layer in capture:
                captured[layer] = x
        return x, tuple(captured[layer] for layer in capture)

    def normalise(self, x_NH: Tensor) -> Tensor:
        """The normalised hidden states that the output head reads."""
        return rms_norm(x_NH, self._norm, self._eps)

    def unembed(self, hidden_NH: Tensor) -> Tensor:
        """Logits of normalised hidden states, ``[N, V]``: computed in the model's dtype, widened to fp32 at least."""
        logits_NV = self._rows.linear(hidden_NH, self._head, None)
        return logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()

    def _attend(self, layer: int, place: _Place, q_NGD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
        place.writes[2 * layer].copy_(k_NKD)
        place.writes[2 * layer + 1].copy_(v_NKD)
        kind = self._window_of_layer[layer]
        reads = place.reads[kind]
        q_NGD = q_NGD.to(self.cache_dtype)
        return self._rows.attend(q_NGD, reads[2 * layer], reads[2 * layer + 1], place.sights[kind])

    def _place(self, span: Span) -> _Place:
        cache, (parents, depths, is_chain) = span.cache, span.nodes
        around = Round(cache.length, parents, depths, span.num_new, is_chain)
        device = self._norm.device
        sights = tuple(
            self._rows.see(around, window, self._group, self.cache_dtype, device) for window in self._distinct_windows
        )
        reads = tuple(cache.rows_to_read(sight.first, around.stop) for sight in sights)
        return _Place(cache.rows_to_write(around.stop - span.num_new, span.num_new), reads, sights)

    def _angles(self, spans: Sequence[Span]) -> Factors:
        """The rotation factors of all rows, ``[N, 1, R]`` each, every sequence's from its own cache's table."""
        parts = [_span_angles(span) for span in spans]
        if len(parts) == 1:
            return parts[0]
        firsts, seconds = zip(*parts, strict=True)
        return torch.cat(firsts), torch.cat(seconds)


def _span_angles(span: Span) -> Factors:
    cache, (parents, depths, is_chain), num_new = span.cache, span.nodes, span.num_new
    if is_chain:
        return cache.rope.run(cache.length + len(parents) - num_new, num_new)
    return cache.rope.rows([cache.length + depth for depth in depths[-num_new:]])
