"""The shared decoder stack as a target: prefill, score, embed, unembed.

Shape suffixes: N rows of a forward, H hidden, V vocabulary, G query and key heads, K key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from surefoot.cache.kv import KVCache
from surefoot.errors import CapacityError, LoadError, TargetError
from surefoot.models.caches import make_cache
from surefoot.models.calls import check_capture, check_rounds, check_tokens, own_cache
from surefoot.models.config import DecoderConfig
from surefoot.models.forward import Forward, Span
from surefoot.models.native_forward import NATIVE_DTYPES, NativeForward, computes
from surefoot.models.weights import DecoderLayer, LayerWeights, norm_weight, wide_parameters
from surefoot.native import available
from surefoot.native.library import Library
from surefoot.ops.rows import ExactRows, FastRows, RowArithmetic
from surefoot.options import Exactness
from surefoot.protocols import Cache
from surefoot.types import Capture, DraftTree, TargetOutput, Tokens

CPU_CACHE_DTYPE = {torch.bfloat16: torch.float32, torch.float16: torch.float32}
"""On a CPU keys and values of half-width models are kept in fp32: they leave RoPE in fp32, and the library's
attention over half-width keys is several times slower there."""


class DecoderModel(nn.Module):
    """A decoder, as a target or as a draft model.

    Built from a config alone, on any device (``meta`` too), it holds parameters only. Whoever fills them calls
    :meth:`prepare` once afterwards; until then it computes nothing. Read outputs, or
    clone them to change them. ``logits`` are the product in the model's dtype, widened to fp32 (fp64 stays).
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self._config = config
        self._forward: Forward | NativeForward | None = None
        self._strict = False
        self._tested_on: tuple[int, str | None] | None = None
        self._released = False
        self._prefill_chunk = 0
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size), requires_grad=False)
        self.layers = nn.ModuleList(DecoderLayer(config, index) for index in range(config.num_layers))
        self.norm = nn.Parameter(torch.empty(config.hidden_size), requires_grad=False)
        self.head: nn.Parameter | None = None
        if not config.tied_head:
            self.head = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size), requires_grad=False)

    def cast(self, dtype: torch.dtype) -> None:
        """Gives every parameter ``dtype``, and at least fp32 to those that are never narrower."""
        wide = wide_parameters(self._config)
        for name, parameter in self.named_parameters():
            kept = torch.promote_types(dtype, torch.float32) if name.rpartition(".")[2] in wide else dtype
            parameter.data = parameter.data.to(kept)

    def prepare(self, *, exact: Exactness, prefill_chunk: int, trainable: bool = False, release: bool = False) -> None:
        """Makes the model ready: lays out its weights and tests whether rows are exact.

        On a CPU the native kernels are used for fp32 and bf16 where they were built; their rows are exact in any mode.
        Elsewhere, and where it is to stay ``trainable``, ``exact="auto"`` takes torch's fastest arithmetic, and
        :attr:`strict` says what the test found; ``"require"`` takes the exact one, and a difference is a ``LoadError``.
        Call it again after moving or changing parameters, unless ``release`` let go of them: the kernels' packed
        weights are then the only ones.
        """
        if self._released:
            raise LoadError("the weights were packed and let go of; expected them to be there. Load the model again")
        kernels = available() if self._fits_kernels() and not trainable else None
        with torch.inference_mode():
            if kernels is None:
                self._forward = self._torch_forward(ExactRows() if exact == "require" else FastRows())
            else:
                self._forward = self._native_forward(kernels, release=release)
            found = self._forward.differing_rows(stop_early=exact == "auto")
        if found and exact == "require":
            raise LoadError(
                f"exact arithmetic was required, and here rows differ in {', '.join(found)}; expected the same "
                "bits at every number of rows. Load with exact='auto', or in another dtype"
            )
        self._strict, self._tested_on = not found, self._computes_on()
        self._prefill_chunk = prefill_chunk

    def _fits_kernels(self) -> bool:
        return self.device.type == "cpu" and self.dtype in NATIVE_DTYPES and computes(self._config)

    def _views(self, *, release: bool = False) -> Iterator[LayerWeights]:
        """Each layer's weights; with ``release`` its parameters are emptied when the next is asked for."""
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer), layer
            yield layer.views()
            if release:
                _empty(layer.parameters())

    def _torch_forward(self, rows: RowArithmetic) -> Forward:
        head = self.embedding if self.head is None else self.head
        cache_dtype = CPU_CACHE_DTYPE.get(self.dtype, self.dtype) if self.device.type == "cpu" else self.dtype
        return Forward(
            config=self._config,
            layers=tuple(self._views()),
            norm=norm_weight(self.norm, self._config),
            embedding=self.embedding.detach(),
            head=head.detach(),
            rows=rows,
            cache_dtype=cache_dtype,
        )

    def _native_forward(self, kernels: Library, *, release: bool) -> NativeForward:
        """The kernels' own layout of the weights; with ``release`` the only one, and never both at once of more than a
        layer."""
        if release:
            self._released = True
            self.register_state_dict_pre_hook(_refuse_state)  # type: ignore[no-untyped-call]  # so it is in torch
        forward = NativeForward(
            config=self._config,
            layers=self._views(release=release),
            norm=norm_weight(self.norm, self._config),
            embedding=self.embedding.detach(),
            head=None if self.head is None else self.head.detach(),
            library=kernels,
            in_place=release,
        )
        if release:
            _empty([self.norm, self.embedding if self.head is None else self.head])
        return forward

    def _ready(self) -> Forward | NativeForward:
        if self._forward is None:
            raise TargetError(
                "the model was used before its weights were ready; expected a loaded model. Call prepare first"
            )
        return self._forward

    @property
    def config(self) -> DecoderConfig:
        """What it was built from."""
        return self._config

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return self._config.vocab_size

    @property
    def context_length(self) -> int:
        """Most tokens a sequence may have."""
        return self._config.context_length

    @property
    def num_layers(self) -> int:
        """Decoder layers, as ``Capture.layers`` counts them."""
        return self._config.num_layers

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return self._config.hidden_size

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.device

    @property
    def strict(self) -> bool:
        """Whether the self-test found a row's bits independent of the rows beside it; run again where the number of
        threads, or the kernels' instruction set, is another."""
        if self._forward is not None and self._tested_on != self._computes_on():
            with torch.inference_mode():
                self._strict = not self._forward.differing_rows(stop_early=True)
            self._tested_on = self._computes_on()
        return self._strict

    def _computes_on(self) -> tuple[int, str | None]:
        """What bits may depend on: the number of threads, and the kernels' instruction set."""
        if isinstance(self._forward, NativeForward):
            return self._forward.threads, self._forward.instructions
        return torch.get_num_threads(), None

    @property
    def kernels(self) -> str | None:
        """The instruction set of the native kernels it runs on; None where torch computes."""
        return self._forward.instructions if isinstance(self._forward, NativeForward) else None

    def new_cache(self, length: int, *, spare: int = 0) -> KVCache:
        """An empty cache for one sequence of at most ``length`` tokens, with room for ``spare`` tentative ones beyond.

        Where RoPE depends on a sequence's length, ``length`` alone decides, here and once.

        Raises:
            CapacityError: ``length`` is less than 1 or ``spare`` less than 0.
        """
        for name, count, least in (("length", length, 1), ("spare", spare, 0)):
            if not isinstance(count, int) or isinstance(count, bool) or count < least:
                raise CapacityError(f"a cache with {name} {count!r} was asked for; expected an integer from {least} up")
        forward = self._ready()
        like = torch.empty(0, dtype=forward.cache_dtype, device=self.device)
        return make_cache(
            self._config,
            owner=self,
            capacity=length + spare,
            rope=forward.rope_tables.table(length),
            like=(like, like.to(self.dtype)),
            replayer=forward.replayer,
        )

    def serves(self, cache: Cache, length: int) -> bool:
        """Whether the cache's committed rows are those of a sequence of at most ``length`` tokens.

        False for another model's cache, and where a sequence of that length is rotated by another table.
        """
        if not isinstance(cache, KVCache) or cache.owner is not self:
            return False
        return self._ready().rope_tables.is_for(cache.rope, length)

    def prefill(self, tokens: Sequence[int], cache: Cache, capture: Capture) -> Iterator[tuple[Tokens, TargetOutput]]:
        """Feeds committed tokens chunk by chunk; the last output carries the last row's logits.

        All is checked before the first chunk is asked for. Each chunk is committed before it is yielded, so closing the
        iterator early leaves a valid, shorter sequence.
        """
        own = own_cache(cache, self)
        check_capture(capture, self._config)
        ids = check_tokens(tokens, self._config)
        own.transaction.require_closed("prefill")
        own.transaction.require_room(len(ids))
        self._check_context(own.length + len(ids))
        return self._prefill_chunks(ids, own, capture)

    def _prefill_chunks(self, ids: Tokens, cache: KVCache, capture: Capture) -> Iterator[tuple[Tokens, TargetOutput]]:
        forward = self._ready()
        for start in range(0, len(ids), self._prefill_chunk):
            chunk = ids[start : start + self._prefill_chunk]
            is_last = start + len(chunk) == len(ids)
            transaction = cache.transaction
            transaction.require_closed("prefill")
            nodes = transaction.extended(range(-1, len(chunk) - 1))
            first = 0 if capture.logits else len(chunk) - 1 if is_last else len(chunk)
            out = forward.compute(chunk, [Span(cache, nodes, len(chunk), is_prefill=True)], capture, first=first)
            cache.commit_chunk(len(chunk))
            yield chunk, out

    def score(self, rounds: Sequence[tuple[DraftTree, Cache]], capture: Capture) -> list[TargetOutput]:
        """Appends each tree's nodes to its cache's open round, opened if need be, in one forward over all sequences.

        Siblings share a position, a node sees the committed tokens and its ancestors. Nothing is appended anywhere
        unless all of it is: an error, whenever it comes, leaves every cache as it was.
        """
        forward = self._ready()
        check_capture(capture, self._config)
        spans = check_rounds(rounds, self, self._config)
        for span in spans:
            self._check_context(span.cache.length + max(span.nodes.depths) + 1)
        ids = [token for tree, _ in rounds for token in tree.ids]
        out = forward.compute(ids, spans, capture)
        for span in spans:
            span.cache.transaction.open = span.nodes
        return _split(out, spans)

    def embed(self, tokens: Tensor) -> Tensor:
        """Input embeddings of ``tokens``: int64 ``[...] -> [..., H]`` in the model's dtype."""
        if tokens.dtype != torch.int64:
            raise TargetError(f"embed was given tokens of {tokens.dtype}; expected torch.int64")
        with torch.inference_mode():
            flat = self._ready().embed(tokens.to(self.device).reshape(-1))
            return flat.view(*tokens.shape, self._config.hidden_size)

    def unembed(self, hidden: Tensor) -> Tensor:
        """Logits of normalised hidden states: ``[..., H] -> [..., V]``, widened to fp32 at least."""
        if hidden.shape[-1:] != (self._config.hidden_size,):
            raise TargetError(
                f"unembed was given hidden states of shape {tuple(hidden.shape)}; expected a last dimension of "
                f"{self._config.hidden_size}"
            )
        with torch.inference_mode():
            logits = self._ready().unembed(hidden.to(self.dtype).reshape(-1, self._config.hidden_size))
            return logits.view(*hidden.shape[:-1], self._config.vocab_size)

    def _check_context(self, length: int) -> None:
        if length > self._config.context_length:
            raise TargetError(
                f"a sequence of {length} tokens was given; expected at most {self._config.context_length}, the model's "
                "context length. Shorten the prompt or ask for fewer tokens"
            )


def _empty(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.data = parameter.data.new_empty(0)


def _refuse_state(*_: object) -> None:
    """Keeps weights that are not there from being saved."""
    raise LoadError(
        "the weights were packed and let go of, so there is no state to give out; expected a model that keeps them. "
        "Load it with trainable=True"
    )


def _split(out: TargetOutput, spans: Sequence[Span]) -> list[TargetOutput]:
    """One output per sequence, of the rows it put into the forward."""
    if len(spans) == 1:
        return [out]
    assert out.logits is not None
    counts = [span.num_new for span in spans]
    logits = out.logits.split_with_sizes(counts)
    layers = list(zip(*(layer.split_with_sizes(counts) for layer in out.layers), strict=True)) or [()] * len(spans)
    finals = [None] * len(spans) if out.final is None else out.final.split_with_sizes(counts)
    return [
        TargetOutput(logits=rows, layers=tuple(captured), final=final)
        for rows, captured, final in zip(logits, layers, finals, strict=True)
    ]
