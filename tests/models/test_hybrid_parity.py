"""Hybrid and sparse models compute what transformers computes from the checkpoints it saved, states included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from tests.models.hybrids import everything, everything_theirs, prompt, saved_by_transformers
from torch import Tensor, nn

from surefoot.cache.hybrid import HybridCache
from surefoot.loading import load_target
from surefoot.models import hybrid_tensors, tensors, weights
from surefoot.models.decoder import DecoderModel
from surefoot.models.family import Grouped
from surefoot.ops import delta_rule, moe
from surefoot.options import LoadOptions
from surefoot.types import Capture

LENGTHS = (1, 2, 3, 40, 70)
"""Shorter than the convolution, and longer than the chunks transformers computes states in."""
DENSE, SPARSE = 5e-4, 2e-3
"""Largest differences of fp32 logits: a router's near ties make those of sparse models larger."""
EXPECTED_SPREAD = 0.5

Variant = dict[str, object]
VARIANTS: dict[str, Variant] = {
    "3.5": {"family": "qwen3_5"},
    "3.5, tied, a value head to a key head": {
        "family": "qwen3_5",
        "tie_word_embeddings": True,
        "linear_num_value_heads": 2,
        "linear_value_head_dim": 16,
    },
    "3.5, three value heads to a key head": {
        "family": "qwen3_5",
        "linear_num_value_heads": 6,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 3,
    },
    "3.5, heads of 256": {"family": "qwen3_5", "head_dim": 256, "num_attention_heads": 2, "num_key_value_heads": 1},
    "3.5 with experts": {"family": "qwen3_5_moe"},
    "next": {"family": "qwen3_next", "mlp_only_layers": [1], "tie_word_embeddings": True},
    "next, every second layer sparse": {
        "family": "qwen3_next",
        "decoder_sparse_step": 2,
        "norm_topk_prob": False,
        "linear_num_value_heads": 6,
    },
    "next without experts": {"family": "qwen3_next", "num_experts": 0},
    "moe": {"family": "qwen3_moe"},
    "moe, renormalised": {"family": "qwen3_moe", "norm_topk_prob": True, "mlp_only_layers": [0]},
}
HYBRIDS = [name for name, variant in VARIANTS.items() if variant["family"] != "qwen3_moe"]


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def load(path: Path, dtype: str = "float32", **options: object) -> DecoderModel:
    return load_target(path, LoadOptions(dtype=dtype, **options)).model


def bound(variant: Variant) -> float:
    return DENSE if variant["family"] == "qwen3_5" else SPARSE


def largest_difference(theirs: nn.Module, model: DecoderModel, length: int = 40) -> float:
    pairs = zip(everything_theirs(theirs, prompt(length)), everything(model, prompt(length)), strict=True)
    return max((expected - found).abs().max().item() for expected, found in pairs)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_logits_and_every_layer_agree_with_transformers(variant: Variant, tmp_path: Path) -> None:
    theirs = saved_by_transformers(tmp_path, **variant)
    for options in ({}, {"trainable": True}, {"trainable": True, "exact": "require"}):
        model = load(tmp_path, **options)
        for length in LENGTHS:
            assert largest_difference(theirs, model, length) < bound(variant), (options, length)
    assert everything(model, prompt(40))[0].std() > EXPECTED_SPREAD
    assert model.strict


@pytest.mark.parametrize("variant", [VARIANTS[name] for name in HYBRIDS], ids=HYBRIDS)
def test_the_memory_after_a_prompt_is_transformers_own(variant: Variant, tmp_path: Path) -> None:
    """Recurrent states as they are, and of the convolution's history all but its oldest row, which nothing reads."""
    theirs = saved_by_transformers(tmp_path, **variant)
    delta_layers = [index for index, kind in enumerate(theirs.config.layer_types) if kind == "linear_attention"]
    for options in ({}, {"trainable": True}):
        model = load(tmp_path, **options)
        for length in LENGTHS:
            with torch.no_grad():
                expected = theirs(prompt(length)[None], use_cache=True).past_key_values.layers
            cache = model.new_cache(length)
            list(model.prefill(prompt(length).tolist(), cache, Capture()))
            assert isinstance(cache, HybridCache)
            found = cache.states.committed
            assert found.state.dtype == torch.float32
            for slot, layer in enumerate(delta_layers):
                assert relative(found.state[slot], expected[layer].recurrent_states[0][0]) < 1e-4
                history = expected[layer].conv_states[0][0].T[1:]
                assert relative(found.history[slot], history) < 1e-4


def relative(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    return ((found - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_half_width_models_agree_with_transformers_roughly(variant: Variant, tmp_path: Path) -> None:
    """On average closely; at worst about as well as transformers agrees with its own fp32, where a rounding that sends
    a token near a router's tie through another expert shows too."""
    theirs = saved_by_transformers(tmp_path, dtype=torch.bfloat16, **variant)
    expected = everything_theirs(theirs, prompt(40))[0]
    own_error = (everything_theirs(theirs.float(), prompt(40))[0] - expected).abs().max()
    best = expected.topk(2).values
    clear = best[:, 0] - best[:, 1] > 0.5
    assert clear.sum() > 5
    for trainable in (False, True):
        found = everything(load(tmp_path, "bfloat16", trainable=trainable), prompt(40))[0]
        difference = (found - expected).abs()
        assert difference.mean() < 0.03
        assert difference.max() < max(0.25, 1.5 * own_error)
        assert torch.equal(found.argmax(-1)[clear], expected.argmax(-1)[clear])


def test_what_must_not_be_rounded_stays_fp32_in_half_width_models(tmp_path: Path) -> None:
    saved_by_transformers(tmp_path, "qwen3_5")
    kept = load(tmp_path, "float32", trainable=True).state_dict()
    narrow = load(tmp_path, "bfloat16", trainable=True).state_dict()
    wide = {name for name, tensor in narrow.items() if tensor.dtype == torch.float32}
    assert {name.rpartition(".")[2] for name in wide} == {"a_log", "dt_bias", "norm", "q_norm", "k_norm"}
    assert all(torch.equal(narrow[name], kept[name]) for name in wide)


def swapped(groups: int, parts: tuple[int, ...], order: tuple[int, ...]) -> Grouped:
    return Grouped(groups, parts, order[::-1])


def in_one_group(groups: int, parts: tuple[int, ...], order: tuple[int, ...]) -> Grouped:
    return Grouped(1, tuple(groups * part for part in parts), order)


def tiled(heads: Tensor, num_value_heads: int) -> Tensor:
    return heads.repeat(num_value_heads // heads.shape[0], 1)


def likeliest_shifted(scores: Tensor, shape: moe.ExpertShape) -> tuple[Tensor, Tensor]:
    chosen, shares = ROUTE(scores, shape)
    return (chosen + 1) % shape.num_experts, shares


ROUTE = moe.route
WRONG: dict[str, tuple[str, object, str, object]] = {
    "query and gate change places": ("3.5", tensors, "Grouped", swapped),
    "norms without their 1": ("3.5", weights, "norm_weight", lambda parameter, config: parameter.detach()),
    "key heads in turn": ("3.5, three value heads to a key head", delta_rule, "_spread", tiled),
    "grouped rows taken for flat ones": ("next", hybrid_tensors, "Grouped", in_one_group),
    "the expert beside the chosen one": ("3.5 with experts", moe, "route", likeliest_shifted),
}


@pytest.mark.parametrize(("name", "module", "part", "wrong"), WRONG.values(), ids=WRONG)
def test_a_wrong_part_would_be_seen(
    name: str, module: object, part: str, wrong: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control, on torch: the kernels have parts of their own."""
    theirs = saved_by_transformers(tmp_path, **VARIANTS[name])
    monkeypatch.setattr(module, part, wrong)
    assert largest_difference(theirs, load(tmp_path, trainable=True)) > 10 * bound(VARIANTS[name])


def test_the_stream_one_layer_earlier_would_be_seen(tmp_path: Path) -> None:
    theirs = saved_by_transformers(tmp_path, "qwen3_5")
    expected, found = everything_theirs(theirs, prompt(40)), everything(load(tmp_path), prompt(40))
    assert all((found[layer] - expected[layer + 1]).abs().max() > 0.1 for layer in (1, 2))
