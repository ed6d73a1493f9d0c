"""The program as a whole: help, hints, interruption, and running as its own process."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from tests.cli.conftest import Program
from tests.test_architecture import FLAGS

import surefoot
from surefoot.cli import READER_GONE, build_app, main, run
from surefoot.cli.hints import FOREIGN_FLAGS, UNMATCHED_FLAGS, foreign_flags
from surefoot.cli.pair import Pair


def test_the_version_is_the_packages(surefoot_program: Program) -> None:
    ran = surefoot_program("--version")
    assert (ran.code, ran.out) == (0, surefoot.__version__ + "\n")


def test_unknown_commands_and_flags_exit_with_2(surefoot_program: Program) -> None:
    assert surefoot_program().code == 2
    assert surefoot_program("speculate").code == 2
    assert surefoot_program("generate", "x", "--tpo-p", "1").code == 2
    assert surefoot_program("generate").code == 2


@pytest.mark.parametrize("flag", FOREIGN_FLAGS)
def test_flags_of_other_engines_are_answered_with_ours(surefoot_program: Program, flag: str) -> None:
    ran = surefoot_program("generate", "pebble", flag, "5")
    assert (ran.code, ran.out) == (2, "")
    assert f"found {flag}, " in ran.err
    assert FOREIGN_FLAGS[flag] in ran.err


@pytest.mark.parametrize("flag", UNMATCHED_FLAGS)
def test_flags_that_nothing_here_means_are_answered_with_the_reason(surefoot_program: Program, flag: str) -> None:
    ran = surefoot_program("generate", "pebble", flag, "5")
    assert (ran.code, ran.out) == (2, "")
    assert f"found {flag}, a flag of another engine; leave it out: {UNMATCHED_FLAGS[flag]}" in ran.err
    assert flag not in FOREIGN_FLAGS


def test_hints_read_values_and_stop_at_a_double_dash() -> None:
    assert len(foreign_flags(["generate", "m", "--speculative-model=d", "-md", "d"])) == 2
    assert foreign_flags(["generate", "m", "--draft-model", "d", "--", "-md"]) == []
    assert len(foreign_flags(["generate", "m", "--spec_decode_algo", "x"])) == 1, "underscores are dashes elsewhere"
    assert foreign_flags(["generate", "m", "--prompt", "--draft", "--stop", "-md"]) == [], "texts, not flags"


def test_a_hint_is_no_flag_of_ours() -> None:
    ours = {flag for flags in FLAGS.values() for flag in flags}
    assert not ours & {*FOREIGN_FLAGS, *UNMATCHED_FLAGS}


def test_hints_name_flags_that_exist() -> None:
    parameters = typer.main.get_command(build_app("generate")).commands["generate"].params
    known = {name for parameter in parameters for name in parameter.opts}
    for ours in FOREIGN_FLAGS.values():
        for word in ours.replace(",", "").split():
            assert not word.startswith("--") or word in known


class Output(io.TextIOWrapper):
    """Standard output of another encoding, or on a full disk."""

    def __init__(self, encoding: str = "utf-8", fault: OSError | None = None) -> None:
        super().__init__(io.BytesIO(), encoding=encoding, write_through=True)
        self.fault = fault

    def write(self, text: str) -> int:
        if self.fault is not None:
            raise self.fault
        return super().write(text)


@pytest.mark.parametrize(("encoding", "named"), [("ascii", "u65e5"), ("utf-8", "udcff")])
def test_text_that_the_output_cannot_hold_is_told(
    tmp_path: Path, encoding: str, named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "\\u65e5\\udcff"}')
    monkeypatch.setattr(sys, "stdout", Output(encoding))
    assert run(["inspect", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert named in err
    assert f"cannot be written as {encoding}; expected valid Unicode and an output in UTF-8" in err


def test_a_full_disk_is_told_and_other_faults_are_not_hidden(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", Output(fault=OSError(errno.ENOSPC, "No space left on device")))
    assert run(["inspect", "--presets"]) == 2
    assert "the output cannot be written ([Errno 28] No space left on device); expected" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdout", Output(fault=OSError(errno.EBADF, "Bad file descriptor")))
    with pytest.raises(OSError, match="Bad file descriptor"):
        run(["inspect", "--presets"])


def test_closed_standard_output_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit, match="2"):
        main(["inspect", "pebble"])
    assert "found standard output closed; expected" in capsys.readouterr().err


def test_closed_standard_input_is_empty(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command, code, message in (("generate", "2", "the prompt has no tokens"), ("chat", "0", "note: ")):
        monkeypatch.setattr(sys, "stdin", None)
        with pytest.raises(SystemExit, match=code):
            main([command, model, *(["--raw"] if command == "chat" else [])])
        assert message in capsys.readouterr().err
        sys.stdin.close()


def test_ctrl_c_during_an_import_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Ended(BaseException):
        pass

    def end(code: int) -> None:
        raise Ended(code)

    def import_module(name: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        monkeypatch.setattr(os, "_exit", end)
        monkeypatch.setattr("importlib.import_module", import_module)
        with pytest.raises(Ended, match="130"):
            run(["inspect", "pebble"])
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "interrupted\n"


def test_standard_input_that_is_no_text_is_told(surefoot_program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"def \xff"), encoding="utf-8"))
    ran = surefoot_program("generate", "pebble")
    assert (ran.code, ran.out) == (2, "")
    assert "standard input: " in ran.err
    assert "expected UTF-8 text" in ran.err


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


def test_empty_stdin_is_an_empty_prompt(surefoot_program: Program, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    ran = surefoot_program("generate", model)
    assert (ran.code, ran.out) == (2, "")
    assert "the prompt has no tokens" in ran.err


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
    assert process.wait(timeout=60) == READER_GONE
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.parametrize("arguments", [("--help",), ("config", "show")])
def test_a_reader_that_never_came_causes_no_traceback(arguments: tuple[str, ...]) -> None:
    process = start(AS_MODULE, *arguments)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=60) == READER_GONE
    assert process.stderr.read() == ""
    process.stderr.close()


def test_settings_are_read_without_waiting_for_torch() -> None:
    code = "import sys; from surefoot.cli import run; run(['config', 'show']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "False"
