"""The README's commands and code run as they stand, from a checkout, with the bundled models."""

from __future__ import annotations

import io
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from surefoot.cli import COMMANDS, run
from surefoot.cli.settings_text import TEMPLATE, write

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMAND_LINES = [
    line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines() if line.strip()
]
SUREFOOT_LINES = [line for line in COMMAND_LINES if line.startswith("surefoot ")]

RUN_ELSEWHERE = {"make demo": "tests/test_demo.py", "make test": "this very suite"}
"""Commands of the README that other tests stand for."""

PUBLIC = re.compile(r"\b[A-Z]\w+/[\w.\-]+")
"""A model that would have to be fetched."""

EDIT = '''def area(width, height):
    """Returns the area of a rectangle."""
    return width * height


def perimeter(width, height):
    """Returns the perimeter of a rectangle."""
    return 2 * (width + height)
'''


def words(line: str) -> list[str]:
    return shlex.split(line, comments=True)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with the files the README speaks of, and settings of its own."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "edit.py").write_text(EDIT, encoding="utf-8")
    patch = pytest.MonkeyPatch()
    patch.chdir(folder)
    patch.setenv("XDG_CONFIG_HOME", str(folder / "settings"))
    patch.setenv("HF_HUB_OFFLINE", "1")
    yield folder
    patch.undo()


@pytest.mark.parametrize("line", [line for line in COMMAND_LINES if not line.startswith("surefoot ")])
def test_other_commands_are_run_by_other_tests(line: str) -> None:
    command = " ".join(words(line))
    assert command in RUN_ELSEWHERE
    assert re.search(rf"^{command.split()[1]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    stands_for = RUN_ELSEWHERE[command]
    assert not stands_for.endswith(".py") or (ROOT / stands_for).exists()


@pytest.mark.slow
@pytest.mark.parametrize("line", SUREFOOT_LINES)
def test_the_commands_run_as_they_stand(
    desk: Path, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines may run in any order: the settings file that one of them writes is there for the others."""
    arguments = words(line)[1:]
    settings = desk / "settings" / "surefoot" / "config.toml"
    if arguments[0] == "init":
        settings.unlink(missing_ok=True)
    elif not settings.exists():
        write(settings, TEMPLATE)
    monkeypatch.setattr(sys, "stdin", io.StringIO("def add(a, b):\n"))
    if PUBLIC.search(line):
        assert "# downloads" in line, "what fetches something says so"
        assert run(arguments) == 2
        assert "offline" in capsys.readouterr().err.lower()
        arguments = shlex.split(PUBLIC.sub("pebble", " ".join(map(shlex.quote, arguments))))
    code = run(arguments)
    out, err = capsys.readouterr()
    assert code == 0, err
    assert out
    if "--html" in arguments:
        assert (desk / arguments[arguments.index("--html") + 1]).stat().st_size > 0


def test_every_command_is_in_the_readme() -> None:
    table = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (.*?) \|", README, re.MULTILINE))))
    shown = {words(line)[1] for line in SUREFOOT_LINES}
    assert set(COMMANDS) <= table
    assert set(COMMANDS) <= shown


def test_the_code_runs_and_prints_an_answer(desk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    script = tmp_path / "readme.py"
    script.write_text(code, encoding="utf-8")
    runpy.run_path(str(script))
    assert len(capsys.readouterr().out) > 64


def test_a_command_that_fails_would_be_noticed(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words('surefoot generate pebble --no-such-flag --prompt "x"  # a comment')[1:]) == 2
    assert "--no-such-flag" in capsys.readouterr().err
    assert words("surefoot init  # writes") == ["surefoot", "init"]
