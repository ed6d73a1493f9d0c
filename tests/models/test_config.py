"""Configs are read field by field; what would change the maths is refused by name."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch
from tests.factories import ARCHITECTURES, raw_config

from surefoot.errors import CheckpointError, LoadError, UnsupportedModelError
from surefoot.models import FAMILIES
from surefoot.models.decoder import DecoderModel
from surefoot.ops.rope import Rope
from surefoot.ops.rope_scaling import Llama3

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def parse(family: str = "qwen3", **overrides: object) -> object:
    return FAMILIES[family].parse(raw_config(family, **overrides))


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_fill_every_parameter_exactly_once(family: str) -> None:
    for tied in (False, True):
        config = FAMILIES[family].parse(raw_config(family, tie_word_embeddings=tied))
        with torch.device("meta"):
            model = DecoderModel(config)
        assert not list(model.buffers())
        assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
        filled = {name: torch.zeros_like(parameter, device="cpu") for name, parameter in model.named_parameters()}
        specs = FAMILIES[family].tensors(config)
        assert len({spec.name for spec in specs}) == len(specs)
        for spec in specs:
            place = torch.zeros_like(filled[spec.parameter])
            spec.fill(place, torch.ones(spec.shape))
            filled[spec.parameter] += place
        assert all((counts == 1).all() for counts in filled.values())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_act", "gelu"),
        ("quantization_config", {"bits": 4}),
        ("vision_config", {}),
        ("audio_config", {}),
        ("text_config", {}),
        ("auto_map", {"AutoModelForCausalLM": "evil.Model"}),
        ("architectures", ["DFlashDraftModel"]),
        ("partial_rotary_factor", 0.5),
        ("rope_interleaved", True),
        ("use_mrope", True),
        ("attn_logit_softcapping", 50.0),
        ("num_experts", 8),
        ("layer_types", ["linear_attention"] * 3),
        ("rope_scaling", {"rope_type": "proportional", "factor": 4.0}),
        ("rope_scaling", {"type": "mrope", "mrope_section": [1, 2, 3]}),
        ("rope_scaling", {"rope_type": "linear", "factor": 4.0, "attention_factor": 2.0}),
        ("rope_parameters", {"full_attention": {"rope_type": "default"}}),
        ("rope_parameters", {"rope_type": "default", "partial_rotary_factor": 0.25}),
    ],
)
def test_a_field_that_changes_the_maths_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(UnsupportedModelError, match=re.escape(field)):
        parse(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", -48),
        ("hidden_size", 48.0),
        ("hidden_size", True),
        ("hidden_size", None),
        ("vocab_size", 0),
        ("num_hidden_layers", 10**9),
        ("num_attention_heads", 3),
        ("num_key_value_heads", 0),
        ("num_key_value_heads", 3),
        ("head_dim", 15),
        ("max_position_embeddings", "512"),
        ("max_position_embeddings", 10**12),
        ("rms_norm_eps", -1e-6),
        ("rms_norm_eps", float("nan")),
        ("tie_word_embeddings", "yes"),
        ("rope_theta", 0),
        ("rope_scaling", "linear"),
        ("rope_scaling", {"type": "linear"}),
        ("rope_scaling", {"type": "linear", "rope_type": "default", "factor": 2.0}),
        ("rope_scaling", {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 4.0}),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 5.0}),
        ("layer_types", ["sliding_attention"] * 3),
        ("layer_types", ["full_attention"]),
        ("layer_types", "full_attention"),
    ],
)
def test_a_damaged_field_is_named(field: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=re.escape(field)):
        parse(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("use_cache", True),
        ("attention_dropout", 0.1),
        ("transformers.js_config", {}),
        ("_name_or_path", "somewhere"),
        ("temperature", 0.6),
        ("rope_interleaved", False),
        ("partial_rotary_factor", 1.0),
        ("some_future_field", None),
        ("rope_scaling", None),
    ],
)
def test_a_harmless_field_changes_nothing(field: str, value: object) -> None:
    assert parse(**{field: value}) == parse()


def test_hidden_size_must_divide_among_heads_unless_they_have_a_size() -> None:
    with pytest.raises(CheckpointError, match="hidden_size"):
        parse("llama", hidden_size=50)
    assert parse("llama", hidden_size=50, head_dim=16).head_dim == 16
    assert FAMILIES["qwen3"].parse(raw_config() | {"head_dim": None}).head_dim == 128


def test_windows_follow_each_family() -> None:
    assert parse("mistral", sliding_window=9).windows == (9, 9, 9)
    assert parse("mistral", sliding_window=None).windows == (None, None, None)
    sliding = {"sliding_window": 9, "max_window_layers": 2}
    assert parse("qwen2", use_sliding_window=True, **sliding).windows == (None, None, 9)
    assert parse("qwen2", use_sliding_window=False, **sliding).windows == (None, None, None)
    raw = raw_config("mistral")
    del raw["sliding_window"]
    with pytest.raises(CheckpointError, match="sliding_window"):
        FAMILIES["mistral"].parse(raw)
    with pytest.raises(UnsupportedModelError, match="sliding_window"):
        parse("llama", sliding_window=9)


def test_missing_key_value_heads_mean_query_heads_in_llama_and_phi3_alone() -> None:
    for family in FAMILIES:
        raw = raw_config(family, head_dim=16)
        del raw["num_key_value_heads"]
        assert FAMILIES[family].parse(raw | {"num_key_value_heads": None}).num_kv_heads == 4
        if family in ("llama", "phi3"):
            assert FAMILIES[family].parse(raw).num_kv_heads == 4
        else:
            with pytest.raises(CheckpointError, match="num_key_value_heads"):
                FAMILIES[family].parse(raw)


def test_old_and_new_forms_of_rope_mean_the_same() -> None:
    old = parse(rope_theta=500.0, rope_scaling={"rope_type": "llama3", **LLAMA3}).rope
    raw = raw_config(rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, **LLAMA3})
    del raw["rope_theta"]
    assert FAMILIES["qwen3"].parse(raw).rope == old
    assert old == Rope(theta=500.0, dim=16, scaling=Llama3(factor=8.0, original_context=64))
    with pytest.raises(CheckpointError, match="rope_scaling"):
        parse(rope_parameters={"rope_type": "default"}, rope_scaling={"type": "default"})


def test_family_traits_reach_the_config() -> None:
    configs = {family: dataclasses.asdict(parse(family)) for family in ARCHITECTURES}
    assert [configs[family]["qkv_bias"] for family in configs] == [False, False, False, True, False]
    assert [configs[family]["qk_norm"] for family in configs] == [False, False, False, False, True]
    biased = parse("llama", attention_bias=True, mlp_bias=True)
    assert (biased.qkv_bias, biased.out_bias, biased.mlp_bias) == (True, True, True)
    with pytest.raises(LoadError, match="attention_bias"):
        parse("mistral", attention_bias=True)
