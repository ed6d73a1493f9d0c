"""A directory is found to be a DFlash drafter, and every count that does not fit is an error at load."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.drafters.blockers import learnt_by, random_network, save_network
from tests.factories import make_checkpoint
from tests.pairs import target_of

import surefoot
from surefoot import SamplingParams
from surefoot.drafters.dflash.drafter import DFlash
from surefoot.errors import CheckpointError, LoadError, PairError, UnsupportedModelError
from surefoot.loading import find_dflash, load_dflash, load_target
from surefoot.options import LoadOptions
from surefoot.train.run import identity_of

PROMPT = tuple(range(5, 17))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("target"), "qwen3", seed=3)


def test_a_drafter_is_loaded_by_its_directory(tmp_path: Path, target: Path) -> None:
    directory = save_network(tmp_path, learnt_by(target_of("qwen3", torch.float32)))
    engine = surefoot.load(target, directory)
    assert engine.drafter.method == "dflash"
    assert engine.methods == ("none", "lookup", "dflash")
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    result = engine.generate(PROMPT, params)
    assert result.stats.accepted > 20
    assert result.tokens == surefoot.load(target).generate(PROMPT, params).tokens
    stacked = surefoot.load(target, ("lookup", directory))
    assert stacked.drafter.method == "lookup+dflash"
    assert stacked.generate(PROMPT, params).tokens == result.tokens


@pytest.mark.parametrize(("asked", "dtype"), [("auto", torch.float32), ("bfloat16", torch.bfloat16)])
def test_the_weights_are_those_of_the_files_in_the_targets_dtype(
    tmp_path: Path, target: Path, asked: Any, dtype: torch.dtype
) -> None:
    network = random_network(4, torch.bfloat16)
    found = find_dflash(save_network(tmp_path, network))
    assert found is not None
    options = LoadOptions(dtype=asked)
    loaded, notes = load_dflash(found, options, load_target(target, options))
    assert notes == ()
    for name, tensor in network.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.to(dtype)), name
    assert DFlash(loaded).blocks.dtype == dtype


def test_another_model_is_none(target: Path) -> None:
    assert find_dflash(target) is None


WRONG: dict[str, tuple[dict[str, object], type[LoadError], str]] = {
    "vocabulary": ({"vocab_size": 98}, PairError, "vocab_size: 97 | 98"),
    "layers of the target": ({"num_target_layers": 4}, PairError, "layers of the target: 3 | 4"),
    "a layer beyond": (
        {"num_target_layers": None, "dflash_config": {"mask_token_id": 1, "target_layer_ids": [0, 5]}},
        PairError,
        "layers to read: 0 to 1, all but the last | 5",
    ),
    "the last layer": (
        {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [0, 2]}},
        PairError,
        "all but the last | 2",
    ),
    "mask": ({"dflash_config": {"mask_token_id": 97, "target_layer_ids": [0, 1]}}, CheckpointError, "mask_token_id"),
    "taps": (
        {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [0]}},
        CheckpointError,
        "fc.weight is [48, 96], expected [48, 48]",
    ),
    "a layer more": ({"num_hidden_layers": 3, "layer_types": None}, CheckpointError, "missing: layers.2."),
    "a layer less": ({"num_hidden_layers": 1, "layer_types": None}, CheckpointError, "unexpected: layers.1."),
    "heads": ({"num_attention_heads": 2}, CheckpointError, "q_proj.weight is [64, 48], expected [32, 48]"),
    "key heads": ({"num_key_value_heads": 1}, CheckpointError, "k_proj.weight is [32, 48], expected [16, 48]"),
    "size of a head": ({"head_dim": 8}, CheckpointError, "q_norm.weight is [16], expected [8]"),
    "inner size": ({"intermediate_size": 81}, CheckpointError, "gate_proj.weight is [80, 48], expected [81, 48]"),
    "block": ({"block_size": 1}, CheckpointError, "block_size is 1"),
    "theta": ({"rope_theta": None}, CheckpointError, "rope_theta is missing"),
    "a head that is not there": ({"projector_type": "dspark"}, UnsupportedModelError, "DSpark"),
}


@pytest.mark.parametrize("count", WRONG)
def test_every_wrong_count_fails_at_load(tmp_path: Path, target: Path, count: str) -> None:
    overrides, error, named = WRONG[count]
    directory = save_network(tmp_path, random_network(), **overrides)
    with pytest.raises(error, match=re.escape(named)) as caught:
        surefoot.load(target, directory)
    assert str(directory) in str(caught.value)


def test_a_drafter_of_another_width_is_refused(tmp_path: Path, target: Path) -> None:
    with pytest.raises(PairError, match=re.escape("hidden_size: 48 | 32")):
        surefoot.load(target, save_network(tmp_path, random_network(hidden_size=32)))


def test_all_that_does_not_fit_is_told_at_once(tmp_path: Path, target: Path) -> None:
    directory = save_network(tmp_path, random_network(hidden_size=32, num_target_layers=9), vocab_size=99)
    with pytest.raises(PairError, match=r"hidden_size(.|\n)*vocab_size(.|\n)*layers of the target"):
        surefoot.load(target, directory)


def test_weights_that_cannot_be_right_are_refused(tmp_path: Path, target: Path) -> None:
    directory = save_network(tmp_path, random_network())
    tensors = load_file(directory / "model.safetensors")
    tensors["fc.weight"][0, 0] = float("nan")
    tensors["lm_head.weight"] = torch.zeros(97, 48)
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"unexpected: lm_head.weight(.|\n)*fc.weight holds NaN"):
        surefoot.load(target, directory)
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match="never opened"):
        surefoot.load(target, directory)


def test_a_shorter_context_is_noted(tmp_path: Path, target: Path) -> None:
    directory = save_network(tmp_path, random_network(max_position_embeddings=64))
    assert any("context of 64 tokens is shorter" in note for note in surefoot.load(target, directory).notes)


def test_a_drafter_of_another_target_of_the_same_counts_is_noted(tmp_path: Path, target: Path) -> None:
    """By what `surefoot train` records beside it; other records, and none, say nothing."""
    directory = save_network(tmp_path, random_network())
    own = hashlib.sha256((target / "config.json").read_bytes()).hexdigest()

    def notes(record: object) -> list[str]:
        text = record if isinstance(record, str) else json.dumps(record)
        (directory / "run.json").write_text(text)
        return [note for note in surefoot.load(target, directory).notes if "another target" in note]

    other = {"target": {"config_sha256": "0" * 64, "weights_sha256": "0" * 64}, "target_name": "another-7b"}
    (note,) = notes(other)
    assert "(another-7b)" in note
    assert len(notes({"target": {"config_sha256": "0" * 64}})) == 1
    assert notes(other | {"target": {"config_sha256": own}}) == []
    assert notes(other | {"target": identity_of(target)}) == []
    for record in ({}, {"target": "pebble"}, {"target": {"config_sha256": 5}}, [1], "{", ""):
        assert notes(record) == []


def test_a_drafter_is_no_target(tmp_path: Path) -> None:
    directory = save_network(tmp_path, random_network())
    assert json.loads((directory / "config.json").read_text())["model_type"] == "qwen3"
    with pytest.raises(UnsupportedModelError, match="a DFlash drafter, which cannot answer by itself"):
        surefoot.load(directory)
