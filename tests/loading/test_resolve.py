"""A name is a directory, then a bundled model, then a hub id; anything else is refused saying what there is."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from tests.factories import make_checkpoint

from surefoot.errors import LoadError, ModelNotFoundError, UnsupportedModelError
from surefoot.loading import bundled, load_target
from surefoot.loading import resolve as resolving
from surefoot.loading.resolve import resolve
from surefoot.options import Environment, LoadOptions

OFFLINE = Environment(hub_offline=True, no_color=False)
ONLINE = Environment(hub_offline=False, no_color=False)


@pytest.fixture(autouse=True)
def empty_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package directory with one bundled model, ``tiny``, and something that is none."""
    root = tmp_path / "package"
    make_checkpoint(root / "pebble" / "tiny")
    (root / "pebble" / "recipes").mkdir()
    (root / "pebble" / "evaluation.json").write_text("{}")
    monkeypatch.setattr(resolving, "files", lambda _: root)
    return root / "pebble" / "tiny"


def test_bundled_models_are_the_directories_with_a_config(shelf: Path) -> None:
    assert bundled() == {"tiny": shelf}


def test_a_bundled_model_loads_by_its_name(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load_target("tiny", LoadOptions())
    assert (loaded.name, loaded.path) == ("tiny", shelf)


def test_a_directory_goes_before_a_bundled_name(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_checkpoint(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    assert resolve("tiny", OFFLINE).path.resolve() == tmp_path / "tiny"


def test_a_directory_that_only_hides_a_bundled_model_is_named(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match="hides the bundled tiny"):
        resolve("tiny", OFFLINE)


def test_a_directory_goes_before_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_checkpoint(tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    assert load_target("org/name", LoadOptions()).name == "org/name"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "tiny ",
        "Tiny",
        "tiny/",
        "tiny\0",
        "../pebble/tiny",
        "./tiny",
        "recipes",
        "evaluation.json",
        "tin\u0443",
        "%2e%2e/tiny",
        "a/b/c",
        "/nowhere",
        "~nobody/tiny",
        "org/..",
        "../org",
        "org\\name",
        "x" * 5000,
        "line\nbreak",
        "https://huggingface.co/org/name",
    ],
)
def test_a_name_of_nothing_lists_the_bundled_models(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    with pytest.raises(ModelNotFoundError, match=r"bundled model \(tiny\)"):
        resolve(name, ONLINE)


def test_a_path_object_is_never_a_hub_id(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    with pytest.raises(ModelNotFoundError, match="expected a directory"):
        resolve(Path("org/name"), ONLINE)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("config.json", ModelNotFoundError),
        ("model.safetensors", ModelNotFoundError),
        ("model.gguf", UnsupportedModelError),
        ("model.onnx", UnsupportedModelError),
        ("model.bin", UnsupportedModelError),
    ],
)
def test_a_file_is_not_a_model(tmp_path: Path, file: str, expected: type[LoadError]) -> None:
    (tmp_path / file).write_bytes(b"")
    with pytest.raises(expected, match=file):
        resolve(tmp_path / file, OFFLINE)


def test_a_hub_id_is_downloaded_without_pickles_or_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, object]]] = []
    directory = make_checkpoint(tmp_path / "models--org--name" / "snapshots" / "0123")

    def download(hub_id: str, **arguments: object) -> str:
        asked.append((hub_id, arguments))
        return str(directory)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve("org/name", ONLINE).path == directory
    ((hub_id, arguments),) = asked
    assert hub_id == "org/name"
    assert arguments["local_files_only"] is False
    wanted = ["config.json", "model.safetensors", "model-00001-of-00002.safetensors", "chat_template.jinja"]
    unwanted = ["pytorch_model.bin", "modeling_x.py", "original/x.safetensors", "consolidated.safetensors", "x.pkl"]
    kept = huggingface_hub.utils.filter_repo_objects(
        [*wanted, *unwanted],
        allow_patterns=arguments["allow_patterns"],  # type: ignore[arg-type]
        ignore_patterns=arguments["ignore_patterns"],  # type: ignore[arg-type]
    )
    assert list(kept) == wanted


def test_offline_a_hub_id_opens_no_connection_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFoundError, match="HF_HUB_OFFLINE is set"):
        load_target("org/name", LoadOptions())


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("GatedRepoError", "gated.*auth login"),
        ("RepositoryNotFoundError", "no such model.*spelling"),
        ("LocalEntryNotFoundError", "cannot be reached"),
        ("HfHubHTTPError", "download failed"),
        ("HFValidationError", "spelling"),
    ],
)
def test_what_the_hub_says_becomes_one_error_with_advice(
    monkeypatch: pytest.MonkeyPatch, error: str, expected: str
) -> None:
    kind = getattr(huggingface_hub.errors, error)
    fault = kind.__new__(kind)
    Exception.__init__(fault, "said the hub")
    fault.server_message = fault.request_id = None

    def download(*_: object, **__: object) -> str:
        raise fault

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelNotFoundError, match=f"org/name.*{expected}"):
        resolve("org/name", ONLINE)
