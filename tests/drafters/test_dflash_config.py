"""Every released form of a DFlash config is read to the same shape, and what is not understood is refused by name."""

from __future__ import annotations

import re

import pytest
import transformers
from tests.drafters.blockers import config_of, raw_dflash

from surefoot.drafters.dflash.config import layers_by_rule, to_json
from surefoot.drafters.dflash.reading import is_dflash, parse
from surefoot.errors import CheckpointError, OptionError, UnsupportedModelError

NESTED = {"mask_token_id": 96, "target_layer_ids": [0, 1]}
SLIDING = ["sliding_attention", "full_attention"]


@pytest.mark.parametrize(
    "form",
    [
        {"block_size": None, "dflash_config": {**NESTED, "block_size": 8}},
        {"dflash_config": None, **NESTED},
        {"dflash_config": {**NESTED, "block_size": 8}},
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        {"rope_parameters": {"rope_theta": 10000.0}, "rope_scaling": None},
        {"layer_types": ["full_attention"] * 2, "sliding_window": 9, "use_sliding_window": False},
        {"auto_map": {"AutoModel": "dflash.DFlashDraftModel"}, "max_window_layers": 5, "is_causal": False},
        {"tie_word_embeddings": True, "mask_token": "<|MASK|>", "attention_bias": False, "use_cache": True},
        {"draft_vocab_size": 97, "target_hidden_size": 48, "input_embedding_scale": 1.0, "is_neox_style": True},
        {"rms_norm_eps": None},
    ],
)
def test_every_form_says_the_same(form: dict[str, object]) -> None:
    assert config_of(**form) == config_of()


def test_what_is_absent_takes_the_released_values() -> None:
    config = config_of(head_dim=None, rms_norm_eps=None, block_size=None)
    assert (config.head_dim, config.rms_norm_eps, config.block_size) == (128, 1e-6, 16)


@pytest.mark.parametrize(
    ("num_target_layers", "count", "layers"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (32, 5, (1, 8, 15, 22, 29)),
        (64, 5, (1, 16, 31, 46, 61)),
        (40, 5, (1, 10, 19, 28, 37)),
        (24, 5, (1, 6, 11, 16, 21)),
        (40, 8, (1, 6, 11, 16, 22, 27, 32, 37)),
        (8, 3, (1, 3, 5)),
        (12, 1, (6,)),
    ],
)
def test_layers_follow_the_published_rule(num_target_layers: int, count: int, layers: tuple[int, ...]) -> None:
    assert layers_by_rule(num_target_layers, count) == layers


def test_layers_that_are_not_given_are_those_of_the_rule_one_for_each_layer() -> None:
    config = config_of(num_target_layers=36, num_hidden_layers=5, dflash_config={"mask_token_id": 96})
    assert config.target_layer_ids == (1, 9, 17, 25, 33)


@pytest.mark.parametrize(
    ("fields", "windows", "causal"),
    [
        ({}, (None, None), (False, False)),
        ({"layer_types": SLIDING, "sliding_window": 9, "use_sliding_window": True}, (9, None), (True, False)),
        ({"layer_types": SLIDING, "sliding_window": 9}, (9, None), (True, False)),
        ({"layer_types": SLIDING, "dflash_config": {**NESTED, "swa_window_size": 9}}, (9, None), (True, False)),
        ({"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}, (None, 9), (False, True)),
        ({"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0}, (9, 9), (True, True)),
        ({"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2}, (None, None), (False, False)),
        ({"use_sliding_window": False, "sliding_window": 9, "max_window_layers": 0}, (None, None), (False, False)),
        ({"layer_types": SLIDING, "sliding_window": 9, "is_causal": False}, (9, None), (False, False)),
        ({"dflash_config": {**NESTED, "causal": True}}, (None, None), (True, True)),
        ({"is_causal": False, "dflash_config": {**NESTED, "causal": True}}, (None, None), (False, False)),
        ({"dflash_config": {**NESTED, "use_swa": True, "swa_window_size": 9}}, (9, 9), (False, False)),
        ({"sliding_window": 9, "dflash_config": {**NESTED, "use_swa": True}}, (9, 9), (False, False)),
        (
            {"dflash_config": {**NESTED, "use_swa": True, "swa_window_size": 9, "causal": True}},
            (9, 9),
            (True, True),
        ),
    ],
)
def test_windows_and_causality(
    fields: dict[str, object], windows: tuple[object, ...], causal: tuple[bool, ...]
) -> None:
    config = config_of(**fields)
    assert (config.windows, config.causal) == (windows, causal)
    assert parse(to_json(config)) == config


@pytest.mark.parametrize(
    ("fields", "error", "named"),
    [
        ({"rope_theta": None}, CheckpointError, "rope_theta is missing"),
        ({"dflash_config": {"target_layer_ids": [0]}}, CheckpointError, "mask_token_id is missing"),
        ({"dflash_config": {"target_layer_ids": [0], "mask_token": "<|MASK|>"}}, CheckpointError, "mask_token_id"),
        ({"dflash_config": {"mask_token_id": 97, "target_layer_ids": [0]}}, CheckpointError, "mask_token_id is 97"),
        ({"num_target_layers": None, "dflash_config": {"mask_token_id": 1}}, CheckpointError, "target_layer_ids"),
        ({"dflash_config": {**NESTED, "target_layer_ids": []}}, CheckpointError, "target_layer_ids is []"),
        ({"dflash_config": {**NESTED, "target_layer_ids": [-1]}}, CheckpointError, "target_layer_ids"),
        ({"dflash_config": {**NESTED, "target_layer_ids": [0, 3]}}, CheckpointError, "target_layer_ids holds 3"),
        ({"dflash_config": {**NESTED, "block_size": 9}}, CheckpointError, "block_size is 8; expected the 9"),
        ({"block_size": 1}, CheckpointError, "block_size is 1"),
        ({"vocab_size": None}, CheckpointError, "vocab_size is missing"),
        ({"num_key_value_heads": 3}, CheckpointError, "num_key_value_heads 3"),
        ({"head_dim": 15}, CheckpointError, "head_dim is 15"),
        ({"layer_types": ["full_attention"]}, CheckpointError, "layer_types is 1"),
        ({"use_sliding_window": True, "sliding_window": 9}, CheckpointError, "layer_types is missing"),
        ({"use_sliding_window": True, "max_window_layers": 0}, CheckpointError, "sliding_window is missing"),
        ({"use_sliding_window": True, "max_window_layers": -1}, CheckpointError, "max_window_layers is -1"),
        ({"layer_types": SLIDING, "use_sliding_window": False, "sliding_window": 9}, CheckpointError, "layer_types"),
        ({"layer_types": SLIDING}, CheckpointError, "sliding_window is missing"),
        ({"layer_types": ["chunked_attention"] * 2}, UnsupportedModelError, "chunked_attention"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, UnsupportedModelError, "rope_type is 'dynamic'"),
        ({"partial_rotary_factor": 0.25}, UnsupportedModelError, "partial_rotary_factor"),
        ({"architectures": ["DFlash2DraftModel"]}, UnsupportedModelError, "DFlash2DraftModel"),
        ({"model_type": "llama"}, UnsupportedModelError, "model_type is 'llama'"),
        ({"auto_map": {"AutoModel": "other.Model"}}, UnsupportedModelError, "auto_map"),
        ({"hidden_act": "gelu"}, UnsupportedModelError, "hidden_act"),
        ({"draft_vocab_size": 32}, UnsupportedModelError, "draft_vocab_size is 32"),
        ({"target_hidden_size": 96}, UnsupportedModelError, "target_hidden_size is 96"),
        ({"projector_type": "dspark"}, UnsupportedModelError, "projector_type is 'dspark'"),
        ({"dflash_config": {**NESTED, "projector_type": "domino"}}, UnsupportedModelError, "Domino"),
        ({"attention_sink_bias": True}, UnsupportedModelError, "sinks"),
        ({"final_logit_softcapping": 30.0}, UnsupportedModelError, "capped logits"),
        ({"attention_bias": True}, UnsupportedModelError, "attention_bias"),
        ({"quantization_config": {"bits": 4}}, UnsupportedModelError, "quantised"),
        ({"something_new": 1}, UnsupportedModelError, "unknown field something_new"),
        ({"dflash_config": {**NESTED, "something_new": 1}}, UnsupportedModelError, "dflash_config: unknown field"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(
    fields: dict[str, object], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=re.escape(named)):
        config_of(**fields)


def test_a_config_that_the_layout_cannot_say_is_not_written() -> None:
    scaled = config_of(rope_scaling={"rope_type": "linear", "factor": 2.0})
    with pytest.raises(OptionError, match="'linear'"):
        to_json(scaled)


def test_a_drafter_is_told_by_its_architecture_or_its_section() -> None:
    assert is_dflash(raw_dflash())
    assert is_dflash({"dflash_config": {}})
    assert not is_dflash({"architectures": ["Qwen3ForCausalLM"]})


@pytest.mark.parametrize("first", [0, 1, 2, 5])
@pytest.mark.parametrize("used", [True, False])
def test_layers_slide_where_the_class_of_the_released_files_has_them_slide(first: int, used: bool) -> None:
    fields = {"use_sliding_window": used, "sliding_window": 9, "max_window_layers": first, "num_hidden_layers": 3}
    kinds = transformers.Qwen3Config(**fields).layer_types
    assert config_of(**fields).windows == tuple(9 if kind == "sliding_attention" else None for kind in kinds)
