"""Whole models on the kernels: however rows come together, they are the bits of one token after the other."""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from tests.factories import make_model
from tests.guesses import Guesser, half_right
from tests.models.routes import random_case
from torch import Tensor

from surefoot import Engine, SamplingParams, native
from surefoot.cache.hybrid import HybridCache
from surefoot.cache.kv import KVCache
from surefoot.drafters.lookup import Lookup
from surefoot.models.decoder import DecoderModel
from surefoot.native.library import Library
from surefoot.protocols import DrafterModel
from surefoot.tree import chain, path_to
from surefoot.types import Capture, TargetOutput

VOCAB = 97
BF16, FP32 = torch.bfloat16, torch.float32
SHOWN = Capture(layers=(1, 0), final=True, logits=True)
FACTORS = {"short_factor": [1.0, 1.1, 1.3], "long_factor": [1.0, 2.0, 8.0]}
LONG = {"type": "longrope", **FACTORS}
Options = dict[str, object]
FAMILIES: dict[str, Options] = {
    "llama": {"family": "llama", "rope_scaling": {"rope_type": "dynamic", "factor": 8.0}},
    "mistral, a window": {"family": "mistral", "sliding_window": 5},
    "phi3, part of each head": {"family": "phi3", "partial_rotary_factor": 0.5, "rope_scaling": LONG},
    "qwen2, biases, some windows": {
        "family": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 6,
        "max_window_layers": 1,
    },
    "qwen3, norms, tied": {"family": "qwen3", "num_key_value_heads": 1, "tie_word_embeddings": True},
    "odd sizes": {"family": "qwen3", "hidden_size": 51, "intermediate_size": 37, "head_dim": 10, "vocab_size": 101},
}
SMALL: Options = {"num_hidden_layers": 2, "intermediate_size": 72, "max_position_embeddings": 640}
WIDE: dict[str, Options] = {
    "896 wide": {"family": "qwen2", "hidden_size": 896, "num_attention_heads": 14, "intermediate_size": 1208},
    "2048 wide": {"family": "llama", "hidden_size": 2048, "num_attention_heads": 32, "intermediate_size": 1400},
}

pytestmark = [
    pytest.mark.skipif(native.available() is None, reason=f"there are no kernels: {native.why_not()}"),
    pytest.mark.usefixtures("one_thread"),
]


@cache
def model_of(name: str, dtype: torch.dtype) -> DecoderModel:
    return make_model(dtype=dtype, seed=4, exact="require", **options_of(name))  # type: ignore[arg-type]


def options_of(name: str) -> Options:
    """A tiny model's; where lengths decide on frequencies, a short and a long sequence have different ones."""
    options = SMALL | FAMILIES[name]
    if name == "phi3, part of each head":
        options |= {"original_max_position_embeddings": 32}
    if name == "llama":
        options |= {"max_position_embeddings": 40}
    return options


def wide_model(name: str, dtype: torch.dtype) -> DecoderModel:
    sizes = {"num_hidden_layers": 2, "vocab_size": 331, "num_key_value_heads": 2}
    return make_model(dtype=dtype, seed=4, **{**sizes, **WIDE[name]})  # type: ignore[arg-type]


def text_of(length: int, seed: int = 1) -> tuple[int, ...]:
    source = random.Random(seed)
    return tuple(source.randrange(VOCAB) for _ in range(length))


def parts(outputs: Sequence[TargetOutput]) -> list[Tensor]:
    """Logits, final states and captured layers, each of all outputs together."""
    columns = zip(*((out.logits, out.final, *out.layers) for out in outputs), strict=True)
    return [torch.cat(column) for column in columns]


def committed(cache: KVCache) -> Tensor:
    """All that is remembered of the committed tokens, end to end."""
    parts = [torch.stack(cache.rows_to_read(0, cache.length))]
    if isinstance(cache, HybridCache):
        parts += [cache.states.committed.state, cache.states.committed.history.float()]
    return torch.cat([part.flatten() for part in parts])


def stepped(model: DecoderModel, tokens: Sequence[int], cache: KVCache) -> list[Tensor]:
    """Plain decoding: one token, one round; what every row shows."""
    outputs = []
    for token in tokens:
        outputs += model.score([(chain([token]), cache)], SHOWN)
        cache.commit((0,))
    return parts(outputs)


def equal(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def chunks_that_differ(
    model: DecoderModel, tokens: Sequence[int], sizes: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """Which chunk sizes show another bit than plain decoding, in what is shown or kept."""
    cache = model.new_cache(len(tokens))
    steps = [*stepped(model, tokens, cache), committed(cache)]
    found = []
    for size in sizes:
        monkeypatch.setattr(model, "_prefill_chunk", size)
        cache = model.new_cache(len(tokens))
        shown = parts([out for _, out in model.prefill(tokens, cache, SHOWN)])
        if not equal([*shown, committed(cache)], steps):
            found.append(size)
    return found


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_prompt_in_any_chunks_is_decoding_step_by_step(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(name, dtype)
    assert chunks_that_differ(model, text_of(70), (1, 2, 3, 7, 16, 17, 64, 512), monkeypatch) == []


@pytest.mark.parametrize("name", FAMILIES)
def test_what_they_show_is_what_torch_computes(name: str) -> None:
    tokens = text_of(60)
    results = []
    for dtype, trainable in ((FP32, False), (torch.float64, True), (BF16, False), (BF16, True)):
        options = options_of(name)
        model = make_model(dtype=dtype, seed=4, trainable=trainable, prefill_chunk=25, **options)  # type: ignore[arg-type]
        assert (model.kernels is None) is trainable
        results.append(parts([out for _, out in model.prefill(tokens, model.new_cache(60), SHOWN)]))
    for fp32, exact, bf16, plain in zip(*results, strict=True):
        size = float(exact.abs().max())
        assert float((fp32 - exact).abs().max()) < 1e-5 * size
        # In bf16 errors are those of torch's own path, which rounds at the same places.
        errors = [float((found.double() - exact).square().mean().sqrt()) for found in (bf16, plain)]
        assert errors[0] < 1.25 * errors[1]


def test_layers_come_in_the_order_they_are_asked_for_and_once_each_time() -> None:
    model = model_of("qwen3, norms, tied", FP32)
    cache = model.new_cache(8)

    def layers(*asked: int) -> tuple[Tensor, ...]:
        (out,) = model.score([(chain([1, 2, 3]), cache)], Capture(layers=asked))
        cache.rollback()
        return out.layers

    first, last = layers(0, 1)
    assert not torch.equal(first, last)
    assert equal(layers(1, 0, 1), (last, first, last))
    assert layers() == ()


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_a_chunk_of_512_tokens_is_decoding_step_by_step(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("mistral, a window", dtype)
    assert chunks_that_differ(model, text_of(530), (64, 512), monkeypatch) == []


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("name", WIDE)
def test_wide_models_are_exact_in_chunks_and_trees(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = wide_model(name, dtype)
    assert chunks_that_differ(model, text_of(19), (2, 3, 7, 16, 64), monkeypatch) == []
    assert rounds_that_differ(model, [(12, (9,), 21), (3, (7,), 10)]) == []


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_whole_models_are_exact_in_every_set_on_any_number_of_threads(
    kernels: Library, each_set: str, dtype: torch.dtype
) -> None:
    model = model_of("odd sizes", dtype)
    shown = []
    for threads in (1, 2, 3):
        kernels.use_threads(threads)
        assert model.strict
        cache = model.new_cache(40)
        shown.append([*parts([out for _, out in model.prefill(text_of(37), cache, SHOWN)]), committed(cache)])
        assert rounds_that_differ(model, [(12, (9,), 40), (1, (2, 3), 10)]) == [], threads
    assert equal(shown[0], shown[1])
    assert equal(shown[0], shown[2])
    kernels.use_threads(None)
    other = model.new_cache(40)
    assert not equal(shown[0], [*stepped(model, text_of(37, seed=2), other), committed(other)])


def rounds_that_differ(model: DecoderModel, sequences: Sequence[tuple[int, tuple[int, ...], int]]) -> list:
    """Which nodes or kept rows differ from plain decoding, of several sequences scored together.

    A sequence is a prompt's length, the sizes of the calls its tree comes in, and the length its cache is for.
    """
    cases, caches = [], []
    for index, (length, sizes, _) in enumerate(sequences):
        case = random_case(31 * index + sum(sizes), VOCAB, length, sum(sizes), len(sizes))
        cases.append(case)
        cache = model.new_cache(sequences[index][2], spare=16)
        list(model.prefill(case.prompt, cache, Capture()))
        caches.append(cache)
    before = [cache.fork(cache.capacity) for cache in caches]
    calls: list[list[TargetOutput]] = [[] for _ in cases]
    for number in range(max(len(case.sizes) for case in cases)):
        given = [index for index, case in enumerate(cases) if number < len(case.trees())]
        outs = model.score([(cases[index].trees()[number], caches[index]) for index in given], SHOWN)
        for index, out in zip(given, outs, strict=True):
            calls[index].append(out)
    found = []
    for index, (case, cache, fork) in enumerate(zip(cases, caches, before, strict=True)):
        together = parts(calls[index])
        leaves = [node for node in range(len(case.tokens)) if node not in case.parents]
        for leaf in leaves:
            path = path_to(case.parents, leaf)
            own = fork.fork(fork.capacity)
            steps = stepped(model, [case.tokens[node] for node in path], own)
            if not equal([rows[list(path)] for rows in together], steps):
                found.append((index, leaf))
        cache.commit(path)
        if not torch.equal(committed(cache), committed(own)):
            found.append((index, "cache"))
    return found


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_trees_of_several_sequences_in_one_call_are_decoding_step_by_step(name: str, dtype: torch.dtype) -> None:
    model = model_of(name, dtype)
    for rows in range(1, 17):  # the second sequence is short enough to be turned by another table, where lengths matter
        assert rounds_that_differ(model, [(20 + rows, (rows,), 60)]) == [], rows
    grown = [(33, (3, 4, 2), 64), (5, (1, 5), 14), (14, (8,), 64), (1, (2, 2, 2, 2), 10)]
    assert rounds_that_differ(model, grown) == []
    assert rounds_that_differ(model, [(10, (20,), 64)]) == []


def test_the_comparison_sees_a_row_of_a_wrong_table_and_one_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("llama", FP32)
    sequences = [(10, (4,), 72), (9, (3,), 90)]
    assert rounds_that_differ(model, sequences) == []
    score = DecoderModel.score

    def exchanged(self: DecoderModel, rounds: list, capture: Capture) -> list[TargetOutput]:
        if len(rounds) > 1:
            caches = [cache for _, cache in rounds]
            tables = [cache.rope for cache in caches]
            for cache, table in zip(caches, reversed(tables), strict=True):
                cache.rotate_by(table)
        return score(self, rounds, capture)

    monkeypatch.setattr(DecoderModel, "score", exchanged)
    assert {index for index, _ in rounds_that_differ(model, sequences)} == {0, 1}


def test_a_table_that_grows_while_the_kernels_read_it_changes_nothing(
    kernels: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("qwen3, norms, tied", FP32)
    cache = model.new_cache(8)
    expected = stepped(model, text_of(4), cache)
    other = make_model(dtype=FP32, seed=4, exact="require", **SMALL, **FAMILIES["qwen3, norms, tied"])  # type: ignore[arg-type]
    run, litter = kernels.forward, []

    def forward(call: int) -> int:
        other.new_cache(600)  # as another thread may; the table of before is let go of
        gc.collect()
        litter.extend(torch.full((512, 1, 16), torch.nan) for _ in range(20))
        return run(call)

    cache = other.new_cache(8)
    monkeypatch.setattr(kernels, "forward", forward)
    (out,) = other.score([(chain(text_of(4)), cache)], SHOWN)
    assert torch.equal(out.logits, expected[0])


PROMPT = (5, 9, 5, 9, 11, 60, 5, 9, 11, 3, 3, 7)
NUM_TOKENS = 2000


@cache
def long_model() -> DecoderModel:
    sizes: Options = {"num_hidden_layers": 2, "hidden_size": 48, "intermediate_size": 72}
    return make_model("qwen3", BF16, seed=3, exact="require", max_position_embeddings=2048, **sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_two_thousand_speculative_tokens_in_bf16_are_the_plain_ones(temperature: float) -> None:
    model = long_model()
    params = SamplingParams(temperature=temperature, max_tokens=NUM_TOKENS, seed=11, ignore_eos=True)
    plain = Engine(model).generate(PROMPT, params)
    assert model.kernels is not None
    assert len(plain.tokens) == NUM_TOKENS
    tree = Guesser(half_right([*plain.tokens, *[0] * 8], len(PROMPT), VOCAB))
    drafters: list[DrafterModel] = [tree, Lookup(min_match=1)]
    for drafter in drafters:
        result = Engine(model, drafter).generate(PROMPT, params)
        assert result.tokens == plain.tokens
        assert result.stats.strict
        assert result.stats.fallbacks == 0
        assert result.stats.accepted > 0
    other = SamplingParams(temperature=0.8, max_tokens=40, seed=12, ignore_eos=True)
    assert Engine(model).generate(PROMPT, other).tokens != plain.tokens[:40]
