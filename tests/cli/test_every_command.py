"""What holds for every command: help, JSON, wrong flags, a missing model, and the list of commands itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import typer
from tests.cli.conftest import Program
from tests.test_architecture import FLAGS, every_command
from typer.testing import CliRunner

from surefoot.cli import COMMANDS, EXIT_CODES, build_app
from surefoot.cli.show import colors_wanted, progress_bar

RUNNABLE = sorted(every_command() - {"config", "train"})
ABOUT_A_MODEL = sorted(set(COMMANDS) - {"init", "config", "train"})


@pytest.mark.parametrize("command", ["", *sorted(every_command())])
def test_help_exits_with_0_and_names_every_flag(command: str) -> None:
    words = command.split()
    done = CliRunner(env={"COLUMNS": "400", "TERM": "dumb"}).invoke(
        build_app(words[0] if words else None), [*words, "--help"], terminal_width=400
    )
    assert done.exit_code == 0
    for flag in FLAGS[command]:
        assert flag in done.output
    if not command:
        assert all(name in done.output for name in COMMANDS)
        assert " ".join(EXIT_CODES.split()) in " ".join(done.output.split())


@pytest.mark.parametrize("command", ["", "generate", "config", "config set"])
def test_a_short_flag_asks_for_help_too(surefoot_program: Program, command: str) -> None:
    ran = surefoot_program(*command.split(), "-h")
    assert (ran.code, ran.err) == (0, "")
    assert f"surefoot {command}".strip() in ran.out
    assert "[[" not in ran.out


@pytest.mark.parametrize("command", sorted(set(ABOUT_A_MODEL) - {"inspect"}))
def test_an_empty_draft_model_is_not_lookup(surefoot_program: Program, model: str, command: str) -> None:
    prompt = ("--prompt", "x") if "--prompt" in FLAGS[command] else ()
    ran = surefoot_program(command, model, "--draft-model", "", *prompt)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "error: --draft-model is empty; expected a name; without one, leave it out\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_line_about_a_command_begins_like_its_own_help(command: str) -> None:
    chosen = typer.main.get_command(build_app(command)).commands[command]
    assert (chosen.help or "").split()[:2] == COMMANDS[command].split()[:2]


@pytest.mark.parametrize("command", RUNNABLE)
def test_every_command_has_json(command: str) -> None:
    assert "--json" in FLAGS[command]


@pytest.mark.parametrize("command", sorted(every_command()))
def test_an_unknown_flag_exits_with_2(surefoot_program: Program, command: str) -> None:
    ran = surefoot_program(*command.split(), "--no-such-flag")
    assert (ran.code, ran.out) == (2, "")
    assert "--no-such-flag" in ran.err


@pytest.mark.parametrize("command", ABOUT_A_MODEL)
def test_a_model_that_is_not_there_is_told_in_one_line(
    surefoot_program: Program, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = ("--prompt", "x") if "--prompt" in FLAGS[command] else ()
    ran = surefoot_program(command, "no-such-model", *prompt)
    assert "Traceback" not in ran.err
    if command == "doctor":  # what is wrong is what it is asked for: a FAIL, with its mend
        assert (ran.code, ran.err) == (1, "")
        assert "no-such-model" in ran.out
        return
    assert (ran.code, ran.out) == (2, "")
    (line,) = ran.err.splitlines()
    assert line.startswith("error: found 'no-such-model'")
    assert "expected" in line


@pytest.mark.parametrize("command", ABOUT_A_MODEL)
def test_ctrl_c_exits_with_130(surefoot_program: Program, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("surefoot.loading.resolve.resolve", interrupted)
    for module in [name for name in sys.modules if name.startswith("surefoot.")]:
        if hasattr(sys.modules[module], "resolve"):
            monkeypatch.setattr(f"{module}.resolve", interrupted)
    prompt = ("--prompt", "x") if "--prompt" in FLAGS[command] else ()
    ran = surefoot_program(command, "pebble", *prompt)
    assert ran.code == 130
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    "arguments", [("config", "path"), ("config", "show"), ("inspect", "MODEL"), ("inspect", "--presets")]
)
def test_json_is_one_object_and_nothing_else(surefoot_program: Program, model: str, arguments: tuple[str, ...]) -> None:
    ran = surefoot_program(*(model if word == "MODEL" else word for word in arguments), "--json")
    assert ran.code == 0
    assert ran.out.count("\n") == 1
    json.loads(ran.out)


class Screen:
    """A stream that is, or is not, a terminal."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(
    ("terminal", "variables", "wanted"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (True, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (False, {"FORCE_COLOR": ""}, False),
    ],
)
def test_who_wants_colours(
    terminal: bool, variables: dict[str, str], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert colors_wanted(Screen(terminal)) is wanted  # type: ignore[arg-type]  # all that is asked of it


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_drawn_in_terminals_only(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar() as progress:
        bar = progress.add_task("proving", total=2)
        progress.advance(bar)
        progress.print("a case")
    out, err = capsys.readouterr()
    assert out == ""
    assert "a case" in err
    assert ("proving" in err) is terminal


def test_the_names_of_commands_are_their_modules() -> None:
    folder = Path(sys.modules["surefoot.cli"].__file__ or "").parent
    assert all((folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists() for name in COMMANDS)
