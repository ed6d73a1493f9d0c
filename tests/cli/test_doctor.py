"""``surefoot doctor``: what it prints, its exit codes, and the settings file among its checks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Program


def checks(out: str) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in json.loads(out)["checks"]}


@pytest.fixture
def settings(tmp_path: Path, model: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(f'[[models]]\nname = "mine"\npath = "{model}"\ndraft_model = "{model}"\nnum_draft = 2\n')
    return path


def test_a_whole_examination_prints_its_prediction_with_the_parts(surefoot_program: Program, model: str) -> None:
    ran = surefoot_program("doctor", model, "--draft-model", model, "--num-draft", "2", "--json")
    got = json.loads(ran.out)
    assert (ran.code, ran.err) == (0, "")
    assert got["conclusion"] in ("PASS", "WARN")
    assert "SKIP" not in {check["level"] for check in got["checks"]}
    speedup = got["speedup"]
    assert [point["rows"] for point in speedup["costs"]["target"]["points"]] == [1, 2, 3]
    forecast = speedup["forecast"]
    per_round = forecast["draft"] + forecast["score"] + forecast["overhead"]
    rounds = forecast["num_tokens"] / speedup["tokens_per_round"]
    plain = forecast["num_tokens"] * (forecast["plain_score"] + forecast["plain_overhead"])
    assert speedup["speedup"] == pytest.approx(plain / (forecast["reading"] + rounds * per_round))
    assert len(speedup["acceptance_by_position"]) == 2


def test_files_only_loads_nothing(surefoot_program: Program, model: str) -> None:
    ran = surefoot_program("doctor", model, "--files-only", "--json")
    assert ran.code == 0
    assert [name for name, check in checks(ran.out).items() if check["level"] == "SKIP"] == [
        *["weights", "kernels", "equality", "speedup"]
    ]


def test_without_a_terminal_each_check_is_a_line(surefoot_program: Program, model: str) -> None:
    ran = surefoot_program("doctor", model, "--files-only", "--num-draft", "0")
    lines = ran.out.splitlines()
    assert lines[0].startswith("PASS  settings file: none at ")
    assert "WARN  settings: speculation is switched off: num_draft is 0" in lines
    assert lines[-1].startswith("WARN: ")
    assert "\x1b" not in ran.out


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (("--draft-model", "nowhere"), "draft model files"),
        (("--draft-model", "{other}"), "tokenizers"),
        (("--device", "nonsense"), "device"),
    ],
)
def test_a_failure_exits_with_1_and_says_what_to_do(
    surefoot_program: Program, model: str, other_tokenizer: str, flags: tuple[str, ...], name: str
) -> None:
    given = [flag.format(other=other_tokenizer) for flag in flags]
    ran = surefoot_program("doctor", model, *given, "--files-only", "--json")
    assert ran.code == 1
    check = checks(ran.out)[name]
    assert check["level"] == "FAIL"
    assert check["mend"]
    assert "      to do: " in surefoot_program("doctor", model, *given, "--files-only").out


def test_a_target_that_is_not_there_is_a_failure_and_no_crash(surefoot_program: Program) -> None:
    ran = surefoot_program("doctor", "nowhere", "--json")
    assert ran.code == 1
    assert checks(ran.out)["target files"]["level"] == "FAIL"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--context", "0"), "--context is 0; expected"),
        (("--num-draft", "-1"), "num_draft is -1; expected"),
        (("--method", "draft"), "--draft-model"),
        (("--profile", "nothing"), "--profile is 'nothing'"),
    ],
)
def test_wrong_usage_exits_with_2(surefoot_program: Program, model: str, flags: tuple[str, ...], message: str) -> None:
    ran = surefoot_program("doctor", model, "--files-only", *flags)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


def test_context_and_dtype_change_the_memory_that_is_needed(surefoot_program: Program, model: str) -> None:
    found = {
        checks(surefoot_program("doctor", model, "--files-only", "--json", *flags).out)["memory"]["found"]
        for flags in ((), ("--context", "100"), ("--dtype", "float64"))
    }
    assert len(found) == 3


def test_the_settings_file_is_the_first_check(surefoot_program: Program, settings: Path) -> None:
    ran = surefoot_program("doctor", "mine", "--config", str(settings), "--files-only", "--json")
    assert ran.code == 0
    found = checks(ran.out)
    assert next(iter(found)) == "settings file"
    assert found["settings file"]["level"] == "PASS"
    assert f"mine is at {settings}:1" in found["settings file"]["found"]
    assert f"draft_model is from {settings}:4" in found["settings file"]["details"]
    assert found["settings"]["found"].endswith("2 a round")


def test_an_entry_without_a_drafter_warns(surefoot_program: Program, settings: Path, model: str) -> None:
    settings.write_text(f'[[models]]\nname = "mine"\npath = "{model}"\n')
    found = checks(surefoot_program("doctor", "mine", "--config", str(settings), "--files-only", "--json").out)
    assert found["settings file"]["level"] == "WARN"
    typed = ("--method", "lookup")
    found = checks(surefoot_program("doctor", "mine", "--config", str(settings), "--files-only", "--json", *typed).out)
    assert found["settings file"]["level"] == "PASS", "a drafter on the command line is one"


@pytest.mark.parametrize("text", ["[[models]]\nnam = 1\n", "no toml", None])
def test_a_settings_file_that_does_not_read_fails_and_the_rest_goes_on(
    surefoot_program: Program, settings: Path, model: str, text: str | None
) -> None:
    settings.unlink() if text is None else settings.write_text(text)
    ran = surefoot_program("doctor", model, "--config", str(settings), "--files-only", "--json")
    assert ran.code == 1
    found = checks(ran.out)
    assert found["settings file"]["level"] == "FAIL"
    assert found["settings file"]["mend"]
    assert found["target files"]["level"] == "PASS"


@pytest.mark.parametrize("command", ["doctor", "inspect"])
@pytest.mark.parametrize("no_color", [False, True])
def test_on_a_terminal_there_is_a_table_and_colours_unless_refused(
    surefoot_program: Program, model: str, monkeypatch: pytest.MonkeyPatch, command: str, no_color: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    flags = ("--files-only",) if command == "doctor" else ()
    out = surefoot_program(command, model, *flags).out
    assert "│" in out
    assert ("\x1b[32m" in out) is not no_color
    assert "qwen3" in out


@pytest.mark.parametrize("terminal", [True, False])
def test_the_running_check_is_shown_in_terminals_only(
    surefoot_program: Program, model: str, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    assert (surefoot_program("doctor", model, "--files-only").err != "") is terminal
