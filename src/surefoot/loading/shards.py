"""Which file of a checkpoint holds which tensor: one ``model.safetensors``, or shards and their index."""

from __future__ import annotations

from pathlib import Path

from surefoot.errors import CheckpointError
from surefoot.loading.files import read_json_object, regular_file
from surefoot.loading.header import StoredTensor, read_header

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor of the checkpoint by name, from headers that are sound and an index that tells the truth."""
    single, index = regular_file(directory, SINGLE), regular_file(directory, INDEX)
    if single is not None and index is not None:
        raise CheckpointError(
            f"{directory}: found both {SINGLE} and {INDEX}; expected one or the other. Remove the one that is stale"
        )
    if single is not None:
        return {tensor.name: tensor for tensor in read_header(single)}
    if index is not None:
        return _sharded(directory, index)
    found = sorted(path.name for path in directory.glob("*.safetensors"))
    raise CheckpointError(
        f"{directory}: found {', '.join(found) or 'no safetensors file'}; expected {SINGLE}, or shards and their "
        f"{INDEX}. Complete the download, or save the model again with save_pretrained"
    )


def _sharded(directory: Path, index: Path) -> dict[str, StoredTensor]:
    shard_of = _read_index(index)
    stored: dict[str, StoredTensor] = {}
    problems: list[str] = []
    for shard in sorted(set(shard_of.values())):
        path = regular_file(directory, shard)
        if path is None:
            raise CheckpointError(f"{index}: names the shard {shard!r}, which is missing. Complete the download")
        for tensor in read_header(path):
            if tensor.name in stored:
                problems.append(f"{tensor.name} is in {stored[tensor.name].path.name} and in {shard}")
            elif shard_of.get(tensor.name) != shard:
                problems.append(f"{tensor.name} is in {shard}, the index says {shard_of.get(tensor.name, 'nowhere')}")
            stored.setdefault(tensor.name, tensor)
    problems += [f"{name} is not in {shard_of[name]}" for name in sorted(shard_of.keys() - stored.keys())]
    if problems:
        raise CheckpointError(
            f"{index}: the index and the shards contradict each other; expected each tensor once, where the index "
            "says. Download the checkpoint again:\n" + "\n".join(f"  {problem}" for problem in problems)
        )
    return stored


def _read_index(index: Path) -> dict[str, str]:
    shard_of = read_json_object(index).get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of or not all(isinstance(name, str) for name in shard_of.values()):
        raise CheckpointError(f"{index}: weight_map is {shard_of!r:.80}; expected an object from tensor to shard name")
    for shard in shard_of.values():
        if not shard.endswith(".safetensors"):
            raise CheckpointError(f"{index}: names the shard {shard!r:.200}; expected a .safetensors file")
    return shard_of
