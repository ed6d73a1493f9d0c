"""The program as a whole: help, hints, interruption, and running as its own process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
import typer.main
from tests.cli.conftest import Program
from typer.testing import CliRunner

import surefoot
from surefoot.cli import COMMANDS, build_app
from surefoot.cli.hints import FOREIGN_FLAGS, foreign_flags
from surefoot.cli.pair import Pair


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_exits_with_0_and_names_what_there_is(command: str | None) -> None:
    done = CliRunner().invoke(build_app(command), [*([command] if command else []), "--help"], terminal_width=200)
    assert done.exit_code == 0
    for word in COMMANDS if command is None else ("--draft-model", "--num-draft", "--json"):
        assert word in done.output
    if command == "prove":
        assert "Exit codes" in done.output


def test_the_version_is_the_packages(surefoot_program: Program) -> None:
    ran = surefoot_program("--version")
    assert (ran.code, ran.out) == (0, surefoot.__version__ + "\n")


def test_unknown_commands_and_flags_exit_with_2(surefoot_program: Program) -> None:
    assert surefoot_program().code == 2
    assert surefoot_program("chat").code == 2
    assert surefoot_program("generate", "x", "--tpo-p", "1").code == 2
    assert surefoot_program("generate").code == 2


@pytest.mark.parametrize("flag", FOREIGN_FLAGS)
def test_flags_of_other_engines_are_answered_with_ours(surefoot_program: Program, flag: str) -> None:
    ran = surefoot_program("generate", "pebble", flag, "5")
    assert (ran.code, ran.out) == (2, "")
    assert f"found {flag}, " in ran.err
    assert FOREIGN_FLAGS[flag] in ran.err


def test_hints_read_values_and_stop_at_a_double_dash() -> None:
    assert len(foreign_flags(["generate", "m", "--speculative-model=d", "-md", "d"])) == 2
    assert foreign_flags(["generate", "m", "--draft-model", "d", "--", "-md"]) == []


def test_hints_name_flags_that_exist() -> None:
    parameters = typer.main.get_command(build_app("generate")).commands["generate"].params
    known = {name for parameter in parameters for name in parameter.opts}
    for ours in FOREIGN_FLAGS.values():
        for word in ours.replace(",", "").split():
            assert not word.startswith("--") or word in known


AS_MODULE = ("-m", "surefoot")
INTERRUPTIBLE = (  # a shell that runs tests in the background has SIGINT ignored, and children inherit that
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from surefoot.cli import main; main()",
)


def start(how: tuple[str, ...], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *how, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_its_own_process_prints_one_json_object(model: str) -> None:
    process = start(
        AS_MODULE, "generate", model, "--prompt", "for index", "--max-tokens", "4", "--json", "--dtype", "bfloat16"
    )
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert len(json.loads(out)["tokens"]) == 4
    assert err == ""


def test_empty_stdin_is_an_empty_prompt(model: str) -> None:
    process = start(AS_MODULE, "generate", model)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    assert "prompt" in err


def test_ctrl_c_exits_with_130_and_no_traceback(model: str) -> None:
    process = start(
        INTERRUPTIBLE,
        "generate",
        model,
        "--prompt",
        "for index",
        "--max-tokens",
        "480",
        "--ignore-eos",
        "--no-measure-plain",
    )
    assert process.stdout is not None
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert (first + out).endswith("\n")


def test_ctrl_c_while_loading_exits_with_130(surefoot_program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(pair: Pair, options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Pair, "load", interrupted)
    for command in (("generate", "pebble", "--prompt", "x"), ("prove", "pebble")):
        ran = surefoot_program(*command)
        assert ran.code == 130
        assert "Traceback" not in ran.err


def test_a_reader_that_leaves_early_causes_no_traceback(model: str) -> None:
    process = start(
        AS_MODULE,
        "generate",
        model,
        "--prompt",
        "for index",
        "--max-tokens",
        "300",
        "--ignore-eos",
        "--no-measure-plain",
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=60) != 0
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
