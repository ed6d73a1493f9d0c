"""The same pass of rows as ``forward.py`` on the native kernels: whole blocks per call, rows exact by construction.

Weights are packed once and held once; a tied head serves as embedding too. Roundings are those of the torch path, save
that logits stay fp32.

Shape suffixes: N rows of the forward, H hidden, V vocabulary.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import sizeof
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from surefoot.cache.base import OpenNodes
from surefoot.cache.hybrid import HybridCache
from surefoot.cache.recurrent import Replayer
from surefoot.errors import TargetError
from surefoot.models.caches import make_cache
from surefoot.models.config import DecoderConfig
from surefoot.models.forward import Span
from surefoot.models.native_blocks import feed_forward_block, mixer_block
from surefoot.models.native_states import NUM_WORDS, NativeReplayer, state_words
from surefoot.models.selftest import CONTEXT, ROW_COUNTS, commit_differs, layer_differs
from surefoot.models.weights import LayerWeights
from surefoot.native import best, pack, pack_in_place, product, unpack_rows
from surefoot.native.library import Library
from surefoot.native.records import KIND_COPY, Ends, Record, type_code
from surefoot.native.records import Sequence as SequenceRecord
from surefoot.ops.rope import RopeTables
from surefoot.tree import path_to
from surefoot.types import Capture, TargetOutput

NATIVE_DTYPES = (torch.float32, torch.bfloat16)
MOST_HEAD_DIM, MOST_TAPS = 256, 8
"""Sizes the kernels have room for: of an attention head, and of a delta layer's convolution."""

HEAD_SHARES = ((0, 1), (3, 5), (1, 4), (9, 13), (2, 9), (6, 14), (5, 14), (15, 16))
HEAD_OUTPUTS = 4096
"""Of the head, so many last outputs are tested: the whole one would take longer than all the rest."""
_FEW = 16
"""Rows laid out one by one; more are laid out together."""
NOTHING_SHOWN = (0, 0, 0, 0, 0)
"""The last words of a ``Call`` that ends with its steps."""
_WORD = 8
_SEQUENCE_WORDS = sizeof(SequenceRecord) // _WORD


def computes(config: DecoderConfig) -> bool:
    """Whether the kernels have room for layers of this shape; torch computes those they have none for."""
    taps = 1 if config.delta is None else config.delta.conv_size
    return config.head_dim <= MOST_HEAD_DIM and taps <= MOST_TAPS


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
        replayer: commits paths of delta layers as these forwards compute them; None where there are no such layers.
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
        self.replayer: Replayer | None = None if config.delta is None else NativeReplayer(library)
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
        self._ends_address = self._ends.address
        self._programs: dict[tuple[int, ...], array[int]] = {}

    @property
    def instructions(self) -> str:
        """The instruction set of the kernels."""
        return self._library.instructions

    @property
    def threads(self) -> int:
        """How many threads the next forward runs on."""
        return self._library.threads

    def compute(self, ids: Sequence[int], spans: Sequence[Span], capture: Capture, *, first: int = 0) -> TargetOutput:
        """As :meth:`surefoot.models.forward.Forward.compute`, in one call of the kernels.

        Raises:
            TargetError: no memory was left for what lies between the layers.
        """
        count, config = len(ids), self._config
        program, layers = self._program(()), dict[int, Tensor]()
        if capture.layers:
            layers = {layer: self._rows_of(count) for layer in sorted(set(capture.layers))}
            program = array("q", self._program(tuple(layers)))
            copies = [word for word in range(0, len(program), 3) if program[word] == KIND_COPY]
            for word, copy in zip(copies, layers.values(), strict=True):
                program[word + 2] = copy.data_ptr()
        final = self._rows_of(count) if capture.final else None
        logits = torch.empty(count - first, config.vocab_size, dtype=torch.float32) if first < count else None
        tokens = array("q", ids)
        shown = (
            self._ends_address,
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
        self, stream: tuple[int, int, int], spans: Sequence[Span], steps: array[int], shown: tuple[int, ...]
    ) -> None:
        """Calls the kernels with the words of a ``Call``: rows, width and address of the stream; what is shown."""
        rows, seen = _long_chain(spans[0]) if _is_long_chain(spans) else _rows(spans)
        sequences = array("q", [word for span in spans for word in span.cache.record])
        states = self._open_states(spans, sequences)
        addresses = (_address(rows), _address(sequences), _address(seen), _address(steps))
        call = array("q", (self._type, *stream, *addresses, len(steps) // 3, *shown))
        if self._library.forward(_address(call)):
            raise TargetError(f"no memory was left for a forward of {stream[0]} rows; expected room for it")
        del states  # which the kernels read until here

    def _open_states(self, spans: Sequence[Span], sequences: array[int]) -> array[int]:
        """The records ``States`` of a forward, told to its sequences; empty where no layer has any."""
        words = array("q")
        if self._config.delta is None:
            return words
        first_row = 0
        for span in spans:
            cache = span.cache
            assert isinstance(cache, HybridCache), cache
            cache.states.open(cache.transaction.open, span.nodes, keeps_tape=not span.is_prefill)
            words.extend(state_words(cache.states, span.nodes, cache.length, first_row, span.num_new))
            first_row += span.num_new
        for index in range(len(spans)):
            sequences[(index + 1) * _SEQUENCE_WORDS - 1] = _address(words) + index * NUM_WORDS * _WORD
        return words

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
        config = self._config
        generator = torch.Generator().manual_seed(0)
        x_NH = torch.randn(max(ROW_COUNTS), config.hidden_size, generator=generator).to(self._dtype)
        yield "the output head", partial(self._head_differs, x_NH)
        yield "the choice of the likeliest tokens", partial(_choice_differs, generator, config.vocab_size)
        kinds: dict[str, int] = {}
        for layer in range(config.num_layers):
            kinds.setdefault(_kind_of(config, layer), layer)
        for name, layer in kinds.items():
            yield name, partial(self._layer_differs, x_NH, layer, generator)

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
        """Whether some node of a chain or tree comes out otherwise than at the end of its path, row after row, or the
        commit of a path leaves another memory."""
        config, most = self._config, max(ROW_COUNTS)
        length = max(0, min(CONTEXT, config.context_length - most))
        cache = make_cache(
            _first_layers(config, layer + 1),
            owner=self,
            capacity=length + most,
            rope=self.rope_tables.table(length + most),
            like=(torch.empty(0, dtype=self.cache_dtype), x_NH),
            replayer=self.replayer,
        )
        cache.fill_committed(length, generator)
        steps = self._program(())[6 * layer : 6 * layer + 6]

        def compute(x: Tensor, nodes: OpenNodes) -> Tensor:
            self._call((*x.shape, x.data_ptr()), [Span(cache, nodes, len(x))], steps, NOTHING_SHOWN)
            return x

        def memory(start: int) -> tuple[Tensor, ...]:
            if layer not in config.delta_layers:
                return cache.rows_to_read(start, cache.length)[-2:]
            assert isinstance(cache, HybridCache), cache
            committed = cache.states.committed
            return committed.state[-1], committed.history[-1]

        return layer_differs(compute, cache, x_NH) or commit_differs(compute, cache, x_NH, memory)

    def _layer(self, index: int, weights: LayerWeights) -> tuple[tuple[int, Record], tuple[int, Record]]:
        """A layer's two blocks: what they are, and their records."""
        mixer = mixer_block(weights.mixer, self._config, index, self.cache_dtype)
        feed_forward = feed_forward_block(weights.feed_forward, self._config)
        self._kept += [mixer, feed_forward]
        return (mixer.kind, mixer.record), (feed_forward.kind, feed_forward.record)

    def _program(self, layers: tuple[int, ...]) -> array[int]:
        """The words of a forward's steps: each layer's blocks, and a copy after each of ``layers``."""
        known = self._programs.get(layers)
        if known is None:
            known = array("q")
            for index, blocks in enumerate(self._blocks):
                for kind, record in blocks:
                    known.extend((kind, record.address, 0))
                if index in layers:
                    known.extend((KIND_COPY, 0, 0))
            self._programs[layers] = known
        return known


def _choice_differs(generator: torch.Generator, vocab_size: int) -> bool:
    """Whether the likeliest token of some row, which has equals, is another one beside other rows than alone."""
    width = min(vocab_size, HEAD_OUTPUTS)
    logits = torch.randn(max(ROW_COUNTS), width, generator=generator).round()
    alone = [token for row in logits.split(1) for token in best(row, width)]
    shares = (*HEAD_SHARES, (0, len(alone)))
    return any(best(logits[start:stop], width) != alone[start:stop] for start, stop in shares)


def _kind_of(config: DecoderConfig, layer: int) -> str:
    """What a layer is called; layers of one name are computed by the same kernels."""
    window = config.windows[layer]
    name = "a delta layer" if layer in config.delta_layers else "a layer"
    if window is not None and layer not in config.delta_layers:
        name += f" of window {window}"
    return name + " with experts" * (layer in config.sparse_layers)


def _first_layers(config: DecoderConfig, count: int) -> DecoderConfig:
    """The shape of a decoder of the first ``count`` layers."""
    kept = frozenset(range(count))
    return replace(
        config,
        num_layers=count,
        windows=config.windows[:count],
        delta_layers=config.delta_layers & kept,
        sparse_layers=config.sparse_layers & kept,
    )


def _address(words: array[int]) -> int:
    return words.buffer_info()[0]


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
