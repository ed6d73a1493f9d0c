"""What a directory holds, read without trusting or executing any of it: file names, configs, headers of safetensors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from surefoot.doctor.files import size_in_words
from surefoot.errors import CheckpointError
from surefoot.loading.files import read_optional_object
from surefoot.loading.header import StoredTensor, read_header


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A directory's contents.

    Attributes:
        path: the directory.
        names: its files, sorted.
        raw: ``config.json``; empty where there is none.
        tensors: all tensors of all safetensors files by name, as their headers describe them.
        weight_bytes: bytes of all weight files, whatever their format.
    """

    path: Path
    names: tuple[str, ...]
    raw: Mapping[str, object]
    tensors: Mapping[str, StoredTensor]
    weight_bytes: int

    def with_ending(self, *endings: str) -> tuple[str, ...]:
        """The files whose names end so."""
        return tuple(name for name in self.names if name.lower().endswith(endings))

    def number(self, name: str) -> int | None:
        """An integer of the config."""
        value = self.raw.get(name)
        return value if type(value) is int else None

    def section(self, name: str) -> Mapping[str, object]:
        """An object of the config; empty where there is none."""
        value = self.raw.get(name)
        return value if isinstance(value, Mapping) else {}

    @property
    def architectures(self) -> tuple[str, ...]:
        """The class names in the config."""
        value = self.raw.get("architectures")
        return tuple(map(str, value)) if isinstance(value, list) else ()

    def shape(self, ending: str) -> tuple[int, ...] | None:
        """The shape of the tensor called so, whatever stands before its last names; None where there is none."""
        found = [tensor.shape for name, tensor in self.tensors.items() if name == ending or name.endswith(f".{ending}")]
        return found[0] if found else None

    @property
    def num_parameters(self) -> int | None:
        """Numbers in all tensors; None where no header could be read."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values()) if self.tensors else None

    @property
    def stored(self) -> str:
        """How the weights lie on disk."""
        kinds = Counter(tensor.dtype for tensor in self.tensors.values())
        dtypes = "/".join(kind for kind, _ in kinds.most_common())
        tensors = f"{len(self.tensors)} tensors of {dtypes}, " if self.tensors else ""
        return f"{tensors}{size_in_words(self.weight_bytes)}"


WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".pkl")


def read_contents(path: Path) -> Contents:
    """Reads a directory. Raises ``CheckpointError`` naming what is damaged."""
    try:
        files = sorted(file for file in path.iterdir() if file.is_file())
    except OSError as fault:
        raise CheckpointError(f"{path}: cannot be read: {fault}. Check its permissions") from fault
    tensors = {tensor.name: tensor for file in files if file.suffix == ".safetensors" for tensor in read_header(file)}
    return Contents(
        path=path,
        names=tuple(file.name for file in files),
        raw=read_optional_object(path, "config.json"),
        tensors=tensors,
        weight_bytes=sum(file.stat().st_size for file in files if file.name.lower().endswith(WEIGHTS)),
    )
