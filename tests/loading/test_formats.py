"""What is not safetensors and JSON of a known text model is refused by name, unopened and unexecuted."""

from __future__ import annotations

import json
import os
import pickle
import socket
from functools import partial
from pathlib import Path

import pytest
from tests.factories import ARCHITECTURES, make_checkpoint, make_tokenizer
from tests.loading.checkpoints import change_json
from tests.loading.conftest import SocketOpenedError

from surefoot.errors import CheckpointError, LoadError, UnsupportedModelError
from surefoot.loading import load_draft, load_target
from surefoot.options import LoadOptions


class Canary:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "model")


def test_the_canary_sings_when_it_is_unpickled(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Canary(tmp_path / "sung")))
    assert (tmp_path / "sung").exists()


def test_the_network_guard_guards() -> None:
    with pytest.raises(SocketOpenedError):
        socket.create_connection(("localhost", 1))


@pytest.mark.parametrize(
    "file", ["pytorch_model.bin", "model.pt", "model.pth", "weights.pkl", "MODEL.BIN", "model.ckpt", "model.pickle"]
)
def test_a_directory_of_pickles_is_refused_and_none_is_opened(tmp_path: Path, directory: Path, file: str) -> None:
    (directory / "model.safetensors").unlink()
    (directory / file).write_bytes(pickle.dumps(Canary(tmp_path / "sung")))
    with pytest.raises(UnsupportedModelError, match=f"{file}.*save_pretrained"):
        load_target(directory, LoadOptions())
    assert not (tmp_path / "sung").exists()


def test_pickles_beside_safetensors_are_left_alone(tmp_path: Path, directory: Path) -> None:
    for file in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "tokenizer.pkl"):
        (directory / file).write_bytes(pickle.dumps(Canary(tmp_path / "sung")))
    load_target(directory, LoadOptions())
    assert not (tmp_path / "sung").exists()


def test_a_pickle_called_safetensors_is_refused(tmp_path: Path, directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(pickle.dumps(Canary(tmp_path / "sung")))
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load_target(directory, LoadOptions())
    assert not (tmp_path / "sung").exists()


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("as_draft", [False, True])
def test_code_of_the_checkpoint_is_refused_and_never_runs(
    tmp_path: Path, directory: Path, file: str, as_draft: bool
) -> None:
    make_tokenizer(directory)
    target = load_target(directory, LoadOptions())
    load = partial(load_draft, target=target) if as_draft else load_target
    code = f"import os\nos.mkdir({str(tmp_path / 'sung')!r})\n"
    for module in ("modeling_canary.py", "configuration_canary.py", "tokenization_canary.py", "__init__.py"):
        (directory / module).write_text(code)
    load_target(directory, LoadOptions())  # the files alone are nothing to us
    change_json(directory, file, auto_map={"AutoModelForCausalLM": "modeling_canary.Canary"})
    with pytest.raises(UnsupportedModelError, match=f"{file}.*auto_map"):
        load(directory, LoadOptions())
    assert not (tmp_path / "sung").exists()


def test_code_that_a_family_stands_for_is_named_but_never_run(tmp_path: Path) -> None:
    """The published Phi checkpoints name their first code, which is what this family implements."""
    own = {"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}
    directory = make_checkpoint(tmp_path / "phi", "phi3", auto_map={**own, "AutoTokenizer": "Xenova/gpt-4o"})
    for module in ("modeling_phi3.py", "configuration_phi3.py", "__init__.py"):
        (directory / module).write_text(f"import os\nos.mkdir({str(tmp_path / 'sung')!r})\n")
    assert load_target(directory, LoadOptions()).config.model_type == "phi3"
    assert not (tmp_path / "sung").exists()
    for other in (
        {**own, "AutoModel": "modeling_phi3.Phi3Model"},
        {"AutoConfig": "configuration_phi3.Phi3Config2"},
        [],
    ):
        change_json(directory, "config.json", auto_map=other)
        with pytest.raises(UnsupportedModelError, match="auto_map"):
            load_target(directory, LoadOptions())
    llama = make_checkpoint(tmp_path / "llama", "llama")
    change_json(llama, "config.json", auto_map=own)
    with pytest.raises(UnsupportedModelError, match="auto_map"):
        load_target(llama, LoadOptions())


def test_a_custom_model_is_refused_for_its_code_not_its_name(directory: Path) -> None:
    change_json(directory, "config.json", auto_map={"AutoConfig": "x.X"}, model_type="custom")
    with pytest.raises(UnsupportedModelError, match="auto_map"):
        load_target(directory, LoadOptions())


@pytest.mark.parametrize(
    ("file", "advice"),
    [("model.gguf", "GGUF"), ("model.onnx", "ONNX"), ("tf_model.h5", "TensorFlow"), ("flax_model.msgpack", "Flax")],
)
def test_other_formats_are_refused_with_what_to_do(directory: Path, file: str, advice: str) -> None:
    (directory / "model.safetensors").rename(directory / file)
    with pytest.raises(UnsupportedModelError, match=f"{file}.*{advice}"):
        load_target(directory, LoadOptions())


def test_an_adapter_is_refused_with_what_to_do(directory: Path) -> None:
    (directory / "config.json").rename(directory / "adapter_config.json")
    with pytest.raises(UnsupportedModelError, match="merge_and_unload"):
        load_target(directory, LoadOptions())


def test_a_directory_with_nothing_of_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no config"):
        load_target(tmp_path, LoadOptions())


def test_weights_without_a_config_are_refused(directory: Path) -> None:
    (directory / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        load_target(directory, LoadOptions())


@pytest.mark.parametrize(
    "changes",
    [
        {"vision_config": {"depth": 2}},
        {"audio_config": {}},
        {"image_token_id": 5},
        {"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl"},
        {"architectures": ["LlavaForConditionalGeneration"]},
        {"text_config": {"model_type": "qwen3"}},
        {"architectures": ["Qwen3ForSequenceClassification"]},
        {"quantization_config": {"quant_method": "awq"}},
    ],
)
def test_other_kinds_of_models_are_refused_by_name(directory: Path, changes: dict[str, object]) -> None:
    change_json(directory, "config.json", **changes)
    named = "|".join([*changes, *map(str, changes.get("architectures", []))])  # type: ignore[call-overload]
    with pytest.raises(UnsupportedModelError, match=named):
        load_target(directory, LoadOptions())


@pytest.mark.parametrize("model_type", ["gpt_oss", "", None, 3, ["qwen3"], "Qwen3", "../qwen3"])
def test_an_unknown_model_type_is_refused_and_the_known_are_listed(directory: Path, model_type: object) -> None:
    change_json(directory, "config.json", model_type=model_type)
    with pytest.raises(UnsupportedModelError) as caught:
        load_target(directory, LoadOptions())
    for family in ARCHITECTURES:
        assert family in str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b"[]", "list"),
        (b"null", "NoneType"),
        (b'{"model_type": "qwen3", "model_type": "llama"}', "'model_type' appears twice"),
        (b'{"rope_theta": NaN}', "NaN"),
        (b'{"rope_theta": -Infinity}', "Infinity"),
        (b'{"rope_theta": 1e999}', "1e999"),
        (b'{"a":' * 100_000, "not valid JSON"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_a_json_file_that_is_not_sound_is_refused(directory: Path, file: str, content: bytes, expected: str) -> None:
    make_tokenizer(directory)
    (directory / file).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{file}.*{expected}"):
        load_target(directory, LoadOptions())


def test_a_config_linked_from_outside_is_refused(tmp_path: Path, directory: Path) -> None:
    (directory / "config.json").rename(tmp_path / "config.json")
    (directory / "config.json").symlink_to(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match="outside"):
        load_target(directory, LoadOptions())


def test_a_pipe_in_place_of_weights_does_not_hang(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    os.mkfifo(directory / "model.safetensors")
    with pytest.raises(CheckpointError, match="regular file"):
        load_target(directory, LoadOptions())


@pytest.mark.parametrize(
    "field", ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"]
)
@pytest.mark.parametrize("value", [0, -1, 2**30, 2**70, "8", 1.5, True, [], None])
def test_a_size_that_is_none_is_a_load_error(directory: Path, field: str, value: object) -> None:
    content = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**content, field: value}))
    with pytest.raises(LoadError):
        load_target(directory, LoadOptions())
