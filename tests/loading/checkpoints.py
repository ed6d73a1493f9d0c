"""Ways to break a checkpoint on disk, and a tokenizer small enough to read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import tokenizers
from safetensors.torch import load_file, save_file
from torch import Tensor

INDEX = "model.safetensors.index.json"


def change_json(directory: Path, name: str, **changes: object) -> None:
    """Sets fields of a JSON file, made if need be; None removes one."""
    path = directory / name
    content = {**(json.loads(path.read_text()) if path.exists() else {}), **changes}
    path.write_text(json.dumps({field: value for field, value in content.items() if value is not None}))


def change_tensors(directory: Path, changes: Mapping[str, Tensor | None], file: str = "model.safetensors") -> None:
    """Replaces, adds or (None) removes tensors of a weight file."""
    tensors = {**load_file(directory / file), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, directory / file)


def read_index(directory: Path) -> dict[str, str]:
    """The map from tensor to shard of a sharded checkpoint."""
    found: dict[str, str] = json.loads((directory / INDEX).read_text())["weight_map"]
    return found


def write_index(directory: Path, shard_of: Mapping[str, object]) -> None:
    """Writes the index of a sharded checkpoint."""
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict(shard_of)}))


def byte_tokenizer(
    merges: tuple[tuple[str, str], ...] = (("a", "b"), ("b", "c")), **changes: object
) -> dict[str, object]:
    """A byte-level BPE ``tokenizer.json``: three special tokens, 256 bytes, then the merges."""
    core = tokenizers.Tokenizer(tokenizers.models.BPE())
    special = ("<eos>", "<bos>", "<pad>")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    pieces = [*special, *alphabet, *("".join(pair) for pair in merges)]
    vocab = {piece: rank for rank, piece in enumerate(pieces)}
    core.model = tokenizers.models.BPE(vocab=vocab, merges=list(merges))
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    raw: dict[str, object] = json.loads(core.to_str())
    raw["added_tokens"] = [
        {"id": token, "content": content, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for token, content in enumerate(special)
    ]
    return {**raw, **changes}
