"""Whole models, GGUF files, damaged directories, and names: what is said of them, and what is never done with them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.factories import make_checkpoint, make_tokenizer
from tests.loading.checkpoints import change_tensors

from surefoot.describe import Description, describe
from surefoot.describe.gguf import read_gguf
from surefoot.doctor.files import examine_files, find
from surefoot.doctor.memory import Need
from surefoot.errors import CheckpointError, ModelNotFoundError
from surefoot.loading import checkpoint, load_target
from surefoot.options import LoadOptions

LAW = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def facts(description: Description) -> dict[str, str]:
    return {fact.name: fact.value for fact in description.facts}


def test_a_model_is_described_in_full(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model", vocab_size=300, dtype=torch.bfloat16, num_shards=2)
    make_tokenizer(path)
    (path / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 0.6, "top_p": 0.95}))
    description = describe(str(path))
    size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    model = load_target(path, LoadOptions(device="cpu", trainable=True)).model
    assert facts(description) == {
        "parameters": f"{sum(parameter.numel() for parameter in model.parameters()) / 1e3:#.3g} k",
        "weights": f"{len(list(model.parameters())) + 3 * 3} tensors of BF16, {size / 1e6:.3g} MB, loads as bfloat16",
        "family": "qwen3",
        "layers": "3",
        "heads": "4 query, 2 key-value, of 16",
        "hidden size": "48",
        "feed forward": "80",
        "vocabulary": "300 rows",
        "context": "512 tokens",
        "positions": "rope default, theta 10000",
        "output head": "its own",
        "cache": "0.384 kB a token in bfloat16; 0.768 kB on a CPU, in float32",
        "tokenizer": "BPE, 300 ids, 3 special",
        "chat template": "no",
        "ends at": "2",
        "sampling defaults": "temperature 0.6, top_k 0, top_p 0.95, min_p 0",
    }
    assert description.usable
    assert description.needs == ""


def test_layers_of_other_kinds_are_told(tmp_path: Path) -> None:
    hybrid = facts(describe(str(make_checkpoint(tmp_path / "hybrid", "qwen3_next"))))
    assert hybrid["layers"] == "4: 3 with a Gated DeltaNet, 1 with gated attention"
    assert hybrid["delta heads"] == "2 key of 16, 4 value of 24"
    assert hybrid["experts"] == "6 of 40, 2 for each token, and a shared one of 56 in 3 layers"
    assert hybrid["positions"] == "rope default, theta 10000, 8 dimensions of a head"
    assert hybrid["cache"] == "0.256 kB a token in float32; and 0.0242 MB of recurrent states"
    dense = facts(describe(str(make_checkpoint(tmp_path / "dense", "qwen3_5"))))
    assert "experts" not in dense
    sparse = facts(describe(str(make_checkpoint(tmp_path / "sparse", "qwen3_moe"))))
    assert sparse["experts"] == "6 of 40, 2 for each token"
    assert not {"delta heads", "feed forward"} & sparse.keys()


def test_no_weight_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "read", None)
    path = make_checkpoint(tmp_path / "model")
    assert describe(str(path)).usable
    (path / "config.json").write_text(
        (path / "config.json").read_text().replace('"num_hidden_layers": 3', '"num_hidden_layers": 2')
    )
    description = describe(str(path))
    assert not description.usable
    assert "unexpected: model.layers.2" in description.verdict


def test_a_model_of_another_family_is_described_as_far_as_its_config_goes(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model")
    raw = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**raw, "model_type": "gpt9"}))
    description = describe(str(path))
    assert description.kind == "a model of type gpt9"
    assert facts(description)["layers"] == "3"
    assert "model_type is 'gpt9'" in description.verdict
    assert description.needs == "Use a model of these families"


def test_modules_that_predict_further_tokens_are_mentioned(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model")
    raw = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**raw, "num_nextn_predict_layers": 2}))
    assert any("2 multi-token prediction module(s)" in note for note in describe(str(path)).notes)
    hybrid = make_checkpoint(tmp_path / "hybrid", "qwen3_5", mtp_num_hidden_layers=1)
    change_tensors(hybrid, {"mtp.fc.weight": torch.zeros(48, 96)})
    (once,) = describe(str(hybrid)).notes
    assert "mtp.*" in once


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"pytorch_model.bin": b"x"}, "a model in pickled weights"),
        ({"model.onnx": b"x"}, "a model of unknown type"),
        ({"config.json": b"{}"}, "a model of unknown type"),
        ({"config.json": b"{"}, "a damaged model directory"),
        ({"model.gguf": b"GGUF"}, "a damaged GGUF file"),
        ({"config.json": b"{}", "model.safetensors": b"\x10"}, "a damaged model directory"),
    ],
)
def test_what_cannot_be_used_says_what_it_needs(tmp_path: Path, files: dict[str, bytes], kind: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    description = describe(str(tmp_path))
    assert description.kind.startswith(kind)
    assert not description.usable
    assert description.needs


@pytest.mark.parametrize("files", [(), ("notes.txt", "index.json")])
def test_a_directory_without_a_model_is_not_described(tmp_path: Path, files: tuple[str, ...]) -> None:
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(ModelNotFoundError, match=r"found no config\.json and no weights; expected .*Check the path"):
        describe(str(tmp_path))


@pytest.mark.parametrize("name", ["", "nowhere", "./nowhere", "some-org/not-downloaded"])
def test_nothing_is_downloaded(name: str) -> None:
    with pytest.raises(ModelNotFoundError):
        describe(name)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(version: int = 3) -> bytes:
    """A whole header: metadata of several types, two tensors."""
    entries = [
        (b"", "general.architecture", 8, text("llama")),
        (b"", "llama.block_count", 4, struct.pack("<I", 32)),
        (b"", "llama.attention.head_count", 4, struct.pack("<I", 32)),
        (b"", "llama.attention.head_count_kv", 4, struct.pack("<I", 8)),
        (b"", "llama.rope.freq_base", 6, struct.pack("<f", 500000.0)),
        (b"", "tokenizer.ggml.model", 8, text("gpt2")),
        (b"", "tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 3) + text("a") + text("bc") + text("")),
        (b"", "tokenizer.ggml.scores", 9, struct.pack("<IQ", 6, 3) + b"\0" * 12),
        (b"", "tokenizer.chat_template", 8, text("{{ messages }}")),
    ]
    tensors = [("token_embd.weight", (4, 3), 0), ("blk.0.attn_q.weight", (256, 10), 12)]
    raw = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries))
    for _, key, kind, value in entries:
        raw += text(key) + struct.pack("<I", kind) + value
    for name, shape, kind in tensors:
        raw += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, 0)
    return raw


@pytest.mark.parametrize("as_directory", [False, True])
def test_a_gguf_file_is_described_by_its_header(tmp_path: Path, as_directory: bool) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf())
    description = describe(str(tmp_path if as_directory else path))
    assert description.kind == "a GGUF file of version 3: llama"
    assert facts(description) == {
        "parameters": "2.57 k",
        "weights": f"{len(gguf()) / 1e6:.3g} MB; tensors: F32 in 1, Q4_K in 1",
        "layers": "32",
        "heads": "32 query, 8 key-value",
        "rope theta": "500000.0",
        "tokenizer": "gpt2",
        "vocabulary": "3",
        "chat template": "yes",
    }
    assert not description.usable
    assert "safetensors" in description.needs


@LAW
@given(cut=st.integers(0, len(gguf()) - 1))
def test_a_truncated_header_is_an_error_of_ours(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    path.write_bytes(gguf()[:cut])
    with pytest.raises(CheckpointError):
        read_gguf(path)


@LAW
@given(place=st.integers(4, len(gguf()) - 1), byte=st.integers(0, 255))
def test_a_changed_byte_never_crashes(tmp_path_factory: pytest.TempPathFactory, place: int, byte: int) -> None:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    path.write_bytes(gguf()[:place] + bytes([byte]) + gguf()[place + 1 :])
    description = describe(str(path))
    if description.kind == "a damaged GGUF file":
        assert description.needs == "Download it again"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_cache_it_tells_of_is_the_one_doctor_counts(tmp_path: Path, dtype: torch.dtype) -> None:
    path = str(make_checkpoint(tmp_path / "model", dtype=dtype))
    need = Need.of(examine_files(find(path), "target")[1], "auto", torch.device("cpu"))
    told = facts(describe(path))["cache"].rpartition("; ")[2]
    assert told.startswith(f"{need.per_token / 1e3:.4g} kB")
