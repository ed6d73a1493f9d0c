"""Weights fill a model completely, or one error names all that is wrong with them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.factories import ARCHITECTURES, make_checkpoint, make_model
from tests.loading.checkpoints import change_json, change_tensors

from surefoot.errors import CheckpointError, OptionError
from surefoot.loading import load_target
from surefoot.loading.checkpoint import fill
from surefoot.loading.shards import stored_tensors
from surefoot.models import FAMILIES
from surefoot.models.decoder import DecoderModel
from surefoot.options import DTypeName, LoadOptions

LAYER = "model.layers.1"
HALVES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


KEEPING = LoadOptions(trainable=True)
"""With the weights as torch parameters, to be looked at."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "model")


@pytest.mark.parametrize("family", ARCHITECTURES)
@pytest.mark.parametrize("tied", [False, True])
def test_every_parameter_is_the_checkpoints_and_none_stays_nan(tmp_path: Path, family: str, tied: bool) -> None:
    loaded = load_target(make_checkpoint(tmp_path / "model", family, tie_word_embeddings=tied), KEEPING)
    expected = make_model(family, torch.float32, tie_word_embeddings=tied).state_dict()
    found = loaded.model.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.isfinite(tensor).all(), name
        assert torch.equal(tensor, expected[name]), name
    assert loaded.config.tied_head is tied


def test_all_that_is_wrong_is_named_in_one_error(directory: Path) -> None:
    nan, infinite = torch.zeros(48), torch.ones(97, 48)
    nan[7], infinite[3, 5] = float("nan"), float("inf")
    change_tensors(
        directory,
        {
            f"{LAYER}.self_attn.q_proj.weight": None,
            f"{LAYER}.self_attn.q_proj.bias": torch.zeros(64),
            f"{LAYER}.mlp.up_proj.weight": torch.zeros(80, 47),
            f"{LAYER}.mlp.gate_proj.weight": torch.zeros(80, 48, dtype=torch.int8),
            f"{LAYER}.input_layernorm.weight": nan,
            "lm_head.weight": infinite,
            "model.layers.3.input_layernorm.weight": torch.ones(48),
        },
    )
    with pytest.raises(CheckpointError) as caught:
        load_target(directory, LoadOptions())
    for expected in (
        f"missing: {LAYER}.self_attn.q_proj.weight",
        f"unexpected: {LAYER}.self_attn.q_proj.bias",
        "unexpected: model.layers.3.input_layernorm.weight",
        f"wrong shape: {LAYER}.mlp.up_proj.weight is [80, 47], expected [80, 48]",
        f"wrong dtype: {LAYER}.mlp.gate_proj.weight is I8",
        f"not finite: {LAYER}.input_layernorm.weight",
        "not finite: lm_head.weight",
    ):
        assert expected in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_one_bad_number_at_the_end_of_a_fused_part_is_found(tmp_path: Path, value: float, dtype: str) -> None:
    directory = make_checkpoint(tmp_path / "model", dtype=HALVES[dtype])
    tensor = torch.zeros(32, 48, dtype=HALVES[dtype])
    tensor[-1, -1] = value
    name = f"{LAYER}.self_attn.v_proj.weight"
    change_tensors(directory, {name: tensor})
    with pytest.raises(CheckpointError, match=f"not finite: {name} holds"):
        load_target(directory, LoadOptions())


def test_a_weight_too_large_for_the_dtype_asked_for_is_named(directory: Path) -> None:
    large = torch.ones(48)
    large[0] = 1e6
    change_tensors(directory, {"model.norm.weight": large})
    assert load_target(directory, KEEPING).model.norm.max() == 1e6
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight, once converted to torch\.float16"):
        load_target(directory, LoadOptions(dtype="float16"))


@pytest.mark.parametrize("stored", HALVES)
@pytest.mark.parametrize("asked", ["auto", *HALVES])
def test_weights_are_converted_once_to_the_dtype_asked_for(tmp_path: Path, stored: str, asked: DTypeName) -> None:
    directory = make_checkpoint(tmp_path / "model", dtype=HALVES[stored])
    model = load_target(directory, replace(KEEPING, dtype=asked)).model
    expected = HALVES[stored] if asked == "auto" else HALVES[asked]
    assert {parameter.dtype for parameter in model.parameters()} == {expected}
    assert torch.equal(model.norm, make_model(dtype=torch.float32).norm.to(HALVES[stored]).to(expected))


def test_without_a_dtype_in_the_config_the_weights_decide(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path / "model", dtype=torch.bfloat16)
    change_json(directory, "config.json", torch_dtype=None)
    assert load_target(directory, KEEPING).model.norm.dtype == torch.bfloat16
    change_tensors(directory, {"model.norm.weight": torch.ones(48)})
    with pytest.raises(CheckpointError, match=r"bfloat16, torch\.float32"):
        load_target(directory, LoadOptions())
    assert load_target(directory, replace(KEEPING, dtype="float32")).model.norm.dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"dtype": "bfloat16", "torch_dtype": None}, torch.bfloat16),
        ({"dtype": "torch.float16", "torch_dtype": "float16"}, torch.float16),
        ({"dtype": "float16", "torch_dtype": "float32"}, None),
        ({"torch_dtype": "int8"}, None),
        ({"torch_dtype": 16}, None),
    ],
)
def test_the_config_names_the_dtype(directory: Path, changes: dict[str, object], expected: torch.dtype | None) -> None:
    change_json(directory, "config.json", **changes)
    if expected is None:
        with pytest.raises(CheckpointError, match="dtype"):
            load_target(directory, LoadOptions())
    else:
        assert load_target(directory, KEEPING).model.norm.dtype == expected


def test_a_stored_copy_of_a_tied_head_must_be_the_embedding(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path / "model", tie_word_embeddings=True)
    embedding = make_model(dtype=torch.float32, tie_word_embeddings=True).embedding.detach()
    change_tensors(directory, {"lm_head.weight": embedding.clone()})
    assert torch.equal(load_target(directory, KEEPING).model.embedding, embedding)
    change_tensors(directory, {"lm_head.weight": embedding + 1})
    with pytest.raises(CheckpointError, match=r"lm_head\.weight.*tie"):
        load_target(directory, LoadOptions())


def test_tensors_without_information_are_passed_over(directory: Path) -> None:
    change_tensors(directory, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    load_target(directory, LoadOptions())


def test_weights_at_odd_offsets_load(directory: Path) -> None:
    path = directory / "model.safetensors"
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.dumps(json.loads(raw[8 : 8 + length])).encode()
    header += b" " * ((3 - len(header)) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + length :])
    model = load_target(directory, KEEPING).model
    assert torch.equal(model.norm, make_model(dtype=torch.float32).norm)


@pytest.mark.parametrize("device", ["nonsense", "cuda:99", "meta", "", "cpu:x"])
def test_a_device_that_is_not_there_is_refused(directory: Path, device: str) -> None:
    with pytest.raises(OptionError, match="device"):
        load_target(directory, LoadOptions(device=device))


def test_filling_leaves_nan_nowhere_and_refuses_a_table_with_holes(directory: Path) -> None:
    family = FAMILIES["qwen3"]
    config = family.parse(json.loads((directory / "config.json").read_text()))
    specs, stored = family.tensors(config), stored_tensors(directory)
    with torch.device("meta"):
        model = DecoderModel(config)
    with pytest.raises(AssertionError):
        fill(model, specs[:-1], stored, torch.float32, torch.device("cpu"))
    fill(model, specs, stored, torch.float32, torch.device("cpu"))
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
