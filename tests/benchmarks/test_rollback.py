"""The benchmark of undoing rounds: its hybrids, and what it says of their memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmarks.figures import Figure, Options
from benchmarks.rollback import NUM_ROWS, ROUNDS, SIZES, commit, memory, one_round, raw_config, ready, shared_layers

from surefoot.models import FAMILIES
from surefoot.models.decoder import DecoderModel

OPTIONS = Options(
    cache=Path("nowhere"), models=("small",), dtypes=("float32",), threads=1, turns=1, num_draft=8, quick=True
)


@pytest.fixture(scope="module")
def small() -> DecoderModel:
    return shared_layers(SIZES["small"], torch.float32)


def test_a_hybrid_of_four_billion_has_the_published_sizes() -> None:
    config = FAMILIES["qwen3_5"].parse(raw_config(SIZES["4b"]))
    assert config.delta is not None
    assert (len(config.delta_layers), len(config.attention_layers)) == (24, 8)
    assert (config.delta.num_key_heads, config.delta.num_value_heads) == (16, 32)
    assert (config.delta.key_dim, config.delta.value_dim, config.delta.channels) == (128, 128, 8192)
    with torch.device("meta"):
        model = DecoderModel(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(3.6e9, rel=0.05)


def test_layers_of_a_kind_are_one_layers_weights(small: DecoderModel) -> None:
    different = {parameter.data_ptr() for _, parameter in small.named_parameters(remove_duplicate=False)}
    assert len(different) < len(list(small.named_parameters(remove_duplicate=False)))
    assert small.strict or small.kernels is None


def figure(figures: tuple[Figure, ...], ending: str) -> Figure:
    (found,) = (one for one in figures if one.case.endswith(ending))
    return found


def test_memory_is_that_of_the_buffers() -> None:
    figures = memory(OPTIONS).figures
    state = 3 * (4 * 16 * 16 * 4 + 3 * (2 * 2 * 16 + 4 * 16) * 4)
    tape = 3 * NUM_ROWS * 4 * ((2 * 2 * 16 + 4 * 16) + 2 * 16 + 4 * 16 + 4)
    assert figure(figures, "the states of all layers").median == pytest.approx(state / 1e6)
    assert figure(figures, f"the tape of {NUM_ROWS} nodes").median == pytest.approx(tape / 1e6)
    assert figure(figures, "stack / tape").median == pytest.approx(NUM_ROWS * state / tape)


def test_a_timed_round_keeps_what_it_says(small: DecoderModel) -> None:
    cache = ready(small, OPTIONS)
    before = cache.length
    timed = one_round(small, cache, 8, 3)
    assert cache.length == before + 3
    assert cache.num_open == 0
    assert 0 < timed.share < 1
    assert min(timed) > 0


def test_every_round_has_its_figures() -> None:
    figures = commit(OPTIONS).figures
    assert len(figures) == 4 * len(ROUNDS) + 1
    assert all(one.median > 0 for one in figures)
