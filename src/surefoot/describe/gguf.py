"""Headers of GGUF files (version 2 and 3, little endian): what the metadata says, without reading a tensor.

The format (ggml's ``docs/gguf.md``): magic, version, counts of tensors and of metadata; then the metadata as key, type
and value; then each tensor's name, shape, type and offset. Every length is checked against a bound before it is
believed.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from surefoot.describe.description import Description, count_in_words, facts_of
from surefoot.doctor.files import size_in_words
from surefoot.errors import CheckpointError

MAGIC = b"GGUF"
MOST_ENTRIES = 100_000
MOST_ELEMENTS = 10_000_000
MOST_TEXT = 2**24
_STRING, _ARRAY = 8, 9
_FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_TENSOR_TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 30: "BF16"} | {
    number: f"Q{bits}_K" for number, bits in zip(range(10, 16), (2, 3, 4, 5, 6, 8), strict=True)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """What a header says. Of arrays in ``metadata`` only the number of elements is kept."""

    version: int
    metadata: Mapping[str, object]
    types: Mapping[str, int]
    num_parameters: int


def read_gguf(path: Path) -> GgufHeader:
    """The header of a file. Raises ``CheckpointError`` where it is damaged."""
    try:
        with path.open("rb") as file:
            if file.read(4) != MAGIC:
                raise _damaged(path, "no GGUF magic")
            version = _number(file, "<I")
            if version not in (2, 3):
                raise _damaged(path, f"version {version}")
            num_tensors, num_entries = _bounded(file, MOST_ENTRIES), _bounded(file, MOST_ENTRIES)
            metadata = dict(_entry(file) for _ in range(num_entries))
            tensors = [_tensor(file) for _ in range(num_tensors)]
    except (struct.error, UnicodeDecodeError, _LiesError) as fault:
        raise _damaged(path, str(fault)) from fault
    except OSError as fault:
        raise CheckpointError(f"{path}: cannot be read: {fault}. Check its permissions") from fault
    return GgufHeader(
        version=version,
        metadata=metadata,
        types=Counter(kind for kind, _ in tensors),
        num_parameters=sum(numbers for _, numbers in tensors),
    )


class _LiesError(Exception):
    """A length beyond all reason, or a type there is none of."""


def _damaged(path: Path, found: str) -> CheckpointError:
    return CheckpointError(f"{path}: {found}; expected a whole GGUF file of version 2 or 3. Download it again")


def _number(file: BinaryIO, layout: str) -> int:
    (value,) = struct.unpack(layout, file.read(struct.calcsize(layout)))
    return int(value)


def _bounded(file: BinaryIO, most: int) -> int:
    value = _number(file, "<Q")
    if value > most:
        raise _LiesError(f"found the length {value}, of at most {most}")
    return value


def _text(file: BinaryIO) -> str:
    return file.read(_bounded(file, MOST_TEXT)).decode("utf-8", errors="replace")


def _entry(file: BinaryIO) -> tuple[str, object]:
    key = _text(file)
    return key, _value(file, _number(file, "<I"))


def _value(file: BinaryIO, kind: int) -> object:
    if kind == _STRING:
        return _text(file)
    if kind != _ARRAY:
        layout = _layout(kind)
        (value,) = struct.unpack(layout, file.read(struct.calcsize(layout)))
        return value
    inner, count = _number(file, "<I"), _bounded(file, MOST_ELEMENTS)
    if inner == _STRING:
        for _ in range(count):
            file.seek(_bounded(file, MOST_TEXT), 1)
    else:
        file.seek(count * struct.calcsize(_layout(inner)), 1)
    return count


def _layout(kind: int) -> str:
    if kind not in _FORMATS:
        raise _LiesError(f"found the value type {kind}")
    return _FORMATS[kind]


def _tensor(file: BinaryIO) -> tuple[str, int]:
    """The type and the number of elements of a tensor."""
    _text(file)
    num_dimensions = _number(file, "<I")
    if num_dimensions > 8:
        raise _LiesError(f"found a tensor of {num_dimensions} dimensions")
    shape = [_number(file, "<Q") for _ in range(num_dimensions)]
    kind = _number(file, "<I")
    _number(file, "<Q")
    return _TENSOR_TYPES.get(kind, f"type {kind}"), math.prod(shape)


def describe_gguf(path: Path) -> Description:
    """A GGUF file by its header."""
    header = read_gguf(path)
    metadata = header.metadata
    family = str(metadata.get("general.architecture", "unknown"))

    def of_family(name: str) -> object:
        return metadata.get(f"{family}.{name}")

    heads, kv_heads = of_family("attention.head_count"), of_family("attention.head_count_kv")
    modules = of_family("nextn_predict_layers")
    types = ", ".join(f"{kind} in {count}" for kind, count in Counter(header.types).most_common())
    return Description(
        path=str(path),
        kind=f"a GGUF file of version {header.version}: {family}",
        facts=facts_of(
            name=metadata.get("general.name"),
            parameters=count_in_words(header.num_parameters),
            weights=f"{size_in_words(path.stat().st_size)}; tensors: {types}",
            layers=of_family("block_count"),
            heads=None if heads is None else f"{heads} query, {kv_heads or heads} key-value",
            hidden_size=of_family("embedding_length"),
            context=of_family("context_length"),
            rope_theta=of_family("rope.freq_base"),
            tokenizer=metadata.get("tokenizer.ggml.model"),
            vocabulary=metadata.get("tokenizer.ggml.tokens"),
            chat_template="yes" if "tokenizer.chat_template" in metadata else "no",
            multi_token_prediction_modules=modules or None,
        ),
        usable=False,
        verdict="This version cannot use it: GGUF is not read",
        needs="Load the original safetensors checkpoint it was made from",
    )
