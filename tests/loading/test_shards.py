"""Sharded checkpoints: the index is checked against the shards, and neither leads out of the directory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from tests.factories import make_checkpoint
from tests.loading.checkpoints import INDEX, change_tensors, read_index, write_index

from surefoot.errors import CheckpointError
from surefoot.loading import load_target
from surefoot.loading.shards import stored_tensors
from surefoot.options import LoadOptions

NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "sharded", num_shards=3)


KEEPING = LoadOptions(trainable=True)
"""With the weights as torch parameters, to be looked at."""


def test_a_sharded_checkpoint_loads_as_the_same_bits_in_one_file(tmp_path: Path, sharded: Path) -> None:
    one = load_target(make_checkpoint(tmp_path / "one"), KEEPING).model
    other = load_target(sharded, KEEPING).model
    expected = one.state_dict()
    assert expected.keys() == other.state_dict().keys()
    for name, tensor in other.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    different = load_target(make_checkpoint(tmp_path / "two", seed=1), KEEPING).model
    assert not torch.equal(different.embedding, one.embedding)


@pytest.mark.parametrize(
    "shard",
    [
        "../elsewhere.safetensors",
        "sub/../../elsewhere.safetensors",
        "sub/inside.safetensors",
        "/etc/elsewhere.safetensors",
        "..\\elsewhere.safetensors",
        "nul\0.safetensors",
        ".safetensors/",
        "",
        "x" * 5000 + ".safetensors",
        "model.bin",
        7,
        None,
    ],
)
def test_an_index_that_names_anything_but_a_file_beside_it_is_refused(sharded: Path, shard: object) -> None:
    (sharded / "sub").mkdir()
    for copied in (sharded.parent / "elsewhere.safetensors", sharded / "sub" / "inside.safetensors"):
        shutil.copy(sharded / read_index(sharded)[NAME], copied)
    write_index(sharded, {**read_index(sharded), NAME: shard})
    with pytest.raises(CheckpointError, match=r"file name|weight_map|names the shard"):
        stored_tensors(sharded)


def test_a_link_out_of_the_directory_is_refused_and_one_inside_is_not(tmp_path: Path, sharded: Path) -> None:
    shard = sharded / read_index(sharded)[NAME]
    inside = sharded / "kept.safetensors"
    shard.rename(inside)
    shard.symlink_to(inside)
    assert NAME in stored_tensors(sharded)
    outside = tmp_path / "outside.safetensors"
    inside.rename(outside)
    shard.unlink()
    shard.symlink_to(outside)
    with pytest.raises(CheckpointError, match="outside"):
        stored_tensors(sharded)


def test_links_of_a_hub_cache_lead_to_its_blobs(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / "0123abcd"
    blobs = tmp_path / "models--org--name" / "blobs"
    blobs.mkdir(parents=True)
    make_checkpoint(snapshot)
    (snapshot / "model.safetensors").rename(blobs / "feed")
    (snapshot / "model.safetensors").symlink_to(Path("../../blobs/feed"))
    assert NAME in stored_tensors(snapshot)


@pytest.mark.parametrize("kind", ["dangling", "directory", "loop"])
def test_a_shard_that_is_no_file_is_refused(sharded: Path, kind: str) -> None:
    shard = sharded / read_index(sharded)[NAME]
    shard.unlink()
    if kind == "directory":
        shard.mkdir()
    else:
        shard.symlink_to(sharded / "nowhere" if kind == "dangling" else shard)
    with pytest.raises(CheckpointError, match=shard.name):
        stored_tensors(sharded)


def test_a_missing_shard_is_named(sharded: Path) -> None:
    shard = read_index(sharded)[NAME]
    (sharded / shard).unlink()
    with pytest.raises(CheckpointError, match=f"{shard}.*missing"):
        stored_tensors(sharded)


def test_a_damaged_shard_is_named_with_its_tensor(sharded: Path) -> None:
    shard = sharded / read_index(sharded)[NAME]
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=rf"{shard.name}: tensor 'model\..*truncated"):
        stored_tensors(sharded)


def test_every_contradiction_of_index_and_shards_is_in_one_error(sharded: Path) -> None:
    shard_of = read_index(sharded)
    moved = next(name for name in shard_of if shard_of[name] != shard_of[NAME])
    write_index(sharded, {**shard_of, moved: shard_of[NAME], "ghost": shard_of[NAME]} | {})
    change_tensors(sharded, {NAME: torch.zeros(1), "unlisted": torch.zeros(1)}, shard_of[moved])
    with pytest.raises(CheckpointError) as caught:
        stored_tensors(sharded)
    text = str(caught.value)
    for expected in (f"{moved} is in", "ghost is not in", f"{NAME} is in", "unlisted is in"):
        assert expected in text


def test_a_single_file_and_an_index_together_are_ambiguous(sharded: Path) -> None:
    make_checkpoint(sharded)
    with pytest.raises(CheckpointError, match="both"):
        stored_tensors(sharded)


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"weight_map": {}}', '{"weight_map": ["a"]}', '{"weight_map": {"a": NaN}}']
)
def test_a_malformed_index_is_refused(sharded: Path, content: str) -> None:
    (sharded / INDEX).write_text(content)
    with pytest.raises(CheckpointError, match=INDEX):
        stored_tensors(sharded)


def test_shards_without_an_index_are_refused_by_name(sharded: Path) -> None:
    shard = read_index(sharded)[NAME]
    (sharded / INDEX).unlink()
    with pytest.raises(CheckpointError, match=f"{shard}.*index"):
        stored_tensors(sharded)
