"""Every cut and name that hybrid and sparse checkpoints come in loads to the same model, or is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.factories import HYBRIDS, SPARSE, make_checkpoint, raw_config
from tests.loading.checkpoints import change_json, change_tensors
from tests.models.hybrids import everything, everything_theirs, fields_of, prompt, saved
from torch import Tensor

from surefoot.errors import CheckpointError, LoadError, UnsupportedModelError
from surefoot.loading import load_target
from surefoot.models import FAMILIES
from surefoot.models.config import DecoderConfig
from surefoot.options import LoadOptions

VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
}
KEEPING = LoadOptions(trainable=True)


def logits(directory: Path) -> Tensor:
    return everything(load_target(directory, KEEPING).model, prompt(20))[0]


def tensors_of(directory: Path) -> dict[str, Tensor]:
    return load_file(directory / "model.safetensors")


def write(directory: Path, raw: dict[str, object], tensors: dict[str, Tensor]) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(raw))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
    return directory


def raw_of(directory: Path) -> dict[str, object]:
    raw: dict[str, object] = json.loads((directory / "config.json").read_text())
    return raw


def flattened(tensors: dict[str, Tensor], config: DecoderConfig) -> dict[str, Tensor]:
    """A Qwen3-Next checkpoint's projections cut as Qwen 3.5's: row by row, by which head and part each belongs to."""
    assert config.delta is not None
    shape, result = config.delta, dict(tensors)
    served = shape.num_value_heads // shape.num_key_heads
    sizes = (
        ("q", shape.key_dim),
        ("k", shape.key_dim),
        ("v", served * shape.value_dim),
        ("z", served * shape.value_dim),
    )
    for layer in config.delta_layers:
        stem = f"model.layers.{layer}.linear_attn.in_proj_"
        for name, parts in (("qkvz", sizes), ("ba", (("b", served), ("a", served)))):
            rows: dict[str, list[Tensor]] = {part: [] for part, _ in parts}
            source = iter(result.pop(f"{stem}{name}.weight"))
            for _ in range(shape.num_key_heads):
                for part, size in parts:
                    rows[part] += [next(source) for _ in range(size)]
            cut = {"qkv": rows["q"] + rows["k"] + rows["v"], "z": rows["z"]} if name == "qkvz" else rows
            result |= {f"{stem}{part}.weight": torch.stack(lines) for part, lines in cut.items()}
    return result


def fused(tensors: dict[str, Tensor], config: DecoderConfig) -> dict[str, Tensor]:
    """The three tensors of each expert as two of all experts together."""
    assert config.experts is not None
    result = dict(tensors)
    for layer in config.sparse_layers:
        stem = f"model.layers.{layer}.mlp.experts"
        gates, ups, downs = (
            [result.pop(f"{stem}.{expert}.{part}_proj.weight") for expert in range(config.experts.num_experts)]
            for part in ("gate", "up", "down")
        )
        both = [torch.cat(pair) for pair in zip(gates, ups, strict=True)]
        result |= {f"{stem}.gate_up_proj": torch.stack(both), f"{stem}.down_proj": torch.stack(downs)}
    return result


def test_grouped_and_flat_projections_are_the_same_model(tmp_path: Path) -> None:
    grouped = make_checkpoint(tmp_path / "grouped", "qwen3_next", linear_num_value_heads=6)
    config = load_target(grouped, KEEPING).config
    flat = write(tmp_path / "flat", raw_of(grouped), flattened(tensors_of(grouped), config))
    assert not set(tensors_of(flat)) >= set(tensors_of(grouped))
    assert torch.equal(logits(grouped), logits(flat))


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_moe", "qwen3_moe"])
def test_experts_apart_and_fused_are_the_same_model(family: str, tmp_path: Path) -> None:
    apart = make_checkpoint(tmp_path / "apart", family)
    config = load_target(apart, KEEPING).config
    together = write(tmp_path / "fused", raw_of(apart), fused(tensors_of(apart), config))
    assert len(tensors_of(together)) < len(tensors_of(apart)) - 20
    assert torch.equal(logits(apart), logits(together))


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_text_part_of_a_model_that_reads_images(family: str, tied: bool, tmp_path: Path) -> None:
    """As transformers saves the whole model: it computes the same of text, and says what it leaves unread."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    moe = "Moe" * family.endswith("moe")
    text = fields_of(family, tie_word_embeddings=tied)
    config = getattr(transformers, f"Qwen3_5{moe}Config")(
        text_config=text, vision_config=VISION, tie_word_embeddings=tied, eos_token_id=5
    )
    theirs = saved(getattr(transformers, f"Qwen3_5{moe}ForConditionalGeneration")(config), tmp_path / "whole")
    assert {"vision_config", "text_config"} <= raw_of(tmp_path / "whole").keys()
    found = load_target(tmp_path / "whole", KEEPING)
    assert (found.config.model_type, found.config.tied_head, found.eos_token_ids) == (family, tied, (5,))
    assert [note for note in found.notes if "images" in note]
    expected = everything_theirs(theirs, prompt(20))[0]
    assert (everything(found.model, prompt(20))[0] - expected).abs().max() < 2e-3
    names = {name: name.replace("model.language_model.", "model.") for name in tensors_of(tmp_path / "whole")}
    alone = {names[name]: tensor for name, tensor in tensors_of(tmp_path / "whole").items() if "visual" not in name}
    inner: dict[str, object] = dict(raw_of(tmp_path / "whole")["text_config"])  # type: ignore[call-overload]
    apart = write(tmp_path / "text", inner | {"tie_word_embeddings": tied, "dtype": "float32"}, alone)
    assert torch.equal(logits(apart), logits(tmp_path / "whole"))
    assert not load_target(apart, KEEPING).notes[1:]


@pytest.mark.parametrize("inside", [True, False])
def test_a_quantised_text_part_is_refused_wherever_it_says_so(inside: bool, tmp_path: Path) -> None:
    plain = make_checkpoint(tmp_path / "plain", "qwen3_5")
    text = raw_of(plain) | {"model_type": "qwen3_5_text", "architectures": None}
    whole: dict[str, object] = {"model_type": "qwen3_5", "text_config": text, "vision_config": VISION}
    assert torch.equal(logits(write(tmp_path / "whole", whole, tensors_of(plain))), logits(plain))
    (text if inside else whole)["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    with pytest.raises(UnsupportedModelError, match="quantised weights"):
        load_target(write(tmp_path / "quantised", whole, tensors_of(plain)), KEEPING)


def test_decay_rates_may_be_stored_in_any_dtype(tmp_path: Path) -> None:
    """fp32 beside half-width weights, as released, or half-width like them: the numbers stored are those computed."""
    path = make_checkpoint(tmp_path / "model", "qwen3_5", dtype=torch.bfloat16)
    narrow = logits(path)
    stored = {name: tensor.float() for name, tensor in tensors_of(path).items() if name.endswith(("A_log", "dt_bias"))}
    change_tensors(path, stored)
    assert torch.equal(logits(path), narrow)
    change_tensors(path, {name: tensor + 2**-9 for name, tensor in stored.items()})  # which bf16 could not hold
    assert not torch.equal(logits(path), narrow)


def test_weights_that_predict_several_tokens_are_left_with_a_note(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model", "qwen3_next", mtp_num_hidden_layers=1)
    before = logits(path)
    change_tensors(path, {"mtp.fc.weight": torch.zeros(48, 96), "mtp.layers.0.mlp.gate.weight": torch.zeros(6, 48)})
    assert torch.equal(logits(path), before)
    assert any("mtp" in note for note in load_target(path, KEEPING).notes)
    change_tensors(path, {"mtp_head.weight": torch.zeros(3)})
    with pytest.raises(CheckpointError, match=r"unexpected: mtp_head\.weight"):
        load_target(path, KEEPING)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("qwen3_5", "model.layers.0.linear_attn.A_log"),
        ("qwen3_5", "model.layers.1.linear_attn.in_proj_a.weight"),
        ("qwen3_next", "model.layers.0.linear_attn.in_proj_ba.weight"),
        ("qwen3_5_moe", "model.layers.0.mlp.experts.3.up_proj.weight"),
        ("qwen3_5_moe", "model.layers.0.mlp.shared_expert_gate.weight"),
        ("qwen3_moe", "model.layers.2.mlp.gate.weight"),
    ],
)
def test_a_missing_tensor_a_foreign_one_and_a_wrong_shape_are_named(family: str, name: str, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model", family)
    whole = tensors_of(path)[name]
    change_tensors(path, {name: None, f"{name}.extra": whole})
    with pytest.raises(CheckpointError) as missing:
        load_target(path, KEEPING)
    assert f"missing: {name} " in str(missing.value)
    assert f"unexpected: {name}.extra " in str(missing.value)
    change_tensors(path, {name: whole[:-1].clone(), f"{name}.extra": None})
    with pytest.raises(CheckpointError, match=f"wrong shape: {name}"):
        load_target(path, KEEPING)


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_conversion_for_mlx_is_refused(family: str, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model", family)
    conv = tensors_of(path)["model.layers.0.linear_attn.conv1d.weight"]
    change_tensors(path, {"model.layers.0.linear_attn.conv1d.weight": conv.transpose(1, 2).contiguous()})
    with pytest.raises(UnsupportedModelError, match=r"MLX.*original"):
        load_target(path, KEEPING)


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("qwen3_5", {"attn_output_gate": False}, "attn_output_gate"),
        ("qwen3_5", {"attention_bias": True}, "attention_bias"),
        ("qwen3_5", {"output_gate_type": "sigmoid"}, "output_gate_type"),
        ("qwen3_5", {"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype"),
        ("qwen3_5", {"linear_num_value_heads": 3}, "linear_num_value_heads"),
        ("qwen3_5", {"linear_key_head_dim": None}, "linear_key_head_dim"),
        ("qwen3_5", {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
        ("qwen3_5", {"layer_types": ["linear_attention"] * 4}, "layer_types"),
        ("qwen3_5", {"layer_types": ["full_attention"] * 3}, "layer_types"),
        ("qwen3_5", {"layer_types": ["sliding_attention"] * 4}, "layer_types"),
        ("qwen3_5", {"num_experts": 8}, "num_experts"),
        ("qwen3_5", {"hyper_connections": 4}, "hyper_connections"),
        ("qwen3_5", {"quantization_config": {"quant_method": "fp8"}}, "quantised weights"),
        ("qwen3_5", {"partial_rotary_factor": 0.2}, "partial_rotary_factor"),
        ("qwen3_5", {"vision_config": VISION}, "vision_config"),
        ("qwen3_5", {"model_type": "qwen4_exp"}, "qwen4_exp"),
        ("qwen3_5", {"architectures": ["Qwen3ForCausalLM"]}, "architectures"),
        ("qwen3_5_moe", {"norm_topk_prob": False}, "norm_topk_prob"),
        ("qwen3_5_moe", {"num_experts_per_tok": 7}, "num_experts_per_tok"),
        ("qwen3_5_moe", {"num_local_experts": 5}, "num_local_experts"),
        ("qwen3_next", {"mlp_only_layers": [4]}, "mlp_only_layers"),
        ("qwen3_next", {"shared_expert_intermediate_size": None}, "shared_expert_intermediate_size"),
        ("qwen3_moe", {"linear_num_key_heads": 2}, "linear_num_key_heads"),
    ],
)
def test_a_field_that_is_wrong_or_means_something_else_is_named(
    family: str, changes: dict[str, object], named: str, tmp_path: Path
) -> None:
    path = make_checkpoint(tmp_path / "model", family)
    change_json(path, "config.json", **changes)
    with pytest.raises(LoadError, match=named):
        load_target(path, KEEPING)


def test_fields_mean_what_they_mean_in_transformers() -> None:
    parse = {family: FAMILIES[family].parse for family in (*HYBRIDS, *SPARSE)}
    raw = raw_config("qwen3_5", num_hidden_layers=8, full_attention_interval=3)
    del raw["layer_types"]
    assert parse["qwen3_5"](raw).attention_layers == (2, 5)
    del raw["full_attention_interval"], raw["rope_parameters"]
    default = parse["qwen3_5"](raw)
    assert (default.attention_layers, default.rope.dim) == ((3, 7), 4)
    wide = {"rope_type": "default", "rope_theta": 1e7, "mrope_section": [11, 11, 10], "mrope_interleaved": True}
    assert parse["qwen3_5"](raw | {"rope_parameters": wide, "partial_rotary_factor": 0.5}).rope.dim == 8
    assert parse["qwen3_next"](raw_config("qwen3_next")).sparse_layers == {0, 1, 3}
    every_second = raw_config("qwen3_next", decoder_sparse_step=2, mlp_only_layers=[3], norm_topk_prob=False)
    config = parse["qwen3_next"](every_second)
    assert (config.sparse_layers, config.experts.renormalised) == ({1}, False)
    assert parse["qwen3_next"](raw_config("qwen3_next")).experts.renormalised
    plain = parse["qwen3_moe"](raw_config("qwen3_moe"))
    assert (plain.experts.renormalised, plain.experts.shared_size, plain.delta) == (False, 0, None)
    assert (plain.gated_attention, plain.centred_norms) == (False, False)
    renamed = raw_config("qwen3_moe", num_local_experts=6)
    del renamed["num_experts"]
    assert parse["qwen3_moe"](renamed) == plain
    assert parse["qwen3_5_moe"](raw_config("qwen3_5_moe")).intermediate_size == 0
