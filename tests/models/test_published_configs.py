"""The configs of hybrid and sparse models as they are published: every field is known, and means what it says."""

from __future__ import annotations

import re
from typing import cast

import pytest

from surefoot.errors import CheckpointError, UnsupportedModelError
from surefoot.loading.formats import family_of
from surefoot.models.config import DecoderConfig
from surefoot.ops.delta_rule import DeltaShape
from surefoot.ops.moe import ExpertShape

Fields = dict[str, object]


def kinds(num_layers: int) -> list[str]:
    return (["linear_attention"] * 3 + ["full_attention"]) * (num_layers // 4)


EVERYWHERE: Fields = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-06,
    "use_cache": True,
}
DELTA: Fields = {
    "full_attention_interval": 4,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
}
AROUND_3_5: Fields = {
    "image_token_id": 248056,
    "transformers_version": "4.57.0.dev0",
    "video_token_id": 248057,
    "vision_config": {"depth": 12, "hidden_size": 768, "model_type": "qwen3_5", "patch_size": 16},
    "vision_end_token_id": 248054,
    "vision_start_token_id": 248053,
}
TEXT_3_5: Fields = {
    "attn_output_gate": True,
    "dtype": "bfloat16",
    "eos_token_id": 248044,
    "mamba_ssm_dtype": "float32",
    "mlp_only_layers": [],
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "rope_type": "default",
    },
    "vocab_size": 248320,
}
EXPERTS: Fields = {
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "output_router_logits": False,
    "rope_scaling": None,
    "router_aux_loss_coef": 0.001,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.57.0.dev0",
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def whole_3_5(moe: bool, tied: bool, **text: object) -> Fields:
    name = f"qwen3_5{'_moe' * moe}"
    inner = EVERYWHERE | DELTA | TEXT_3_5 | {"model_type": f"{name}_text", "tie_word_embeddings": tied} | text
    inner["layer_types"] = kinds(cast("int", text["num_hidden_layers"]))
    classes = [f"Qwen3_5{'Moe' * moe}ForConditionalGeneration"]
    return AROUND_3_5 | {
        "architectures": classes,
        "model_type": name,
        "text_config": inner,
        "tie_word_embeddings": tied,
    }


SMALL = whole_3_5(
    moe=False,
    tied=True,
    hidden_size=1024,
    intermediate_size=3584,
    linear_num_value_heads=16,
    num_attention_heads=8,
    num_hidden_layers=24,
    num_key_value_heads=2,
)
LARGE = whole_3_5(
    moe=False,
    tied=False,
    hidden_size=5120,
    intermediate_size=17408,
    linear_num_value_heads=48,
    num_attention_heads=24,
    num_hidden_layers=64,
    num_key_value_heads=4,
    output_gate_type="swish",
    partial_rotary_factor=0.25,
    bos_token_id=248044,
    pad_token_id=None,
) | {"language_model_only": False}
SPARSE = whole_3_5(
    moe=True,
    tied=False,
    hidden_size=2048,
    linear_num_value_heads=32,
    moe_intermediate_size=512,
    num_attention_heads=16,
    num_experts=256,
    num_experts_per_tok=8,
    num_hidden_layers=40,
    num_key_value_heads=2,
    output_router_logits=False,
    router_aux_loss_coef=0.001,
    shared_expert_intermediate_size=512,
)
NEXT = (
    EVERYWHERE
    | DELTA
    | EXPERTS
    | {
        "architectures": ["Qwen3NextForCausalLM"],
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "linear_num_value_heads": 32,
        "model_type": "qwen3_next",
        "moe_intermediate_size": 512,
        "num_attention_heads": 16,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "num_hidden_layers": 48,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "shared_expert_intermediate_size": 512,
    }
)
PLAIN_MOE = (
    EVERYWHERE
    | EXPERTS
    | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_position_embeddings": 40960,
        "max_window_layers": 48,
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "rope_theta": 1000000.0,
        "sliding_window": None,
    }
)
CODER = PLAIN_MOE | {
    "intermediate_size": 5472,
    "max_position_embeddings": 262144,
    "max_window_layers": 28,
    "qkv_bias": False,
    "rope_theta": 10000000,
    "shared_expert_intermediate_size": 0,
    "use_qk_norm": True,
}


def parsed(raw: Fields) -> DecoderConfig:
    return family_of(raw, "config.json").parse(raw)


def delta(num_value_heads: int) -> DeltaShape:
    return DeltaShape(num_key_heads=16, num_value_heads=num_value_heads, key_dim=128, value_dim=128)


@pytest.mark.parametrize(
    ("raw", "value_heads", "tied"), [(SMALL, 16, True), (LARGE, 48, False)], ids=["0.8B", "27B of 3.6"]
)
def test_qwen_3_5(raw: Fields, value_heads: int, tied: bool) -> None:
    config = parsed(raw)
    assert (config.delta, config.experts, config.tied_head) == (delta(value_heads), None, tied)
    assert (config.rope.theta, config.rope.dim, config.rope.kind) == (1e7, 64, "default")
    assert (config.head_dim, config.context_length) == (256, 262144)
    assert config.attention_layers == tuple(range(3, config.num_layers, 4))
    assert config.gated_attention
    assert config.centred_norms


def test_qwen_3_5_with_experts() -> None:
    config = parsed(SPARSE)
    assert config.experts == ExpertShape(num_experts=256, num_active=8, inner_size=512, shared_size=512)
    assert (config.delta, len(config.sparse_layers), config.rope.dim) == (delta(32), 40, 64)


def test_qwen_3_next() -> None:
    config = parsed(NEXT)
    assert config.experts == ExpertShape(num_experts=512, num_active=10, inner_size=512, shared_size=512)
    assert (config.delta, len(config.delta_layers), len(config.sparse_layers)) == (delta(32), 36, 48)
    assert (config.rope.theta, config.rope.dim, config.windows) == (1e7, 64, (None,) * 48)
    assert parsed(NEXT | {"sliding_window": None, "max_window_layers": 48}) == config


@pytest.mark.parametrize(("raw", "theta"), [(PLAIN_MOE, 1e6), (CODER, 1e7)], ids=["30B-A3B", "Coder-30B-A3B"])
def test_qwen_3_with_experts(raw: Fields, theta: float) -> None:
    config = parsed(raw)
    assert config.experts == ExpertShape(num_experts=128, num_active=8, inner_size=768)
    assert (config.delta, config.rope.theta, config.rope.dim, config.num_kv_heads) == (None, theta, 128, 4)


@pytest.mark.parametrize(
    ("raw", "name", "value"),
    [
        (NEXT, "use_sliding_window", True),
        (CODER, "qkv_bias", True),
        (CODER, "use_qk_norm", False),
        (CODER, "shared_expert_intermediate_size", 768),
        (SMALL, "quantization_config", {"quant_method": "fp8"}),
    ],
)
def test_the_same_fields_with_another_meaning_are_refused(raw: Fields, name: str, value: object) -> None:
    with pytest.raises(UnsupportedModelError, match=name):
        parsed(raw | {name: value})


@pytest.mark.parametrize(("name", "value"), [("hidden_size", 768), ("rope_parameters", {"rope_theta": 1e4})])
def test_what_is_said_around_the_text_part_may_not_contradict_it(name: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=re.escape(name)):
        parsed(SMALL | {name: value})
    inner = cast("Fields", SMALL["text_config"])
    assert parsed(SMALL | {"hidden_size": inner["hidden_size"]}) == parsed(SMALL)
    assert not parsed(SMALL | {"tie_word_embeddings": False}).tied_head  # as in the class around it
