"""Whole hybrid and sparse models on the kernels: however rows come together, they are the bits of one token after the
other, in what is shown and in what is remembered; and the test at loading sees each of their parts."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import addressof, c_float
from functools import cache

import pytest
import torch
from tests.factories import make_model
from tests.native.test_selftest import flip, tamper_block
from tests.native.test_whole_models import (
    BF16,
    FP32,
    SHOWN,
    Options,
    chunks_that_differ,
    parts,
    rounds_that_differ,
    text_of,
)

from surefoot import native
from surefoot.errors import LoadError
from surefoot.models.decoder import DecoderModel
from surefoot.native.library import Library
from surefoot.native.records import KIND_ATTENTION, KIND_DELTA, KIND_EXPERTS, Replay, States

FAMILIES: dict[str, Options] = {
    "qwen3_5": {"family": "qwen3_5"},
    "qwen3_5, heads of 256, tied": {
        "family": "qwen3_5",
        "head_dim": 256,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
        "linear_num_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "qwen3_next, Hv = 3 Hk": {"family": "qwen3_next", "linear_num_value_heads": 6, "linear_value_head_dim": 5},
    "qwen3_5_moe": {"family": "qwen3_5_moe"},
    "qwen3_moe": {"family": "qwen3_moe", "num_hidden_layers": 2},
}
WIDE: dict[str, Options] = {
    "896 wide": {"family": "qwen3_5", "hidden_size": 896, "linear_key_head_dim": 128, "linear_value_head_dim": 128},
    "2048 wide": {"family": "qwen3_next", "hidden_size": 2048, "linear_num_value_heads": 2},
}

pytestmark = [
    pytest.mark.skipif(native.available() is None, reason=f"there are no kernels: {native.why_not()}"),
    pytest.mark.usefixtures("one_thread"),
]


@cache
def model_of(name: str, dtype: torch.dtype) -> DecoderModel:
    model = make_model(dtype=dtype, seed=4, exact="require", **(FAMILIES | WIDE)[name])  # type: ignore[arg-type]
    assert model.kernels is not None
    return model


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_prompt_in_any_chunks_is_decoding_step_by_step(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chunks_that_differ(model_of(name, dtype), text_of(40), (1, 2, 3, 7, 16, 17, 64), monkeypatch) == []


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_trees_of_several_sequences_in_one_call_are_decoding_step_by_step(name: str, dtype: torch.dtype) -> None:
    model = model_of(name, dtype)
    for rows in (*range(1, 10), 12, 16):
        assert rounds_that_differ(model, [(20 + rows, (rows,), 60)]) == [], rows
    grown = [(33, (3, 4, 2), 64), (5, (1, 5), 14), (14, (8,), 64), (1, (2, 2, 2, 2), 10)]
    assert rounds_that_differ(model, grown) == []


@pytest.mark.parametrize("name", WIDE)
def test_wide_models_are_exact_in_chunks_and_trees(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype in (FP32, BF16):
        model = model_of(name, dtype)
        assert chunks_that_differ(model, text_of(9), (2, 7), monkeypatch) == []
        assert rounds_that_differ(model, [(5, (6,), 21), (3, (4,), 10)]) == []


@pytest.mark.parametrize("name", FAMILIES)
def test_what_they_show_is_what_torch_computes(each_set: str, name: str) -> None:
    tokens, results = text_of(24), []
    for dtype, trainable in ((FP32, False), (torch.float64, True), (BF16, False), (BF16, True)):
        model = make_model(dtype=dtype, seed=4, trainable=trainable, prefill_chunk=10, **FAMILIES[name])  # type: ignore[arg-type]
        assert (model.kernels is None) is trainable
        results.append(parts([out for _, out in model.prefill(tokens, model.new_cache(24), SHOWN)]))
    for fp32, exact, bf16, plain in zip(*results, strict=True):
        assert float((fp32 - exact).abs().max()) < 1e-5 * float(exact.abs().max())
        # In bf16 errors are those of torch's own path, which rounds at the same places.
        errors = [float((found.double() - exact).square().mean().sqrt()) for found in (bf16, plain)]
        assert errors[0] < 1.25 * errors[1]


def tamper_replay(kernels: Library, patch: pytest.MonkeyPatch, wrong: Callable[[int], bool]) -> None:
    run = kernels.replay

    def replay(address: int) -> None:
        run(address)
        call = Replay.from_address(address)
        states = States.from_address(call.states)
        if wrong(call.count):
            size = call.layers * call.value_heads * call.key_dim * call.value_dim
            last = c_float.from_address(states.next_state + 4 * (size - 1))
            flip(addressof(last), 4)

    patch.setattr(kernels, "replay", replay)


@pytest.mark.parametrize(
    ("part", "family", "name"),
    [
        ("delta", "qwen3_5", "a delta layer"),
        ("gated attention", "qwen3_5", "a layer"),
        ("experts", "qwen3_5_moe", "a delta layer with experts"),
        ("replay", "qwen3_5", "a delta layer"),
    ],
)
def test_one_wrong_bit_of_one_block_is_found_at_loading(
    kernels: Library, monkeypatch: pytest.MonkeyPatch, part: str, family: str, name: str
) -> None:
    kinds = {"delta": KIND_DELTA, "gated attention": KIND_ATTENTION, "experts": KIND_EXPERTS}
    tamper = tamper_block(kinds[part]) if part in kinds else tamper_replay
    for dtype in (FP32, BF16):
        with monkeypatch.context() as patch:
            tamper(kernels, patch, lambda count: count > 1)
            assert not make_model(family, dtype).strict
            with pytest.raises(LoadError, match=f"rows differ in {name}"):
                make_model(family, dtype, exact="require")
        with monkeypatch.context() as patch:
            tamper(kernels, patch, lambda count: False)
            assert make_model(family, dtype, exact="require").strict


@pytest.mark.parametrize("context", [1, 8, 16, 20])
def test_a_context_shorter_than_the_tests_rows_is_tested_all_the_same(context: int) -> None:
    assert make_model("qwen3_5", FP32, max_position_embeddings=context, exact="require").strict
