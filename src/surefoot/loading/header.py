"""Headers of safetensors files, checked before a byte of the weights is mapped.

The format: eight bytes of length, little endian; a JSON object of that length, from tensor name to dtype, shape and
offsets; the tensors, without gaps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from surefoot.errors import CheckpointError
from surefoot.loading.files import parse_json

MAX_HEADER_BYTES = 100_000_000
MAX_ELEMENTS = 2**63 - 1

BITS: Mapping[str, int] = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""Bits per element of every dtype the format knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor as a header describes it; ``start`` and ``end`` are byte offsets after the header."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> list[StoredTensor]:
    """The tensors of a file in the order they lie in it. Raises ``CheckpointError`` naming the file and the tensor."""
    size, raw = _read_raw(path)
    try:
        header = parse_json(raw)
    except (ValueError, RecursionError) as fault:
        raise _damaged(path, f"the header is not valid JSON ({fault})", "a JSON object") from fault
    if not isinstance(header, dict) or not raw.startswith(b"{"):
        raise _damaged(path, f"the header is a JSON {type(header).__name__}", "an object, from its first byte")
    _check_metadata(path, header.pop("__metadata__", {}))
    tensors = [_read_entry(path, name, entry) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.end))
    _check_cover(path, tensors, size - 8 - len(raw))
    return tensors


def _read_raw(path: Path) -> tuple[int, bytes]:
    """The size of the file and its header as it stands, whose length is checked before it is believed."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            if len(prefix) < 8:
                raise _damaged(path, f"found {size} bytes", "at least the 8 of a safetensors header's length")
            length = int.from_bytes(prefix, "little")
            if not 2 <= length <= MAX_HEADER_BYTES:
                raise _damaged(path, f"the header claims {length} bytes", f"2 to {MAX_HEADER_BYTES}")
            if length > size - 8:
                raise _damaged(path, f"the header claims {length} bytes but {size - 8} follow", "a whole file")
            return size, file.read(length)
    except OSError as fault:
        raise CheckpointError(f"{path}: cannot be read: {fault}. Check its permissions") from fault


def _check_metadata(path: Path, metadata: object) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _damaged(path, "__metadata__ is something else", "an object of strings")


def _read_entry(path: Path, name: str, entry: object) -> StoredTensor:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _damaged(path, f"{entry!r:.80}", "an object of dtype, shape and data_offsets", name)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise _damaged(path, f"dtype {dtype!r:.80}", f"one of {', '.join(BITS)}", name)
    if not _naturals(shape):
        raise _damaged(path, f"shape {shape!r:.80}", "a list of integers of at least 0", name)
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _damaged(path, f"data_offsets {offsets!r:.80}", "a start and an end, in this order", name)
    elements = math.prod(shape)
    if elements > MAX_ELEMENTS:
        raise _damaged(path, f"shape {shape!r:.80} overflows", "fewer than 2^63 elements", name)
    if elements * BITS[dtype] != 8 * (offsets[1] - offsets[0]):
        found = f"{offsets[1] - offsets[0]} bytes"
        raise _damaged(path, found, f"those of {shape!r:.80} elements of {dtype}", name)
    return StoredTensor(name=name, path=path, dtype=dtype, shape=tuple(shape), start=offsets[0], end=offsets[1])


def _naturals(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_cover(path: Path, tensors: list[StoredTensor], num_bytes: int) -> None:
    """The tensors must cover the ``num_bytes`` after the header once, from the first byte to the last."""
    end = 0
    for tensor in tensors:
        if tensor.start != end:
            kind = "a gap before it" if tensor.start > end else "an overlap with the tensor before it"
            raise _damaged(path, f"{kind}: it starts at byte {tensor.start}", f"{end}", tensor.name)
        end = tensor.end
        if end > num_bytes:
            found = f"it ends at byte {end} of {num_bytes}: the file is truncated or lies"
            raise _damaged(path, found, "a tensor inside the file", tensor.name)
    if end != num_bytes:
        raise _damaged(path, f"{num_bytes - end} bytes after the last tensor", "none")


def _damaged(path: Path, found: str, expected: str, tensor: str | None = None) -> CheckpointError:
    where = f"{path}" if tensor is None else f"{path}: tensor {tensor!r:.200}"
    return CheckpointError(f"{where}: {found}; expected {expected}. Download the file again")
