"""The same pass of rows as ``forward.py`` on the native kernels: whole blocks per call, rows exact by construction.

Weights are packed once and held once; a tied head serves as embedding too. Roundings are those of the torch path, save
that logits stay fp32.

Shape suffixes: N rows of the forward, H hidden, V vocabulary.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from surefoot.cache.kv import KVCache
from surefoot.errors import TargetError
from surefoot.models.config import DecoderConfig
from surefoot.models.forward import Span
from surefoot.models.weights import AttentionWeights, DenseWeights, LayerWeights
from surefoot.native import Packed, pack, pack_in_place, pack_pairs, product, unpack_rows
from surefoot.native.library import Library
from surefoot.native.records import KIND_ATTENTION, KIND_COPY, KIND_MLP, Attention, Ends, Mlp, type_code
from surefoot.ops.rope import RopeTables
from surefoot.tree import path_to
from surefoot.types import Capture, TargetOutput

IntArray: TypeAlias = NDArray[np.int64]

NATIVE_DTYPES = (torch.float32, torch.bfloat16)
MOST_HEAD_DIM = 256

ROW_COUNTS = (2, 3, 4, 7, 8, 9, 16)
"""Rows side by side in the self-test."""
HEAD_SHARES = ((0, 1), (3, 5), (1, 4), (9, 13), (2, 9), (6, 14), (5, 14), (15, 16))
HEAD_OUTPUTS = 4096
"""Of the head, so many last outputs are tested: the whole one would take longer than all the rest."""
TREE = (-1, 0, 0, 1, 1, 2, 2, 3)
CONTEXT = 37
"""Keys committed before the rows under test."""

_FEW = 16
"""Rows laid out one by one; more are laid out together."""
NOTHING_SHOWN = (0, 0, 0, 0, 0)
"""The last words of a ``Call`` that ends with its steps."""


def computes(config: DecoderConfig) -> bool:
    """Whether the kernels compute every kind of layer of this shape; torch does what they do not."""
    plain = not (config.delta_layers or config.sparse_layers or config.gated_attention or config.centred_norms)
    return plain and config.head_dim <= MOST_HEAD_DIM


class NativeForward:
    """The weights of a decoder packed for the kernels, with their RoPE tables.

    Args:
        config: the decoder's shape.
        layers: its weights, which are read one after the other and not kept.
        norm, embedding: likewise; the embedding is kept where the head is another matrix.
        head: the output head, None where the embedding is it.
        library: the kernels.
        in_place: the head's own memory may be used for the packed one.

    Attributes:
        cache_dtype: what keys and values are kept in.
    """

    def __init__(
        self,
        *,
        config: DecoderConfig,
        layers: Iterable[LayerWeights],
        norm: Tensor,
        embedding: Tensor,
        head: Tensor | None,
        library: Library,
        in_place: bool = False,
    ) -> None:
        self.cache_dtype = torch.float32
        self.rope_tables = RopeTables(config.rope, dtype=torch.float32, device=norm.device)
        self._library, self._config = library, config
        self._dtype, self._type = embedding.dtype, type_code(embedding.dtype)
        self._norm = norm.float().contiguous()
        self._kept: list[object] = []
        self._blocks = [self._layer(index, weights) for index, weights in enumerate(layers)]
        self._head = (pack_in_place if in_place else pack)(embedding if head is None else head)
        self._embedding = None if head is None else embedding
        self._ends = Ends(
            head=self._head.record,
            norm=self._norm.data_ptr(),
            eps=config.rms_norm_eps,
            embedding=None if self._embedding is None else self._embedding.data_ptr(),
        )
        self._programs: dict[tuple[int, ...], IntArray] = {}

    @property
    def instructions(self) -> str:
        """The instruction set of the kernels."""
        return self._library.instructions

    def compute(self, ids: Sequence[int], spans: Sequence[Span], capture: Capture, *, first: int = 0) -> TargetOutput:
        """As :meth:`surefoot.models.forward.Forward.compute`, in one call of the kernels.

        Raises:
            TargetError: no memory was left for what lies between the layers.
        """
        count, config = len(ids), self._config
        program = self._program(tuple(sorted(set(capture.layers))))
        layers: dict[int, Tensor] = {}
        if capture.layers:
            steps = program.copy()
            layers = {layer: self._rows_of(count) for layer in sorted(set(capture.layers))}
            steps[steps[:, 0] == KIND_COPY, 2] = [copy.data_ptr() for copy in layers.values()]
            program = steps
        final = self._rows_of(count) if capture.final else None
        logits = torch.empty(count - first, config.vocab_size, dtype=torch.float32) if first < count else None
        tokens = array("q", ids)
        shown = (
            self._ends.address,
            _address(tokens),
            0 if final is None else final.data_ptr(),
            0 if logits is None else logits.data_ptr(),
            first,
        )
        self._call((count, config.hidden_size, 0), spans, program, shown)
        return TargetOutput(logits=logits, layers=tuple(layers[layer] for layer in capture.layers), final=final)

    def _rows_of(self, count: int) -> Tensor:
        return torch.empty(count, self._config.hidden_size, dtype=self._dtype)

    def _call(
        self, stream: tuple[int, int, int], spans: Sequence[Span], steps: IntArray, shown: tuple[int, ...]
    ) -> None:
        """Calls the kernels with the words of a ``Call``: rows, width and address of the stream; what is shown."""
        rows, seen = _long_chain(spans[0]) if _is_long_chain(spans) else _rows(spans)
        sequences = array("q", [word for span in spans for word in span.cache.record])
        addresses = (_address(rows), _address(sequences), _address(seen), _address_of(steps))
        call = array("q", (self._type, *stream, *addresses, len(steps), *shown))
        if self._library.forward(_address(call)):
            raise TargetError(f"no memory was left for a forward of {stream[0]} rows; expected room for it")

    def embed(self, tokens: Tensor) -> Tensor:
        """Input embeddings ``[N, H]`` of int64 ``[N]``."""
        if self._embedding is not None:
            return functional.embedding(tokens, self._embedding)
        return unpack_rows(self._head, tokens.contiguous())

    def unembed(self, hidden_NH: Tensor) -> Tensor:
        """Logits of normalised hidden states, fp32 ``[N, V]``."""
        return product(hidden_NH.contiguous(), self._head)

    def differing_rows(self, *, stop_early: bool) -> list[str]:
        """The parts in which some row's bits depend on the rows beside it, as far as a test can tell that computes the
        head and one layer of each window."""
        found = []
        for name, differs in self._checks():
            if differs():
                found.append(name)
                if stop_early:
                    break
        return found

    def _checks(self) -> Iterator[tuple[str, Callable[[], bool]]]:
        generator = torch.Generator().manual_seed(0)
        x_NH = torch.randn(max(ROW_COUNTS), self._config.hidden_size, generator=generator).to(self._dtype)
        yield "the output head", partial(self._head_differs, x_NH)
        for window in dict.fromkeys(self._config.windows):
            name = "a layer" if window is None else f"a layer of window {window}"
            yield name, partial(self._layer_differs, x_NH, self._config.windows.index(window), generator)

    def _head_differs(self, x_NH: Tensor) -> bool:
        head = self._head.last(HEAD_OUTPUTS)
        ends = Ends(head=head.record, norm=self._norm.data_ptr(), eps=self._config.rms_norm_eps)

        def shown(start: int, stop: int) -> tuple[Tensor, Tensor]:
            x, count = x_NH[start:stop].clone(), stop - start
            final, logits = torch.empty_like(x), torch.empty(count, head.outputs)
            addresses = (ends.address, 0, final.data_ptr(), logits.data_ptr(), 0)
            self._call((count, x.shape[1], x.data_ptr()), (), self._program(())[:0], addresses)
            return final, logits

        together = shown(0, len(x_NH))
        return any(
            not torch.equal(part, whole[start:stop])
            for start, stop in HEAD_SHARES
            for part, whole in zip(shown(start, stop), together, strict=True)
        )

    def _layer_differs(self, x_NH: Tensor, layer: int, generator: torch.Generator) -> bool:
        """Whether some node of a chain or tree comes out otherwise than at the end of its path, row after row."""
        config, most = self._config, max(ROW_COUNTS)
        length = max(0, min(CONTEXT, config.context_length - most))
        cache = KVCache(
            owner=self,
            capacity=length + most,
            num_layers=layer + 1,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rope=self.rope_tables.table(length + most),
            like=torch.empty(0, dtype=self.cache_dtype),
        )
        cache.fill_committed(length, generator)
        steps = self._program(())[2 * layer : 2 * layer + 2]

        def compute(rows: Sequence[int], parents: Sequence[int]) -> Tensor:
            nodes = cache.transaction.extended(parents)
            x = x_NH[list(rows)].clone()
            self._call((*x.shape, x.data_ptr()), [Span(cache, nodes, len(rows))], steps, NOTHING_SHOWN)
            return x

        def alone(path: Sequence[int]) -> Tensor:
            outs = []
            for node in path:
                outs.append(compute([node], [-1]))
                cache.transaction.open = cache.transaction.extended([-1])
                cache.commit([0])
            cache.truncate(length)
            return torch.cat(outs)

        chain = alone(range(most))
        if any(not torch.equal(compute(range(n), range(-1, n - 1)), chain[:n]) for n in ROW_COUNTS):
            return True
        together = compute(range(len(TREE)), TREE)
        paths = [path_to(TREE, node) for node in range(len(TREE)) if node not in TREE]
        return any(not torch.equal(alone(path), together[list(path)]) for path in paths)

    def _layer(self, index: int, weights: LayerWeights) -> tuple[int, int]:
        """Addresses of a layer's two blocks."""
        config, mixer, feed_forward = self._config, weights.mixer, weights.feed_forward
        assert isinstance(mixer, AttentionWeights), mixer
        assert isinstance(feed_forward, DenseWeights), feed_forward
        qkv, out = pack(mixer.qkv, mixer.qkv_bias), pack(mixer.out, mixer.out_bias)
        norms = [mixer.norm.float().contiguous(), feed_forward.norm.float().contiguous()]
        head_norm = None if mixer.qk_norm is None else mixer.qk_norm.float().contiguous()
        attention = Attention(
            qkv=qkv.record,
            out=out.record,
            norm=norms[0].data_ptr(),
            head_norm=None if head_norm is None else head_norm.data_ptr(),
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            window=config.windows[index] or 0,
            layer=index,
            cache_type=type_code(self.cache_dtype),
            eps=config.rms_norm_eps,
            scale=config.head_dim**-0.5,
        )
        inner = config.intermediate_size
        gate_up, down = _pack_gate_up(feed_forward, inner), pack(feed_forward.down, feed_forward.down_bias)
        mlp = Mlp(
            gate_up=gate_up.record, down=down.record, norm=norms[1].data_ptr(), inner=inner, eps=config.rms_norm_eps
        )
        self._kept += [qkv, out, gate_up, down, norms, head_norm, attention, mlp]
        return attention.address, mlp.address

    def _program(self, layers: tuple[int, ...]) -> IntArray:
        """The steps of a forward, ``[steps, 3]``: each layer's blocks, and a copy after each of ``layers``."""
        known = self._programs.get(layers)
        if known is None:
            steps = []
            for index, (attention, mlp) in enumerate(self._blocks):
                steps += [(KIND_ATTENTION, attention, 0), (KIND_MLP, mlp, 0)]
                if index in layers:
                    steps.append((KIND_COPY, 0, 0))
            known = self._programs[layers] = np.array(steps, dtype=np.int64)
        return known


def _pack_gate_up(weights: DenseWeights, inner: int) -> Packed:
    biases = (None, None) if weights.gate_up_bias is None else weights.gate_up_bias.split(inner)
    gate, up = weights.gate_up.split(inner)
    return pack_pairs(gate, up, biases)


def _address(words: array[int]) -> int:
    return words.buffer_info()[0]


def _address_of(steps: IntArray) -> int:
    address: int = steps.__array_interface__["data"][0]
    return address


def _is_long_chain(spans: Sequence[Span]) -> bool:
    return len(spans) == 1 and spans[0].nodes.is_chain and spans[0].num_new > _FEW


def _long_chain(span: Span) -> tuple[array[int], array[int]]:
    """The records ``Row [N, 6]`` of a chain, and the places its rows see of their round."""
    stop = span.cache.length + len(span.nodes.parents)
    places = np.arange(stop - span.num_new, stop, dtype=np.int64)
    rows = np.empty((span.num_new, 6), dtype=np.int64)
    rows[:, 0] = 0
    rows[:, 1:4] = places[:, None]
    rows[:, 4] = np.arange(span.num_new)
    rows[:, 5] = 1
    return array("q", rows.tobytes()), array("q", places.tobytes())


def _rows(spans: Sequence[Span]) -> tuple[array[int], array[int]]:
    """The same of any rounds, row by row."""
    rows = array("q")
    seen = array("q")
    for index, (cache, (parents, depths, is_chain), num_new) in enumerate((s.cache, s.nodes, s.num_new) for s in spans):
        length = cache.length
        for node in range(len(parents) - num_new, len(parents)):
            place = length + node
            if is_chain:  # all before it lies in one piece, committed or not
                rows.extend((index, place, place, place, len(seen), 1))
                seen.append(place)
            else:
                path = path_to(parents, node)
                rows.extend((index, length + depths[node], place, length, len(seen), len(path)))
                seen.extend([length + ancestor for ancestor in path])
    return rows, seen
