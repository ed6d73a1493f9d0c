"""``surefoot inspect``: words, JSON, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Program

from surefoot.presets import PRESETS


def test_a_model_is_described_in_lines(surefoot_program: Program, model: str) -> None:
    ran = surefoot_program("inspect", model)
    lines = ran.out.splitlines()
    assert (ran.code, ran.err) == (0, "")
    assert lines[0] == f"{model}: a qwen3 language model"
    assert "  heads              4 query, 2 key-value, of 16" in lines
    assert lines[-1].startswith("This version can use it as a target")
    assert "\x1b" not in ran.out


def test_json_is_one_object(surefoot_program: Program, model: str) -> None:
    got = json.loads(surefoot_program("inspect", model, "--json").out)
    assert got["usable"] is True
    assert got["facts"]["chat template"] == "yes"
    assert got["presets"] == []


def test_a_name_of_the_settings_file_is_known(surefoot_program: Program, model: str, tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(f'[[models]]\nname = "mine"\npath = "{model}"\n')
    ran = surefoot_program("inspect", "mine", "--config", str(settings))
    assert (ran.code, ran.out) == (0, surefoot_program("inspect", model).out)
    assert surefoot_program("inspect", "mine").code == 2


def test_what_cannot_be_used_is_described_all_the_same(surefoot_program: Program, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    ran = surefoot_program("inspect", str(tmp_path))
    assert ran.code == 0
    assert "needs: Merge it into its base model" in ran.out


def test_the_presets_are_listed_with_their_sources(surefoot_program: Program) -> None:
    out = surefoot_program("inspect", "--presets").out
    for preset in PRESETS:
        assert f"{preset.target} with {preset.draft_model} (unverified" in out
        assert all(f"  from {source}" in out for source in preset.sources)
    assert len(json.loads(surefoot_program("inspect", "--presets", "--json").out)["presets"]) == len(PRESETS)


def test_a_directory_called_like_a_presets_target_gets_the_hint(
    surefoot_program: Program, model: str, tmp_path: Path
) -> None:
    link = tmp_path / "Qwen3-8B"
    link.symlink_to(model)
    assert "Qwen/Qwen3-8B with Qwen/Qwen3-0.6B (unverified" in surefoot_program("inspect", str(link)).out
    told = surefoot_program("doctor", str(link), "--files-only").out
    assert "a public draft model for it, not verified here: Qwen/Qwen3-0.6B" in told
    assert "public draft model" not in surefoot_program("doctor", model, "--files-only").out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "found nothing to describe"),
        (("pebble", "--presets"), "found pebble and --presets"),
        (("--presets", "--config", "mine.toml"), "--config mine.toml came with --presets; expected"),
        (("pebble", "--config", "absent.toml"), "--config names absent.toml, which does not exist"),
        (("nowhere",), "found 'nowhere'"),
        (("",), "found '', which is no name"),
        (("/",), "found no config.json and no weights; expected a model or a drafter"),
        (("some-org/not-downloaded",), "inspect downloads nothing"),
    ],
)
def test_wrong_usage_exits_with_2(surefoot_program: Program, flags: tuple[str, ...], message: str) -> None:
    ran = surefoot_program("inspect", *flags)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
