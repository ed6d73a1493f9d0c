"""One pass of rows through the decoder's layers, for one sequence or several.

Shape suffixes: N rows of the forward, H hidden, V vocabulary, G query and key heads, K key-value heads, T rows read,
D head size, R rotated dimensions of a head; of a delta layer P projected, V value heads, E value size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from surefoot.cache.base import OpenNodes
from surefoot.cache.hybrid import HybridCache
from surefoot.cache.kv import KVCache, LayerRows
from surefoot.cache.recurrent import Replayer
from surefoot.models.caches import make_cache
from surefoot.models.config import DecoderConfig
from surefoot.models.selftest import CONTEXT, ROW_COUNTS, layer_differs
from surefoot.models.weights import AttentionWeights, DeltaWeights, DenseWeights, LayerWeights, SparseWeights
from surefoot.ops.attention import Round, Sight
from surefoot.ops.delta_rule import DeltaPlace, gated_delta
from surefoot.ops.exactness import RowShapes, differing_rows
from surefoot.ops.moe import mixture
from surefoot.ops.norm import rms_norm
from surefoot.ops.rope import Factors, RopeTables, rotate
from surefoot.ops.rows import RowArithmetic
from surefoot.types import Capture, TargetOutput


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's share of a forward: the last ``num_new`` of ``nodes`` are the rows it brings; a prefill's are
    committed as they are."""

    cache: KVCache
    nodes: OpenNodes
    num_new: int
    is_prefill: bool = False


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a span's rows are written, what they read and see by each kind of window, and each delta layer's share."""

    writes: LayerRows
    reads: tuple[LayerRows, ...]
    sights: tuple[Sight, ...]
    deltas: tuple[DeltaPlace, ...]


@dataclass(frozen=True, slots=True)
class _Pass:
    """What all layers of one forward share: its spans' places and rows, and the rotation factors of all rows."""

    places: list[_Place]
    counts: list[int]
    angles: Factors


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
        self.replayer: Replayer | None = None
        self._norm, self._head, self._rows, self._eps = norm, head, rows, config.rms_norm_eps
        self._config, self._embedding = config, embedding
        self._heads = (config.num_heads + config.num_kv_heads, config.num_kv_heads)
        self._rotated_heads = (config.num_heads, config.num_kv_heads)
        self._group = config.num_heads // config.num_kv_heads
        self._head_dim = config.head_dim
        windows = [config.windows[layer] for layer in config.attention_layers]
        self._distinct_windows = tuple(dict.fromkeys(windows))
        self._window_of_slot = tuple(self._distinct_windows.index(window) for window in windows)
        slots = [*enumerate(config.attention_layers), *enumerate(sorted(config.delta_layers))]
        self._slot_of_layer = {layer: slot for slot, layer in slots}
        # fp32 tables serve half-width models as they are: the rotation is computed, and its result cached, in fp32.
        wide = torch.float64 if norm.dtype == torch.float64 else torch.float32
        self.rope_tables = RopeTables(config.rope, dtype=wide, device=norm.device)

    def compute(self, ids: Sequence[int], spans: Sequence[Span], capture: Capture, *, first: int = 0) -> TargetOutput:
        """What tokens show: the spans' rows one after the other; logits of the rows from ``first`` on.

        Writes into each span's cache beyond its rows in use, and changes nothing else there.
        """
        with torch.inference_mode():
            tokens = torch.tensor(ids, dtype=torch.int64, device=self._norm.device)
            x, layers = self.run(self.embed(tokens), spans, capture.layers)
            final = self.normalise(x if capture.final else x[first:])
            head_reads = final[first:] if capture.final else final
            logits = self.unembed(head_reads) if first < len(ids) else None
        return TargetOutput(logits=logits, layers=layers, final=final if capture.final else None)

    def embed(self, tokens: Tensor) -> Tensor:
        """Input embeddings ``[..., H]`` of int64 tokens."""
        return functional.embedding(tokens, self._embedding)

    def differing_rows(self, *, stop_early: bool) -> list[str]:
        """The classes of shapes in which some row's bits depend on the rows beside it, as far as a test can tell.

        Of the layers that are not dense attention one of each kind is computed whole.
        """
        config = self._config
        dense = [width for width in (config.intermediate_size,) if len(config.sparse_layers) < config.num_layers]
        experts = () if config.experts is None else (config.experts.inner_size, config.experts.shared_size)
        shapes = RowShapes(
            linears=_linears(self.layers) | {"output head": (self._head, None)},
            hidden_size=config.hidden_size,
            activations=tuple(dict.fromkeys(width for width in (*dense, *experts) if width)),
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            attention_dtype=self.cache_dtype,
            windows=self._distinct_windows,
            context_length=config.context_length,
        )
        found = differing_rows(self._rows, shapes, stop_early=stop_early)
        for name, layer in _other_kinds(self.layers).items():
            if (not found or not stop_early) and self._layer_differs(layer):
                found.append(name)
        return found

    def _layer_differs(self, layer: int) -> bool:
        config, most = self._config, max(ROW_COUNTS)
        length = max(0, min(CONTEXT, config.context_length - most))
        generator = torch.Generator().manual_seed(0)
        x_NH = torch.randn(most, config.hidden_size, generator=generator).to(self._embedding)
        cache = make_cache(
            config,
            owner=self,
            capacity=length + most,
            rope=self.rope_tables.table(length + most),
            like=(x_NH.to(self.cache_dtype), x_NH),
        )
        cache.fill_committed(length, generator)

        def compute(x: Tensor, nodes: OpenNodes) -> Tensor:
            return self._through(layer, x, self._pass([Span(cache, nodes, x.shape[0])]))

        return layer_differs(compute, cache, x_NH)

    def run(self, x: Tensor, spans: Sequence[Span], capture: Sequence[int]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Embedded rows ``[N, H]``, the spans' one after the other, to the residual stream after the last layer.

        Writes keys, values and states into each span's cache beyond what is in use, and changes nothing else there.
        Also returns the streams after the layers of ``capture``, in its order.
        """
        now = self._pass(spans)
        captured: dict[int, Tensor] = {}
        for layer in range(len(self.layers)):
            x = self._through(layer, x, now)
            if layer in capture:
                captured[layer] = x
        return x, tuple(captured[layer] for layer in capture)

    def _through(self, layer: int, x: Tensor, now: _Pass) -> Tensor:
        """The residual stream ``[N, H]`` after a layer, from that before it."""
        rows, eps, weights = self._rows, self._eps, self.layers[layer]
        mixer, feed_forward = weights.mixer, weights.feed_forward
        h = rms_norm(x, mixer.norm, eps)
        if isinstance(mixer, AttentionWeights):
            mixed = self._attention(layer, mixer, h, now)
            x = x + rows.linear(mixed.to(x.dtype), mixer.out, mixer.out_bias)
        else:
            x = x + rows.linear(self._delta(layer, mixer, h, now), mixer.out, None)
        h = rms_norm(x, feed_forward.norm, eps)
        if isinstance(feed_forward, DenseWeights):
            h = rows.swiglu(rows.linear(h, feed_forward.gate_up, feed_forward.gate_up_bias))
            return x + rows.linear(h, feed_forward.down, feed_forward.down_bias)
        return x + self._experts(feed_forward, h)

    def _attention(self, layer: int, weights: AttentionWeights, h: Tensor, now: _Pass) -> Tensor:
        """What each row's heads read, side by side, gated where there is a gate: ``[N, G * D]`` of query heads."""
        qkv = self._rows.linear(h, weights.qkv, weights.qkv_bias).view(h.shape[0], -1, self._head_dim)
        qk_NGD, v_NKD = qkv.split_with_sizes(self._heads, 1)
        if weights.qk_norm is not None:
            qk_NGD = rms_norm(qk_NGD, weights.qk_norm, self._eps)
        qk_NGD = rotate(qk_NGD, *now.angles)
        q_NGD, k_NKD = qk_NGD.split_with_sizes(self._rotated_heads, 1)
        slot = self._slot_of_layer[layer]
        if len(now.places) == 1:
            mixed = self._attend(slot, now.places[0], q_NGD, k_NKD, v_NKD)
        else:
            parts = (rows_NGD.split_with_sizes(now.counts) for rows_NGD in (q_NGD, k_NKD, v_NKD))
            shares = zip(now.places, *parts, strict=True)
            mixed = torch.cat([self._attend(slot, *share) for share in shares])
        return mixed if weights.gate is None else self._rows.gated(mixed, self._rows.linear(h, weights.gate, None))

    def _delta(self, layer: int, weights: DeltaWeights, h: Tensor, now: _Pass) -> Tensor:
        """What each row reads of its sequence's state, ``[N, V * E]``."""
        assert self._config.delta is not None, self._config
        shape, slot = self._config.delta, self._slot_of_layer[layer]
        projected = self._rows.linear(h, weights.in_proj, None).split_with_sizes(now.counts)
        places = [place.deltas[slot] for place in now.places]
        shares = zip(projected, places, strict=True)
        return torch.cat([gated_delta(rows_NP, weights.parameters, shape, place) for rows_NP, place in shares])

    def _experts(self, weights: SparseWeights, h: Tensor) -> Tensor:
        """The sum of what the chosen experts and the shared one give, rounded once: ``[N, H]``."""
        assert self._config.experts is not None, self._config
        rows = self._rows
        sum_NH = mixture(h, weights.router, weights.gate_up, weights.down, self._config.experts, rows)
        if weights.shared_gate_up is not None:
            assert weights.shared_down is not None, weights
            assert weights.shared_gate is not None, weights
            shared = rows.linear(rows.swiglu(rows.linear(h, weights.shared_gate_up, None)), weights.shared_down, None)
            sum_NH = sum_NH + rows.gated(shared.to(sum_NH.dtype), rows.linear(h, weights.shared_gate, None))
        return sum_NH.to(h.dtype)

    def normalise(self, x_NH: Tensor) -> Tensor:
        """The normalised hidden states that the output head reads."""
        return rms_norm(x_NH, self._norm, self._eps)

    def unembed(self, hidden_NH: Tensor) -> Tensor:
        """Logits of normalised hidden states, ``[N, V]``: computed in the model's dtype, widened to fp32 at least."""
        logits_NV = self._rows.linear(hidden_NH, self._head, None)
        return logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()

    def _attend(self, slot: int, place: _Place, q_NGD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
        place.writes[2 * slot].copy_(k_NKD)
        place.writes[2 * slot + 1].copy_(v_NKD)
        kind = self._window_of_slot[slot]
        reads = place.reads[kind]
        q_NGD = q_NGD.to(self.cache_dtype)
        return self._rows.attend(q_NGD, reads[2 * slot], reads[2 * slot + 1], place.sights[kind])

    def _pass(self, spans: Sequence[Span]) -> _Pass:
        return _Pass([self._place(span) for span in spans], [span.num_new for span in spans], self._angles(spans))

    def _place(self, span: Span) -> _Place:
        cache, (parents, depths, is_chain) = span.cache, span.nodes
        around = Round(cache.length, parents, depths, span.num_new, is_chain)
        device = self._norm.device
        sights = tuple(
            self._rows.see(around, window, self._group, self.cache_dtype, device) for window in self._distinct_windows
        )
        reads = tuple(cache.rows_to_read(sight.first, around.stop) for sight in sights)
        writes = cache.rows_to_write(around.stop - span.num_new, span.num_new)
        deltas: tuple[DeltaPlace, ...] = ()
        if isinstance(cache, HybridCache):
            cache.states.open(cache.transaction.open, span.nodes, keeps_tape=not span.is_prefill)
            deltas = cache.states.places(span.nodes, span.num_new)
        return _Place(writes, reads, sights, deltas)

    def _angles(self, spans: Sequence[Span]) -> Factors:
        """The rotation factors of all rows, ``[N, 1, R]`` each, every sequence's from its own cache's table."""
        parts = [_span_angles(span) for span in spans]
        if len(parts) == 1:
            return parts[0]
        firsts, seconds = zip(*parts, strict=True)
        return torch.cat(firsts), torch.cat(seconds)


Linears = dict[str, tuple[Tensor, Tensor | None]]


def _linears(layers: Sequence[LayerWeights]) -> Linears:
    """A weight and bias of each class of linears in the layers."""
    found: Linears = {}
    for weights in reversed(layers):  # so that the first layer of each kind is the one that stays
        mixer, feed_forward = weights.mixer, weights.feed_forward
        if isinstance(mixer, AttentionWeights):
            found |= {
                "query, key and value": (mixer.qkv, mixer.qkv_bias),
                "attention output": (mixer.out, mixer.out_bias),
            }
            found |= {} if mixer.gate is None else {"attention gate": (mixer.gate, None)}
        else:
            found |= {"delta projections": (mixer.in_proj, None), "delta output": (mixer.out, None)}
        if isinstance(feed_forward, DenseWeights):
            found["gate and up"] = feed_forward.gate_up, feed_forward.gate_up_bias
            found["down"] = feed_forward.down, feed_forward.down_bias
        else:
            found |= {"router": (feed_forward.router, None), "expert gate and up": (feed_forward.gate_up[0], None)}
            found["expert down"] = feed_forward.down[0], None
    return found


def _other_kinds(layers: Sequence[LayerWeights]) -> dict[str, int]:
    """The first layer of each kind but dense attention without a gate, by what it is called."""
    found: dict[str, int] = {}
    for index, weights in enumerate(layers):
        is_delta, is_sparse = isinstance(weights.mixer, DeltaWeights), isinstance(weights.feed_forward, SparseWeights)
        is_gated = isinstance(weights.mixer, AttentionWeights) and weights.mixer.gate is not None
        if is_delta or is_sparse or is_gated:
            name = "delta" if is_delta else "gated attention" if is_gated else "attention"
            found.setdefault(f"a layer of {name}{' with experts' * is_sparse}", index)
    return found


def _span_angles(span: Span) -> Factors:
    cache, (parents, depths, is_chain), num_new = span.cache, span.nodes, span.num_new
    if is_chain:
        return cache.rope.run(cache.length + len(parents) - num_new, num_new)
    return cache.rope.rows([cache.length + depth for depth in depths[-num_new:]])
