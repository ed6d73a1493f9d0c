"""Safetensors headers that lie are refused before anything is mapped, naming the file and the tensor."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from surefoot.errors import CheckpointError
from surefoot.loading.header import MAX_HEADER_BYTES, read_header

ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def file_bytes(header: object, num_data_bytes: int = 24, length: int | None = None) -> bytes:
    """A file with this header, JSON unless it is bytes already."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + bytes(num_data_bytes)


def entry(**changes: object) -> dict[str, object]:
    return {**ENTRY, **changes}


SOUND = file_bytes({"__metadata__": {"format": "pt"}, "w": ENTRY})

LIES: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "found 0 bytes"),
    "length cut": (SOUND[:7], "found 7 bytes"),
    "length only": (SOUND[:8], "claims"),
    "header cut": (SOUND[: 8 + len(SOUND) - 24 - 8 - 1], "claims"),
    "data missing": (SOUND[:-24], r"'w'.*truncated"),
    "data cut in the middle": (SOUND[:-12], r"'w'.*truncated"),
    "last byte missing": (SOUND[:-1], r"'w'.*truncated"),
    "one byte more": (SOUND + b"\0", "1 bytes after the last tensor"),
    "header length 0": (file_bytes({"w": ENTRY}, length=0), "claims 0"),
    "header length 2^63": (file_bytes({"w": ENTRY}, length=2**63), "claims 9223372036854775808"),
    "header length 2^64-1": (file_bytes({"w": ENTRY}, length=2**64 - 1), "claims"),
    "header beyond the file": (file_bytes({"w": ENTRY}, length=5000), "claims 5000"),
    "header beyond the cap": (file_bytes({"w": ENTRY}, length=MAX_HEADER_BYTES + 1), f"2 to {MAX_HEADER_BYTES}"),
    "not JSON": (file_bytes(b"{'w': 1}"), "not valid JSON"),
    "not UTF-8": (file_bytes(b'{"\xff": 1}'), "not valid JSON"),
    "endless nesting": (file_bytes(b'{"w":' + b"[" * 200_000), "not valid JSON"),
    "a JSON list": (file_bytes([1, 2]), "JSON list"),
    "leading space": (file_bytes(b" " + json.dumps({"w": ENTRY}).encode()), "first byte"),
    "duplicate tensor": (file_bytes(b'{"w":%b,"w":%b}' % ((json.dumps(ENTRY).encode(),) * 2)), "'w' appears twice"),
    "duplicate field": (
        file_bytes(b'{"w":{"dtype":"F32","dtype":"F32","shape":[6],"data_offsets":[0,24]}}'),
        "'dtype' appears twice",
    ),
    "metadata not strings": (file_bytes({"__metadata__": {"a": 1}, "w": ENTRY}), "__metadata__"),
    "entry not an object": (file_bytes({"w": 3}), "'w'"),
    "field missing": (file_bytes({"w": {"dtype": "F32", "shape": [6]}}), "'w'"),
    "field unknown": (file_bytes({"w": entry(extra=1)}), "'w'"),
    "dtype unknown": (file_bytes({"w": entry(dtype="F31")}), "'w'.*F31"),
    "dtype no string": (file_bytes({"w": entry(dtype=["F32"])}), "'w'"),
    "shape negative": (file_bytes({"w": entry(shape=[-2, -3])}), r"'w'.*-2"),
    "shape fractional": (file_bytes({"w": entry(shape=[2.0, 3])}), r"'w'.*2\.0"),
    "shape boolean": (file_bytes({"w": entry(shape=[True, 6])}), "'w'.*True"),
    "shape not a list": (file_bytes({"w": entry(shape=6)}), "'w'"),
    "shape larger than the bytes": (file_bytes({"w": entry(shape=[2, 4])}), r"'w'.*24 bytes"),
    "shape smaller than the bytes": (file_bytes({"w": entry(shape=[2, 2])}), r"'w'.*24 bytes"),
    "dtype larger than the bytes": (file_bytes({"w": entry(dtype="F64")}), r"'w'.*24 bytes"),
    "shape overflows 64 bits": (file_bytes({"w": entry(shape=[2**32, 2**32])}), "'w'.*overflow"),
    "shape wraps to the bytes": (file_bytes({"w": entry(shape=[2**63, 2, 6])}), "'w'.*overflow"),
    "offset negative": (file_bytes({"w": entry(data_offsets=[-24, 0])}), r"'w'.*-24"),
    "offsets reversed": (file_bytes({"w": entry(data_offsets=[24, 0])}), r"'w'.*order"),
    "offset missing": (file_bytes({"w": entry(data_offsets=[0])}), "'w'"),
    "offset a digit flood": (
        file_bytes(b'{"w":{"dtype":"F32","shape":[6],"data_offsets":[0,%b]}}' % (b"9" * 5000)),
        "not valid JSON",
    ),
    "offset beyond the file": (
        file_bytes({"w": entry(shape=[2, 30], data_offsets=[0, 240])}),
        r"'w'.*truncated or lies",
    ),
    "gap at the start": (file_bytes({"w": entry(shape=[5], data_offsets=[4, 24])}), r"'w'.*gap"),
    "gap between": (
        file_bytes({"v": entry(shape=[2], data_offsets=[0, 8]), "w": entry(shape=[3], data_offsets=[12, 24])}),
        r"'w'.*gap",
    ),
    "overlap": (
        file_bytes({"v": entry(shape=[4], data_offsets=[0, 16]), "w": entry(shape=[4], data_offsets=[8, 24])}),
        r"'w'.*overlap",
    ),
    "the same bytes twice": (file_bytes({"v": ENTRY, "w": ENTRY}), r"'w'.*overlap"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_damaged_or_lying_file_is_refused_by_name(tmp_path: Path, lie: str) -> None:
    content, expected = LIES[lie]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    begun = time.monotonic()
    with pytest.raises(CheckpointError, match=f"(?s)model.safetensors.*{expected}"):
        read_header(path)
    assert time.monotonic() - begun < 2


def test_sound_files_are_read_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(SOUND)
    (tensor,) = read_header(path)
    assert (tensor.name, tensor.dtype, tensor.shape, tensor.start, tensor.end) == ("w", "F32", (2, 3), 0, 24)
    tensors = {"b": torch.ones(3), "a": torch.zeros(2, 2), "scalar": torch.tensor(1.0), "none": torch.zeros(0, 4)}
    save_file(tensors, path, metadata={"format": "pt"})
    found = read_header(path)
    assert {tensor.name: tensor.shape for tensor in found} == {name: tuple(t.shape) for name, t in tensors.items()}
    assert [tensor.start for tensor in found] == sorted(tensor.start for tensor in found)


def test_an_empty_checkpoint_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_bytes({}, 0))
    assert read_header(path) == []


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, len(SOUND) - 25), replacement=st.binary(min_size=0, max_size=3))
def test_what_we_accept_the_library_reads_whatever_bytes_are_changed(
    tmp_path: Path, position: int, replacement: bytes
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(SOUND[:position] + replacement + SOUND[position + len(replacement) :])
    try:
        tensors = read_header(path)
    except CheckpointError:
        return
    with safe_open(path, framework="pt") as file:
        for tensor in tensors:
            assert tuple(file.get_slice(tensor.name).get_shape()) == tensor.shape
