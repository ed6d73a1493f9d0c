"""The harness calls a mutant killed only where a test's own body failed on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.mutants.catalogue import MUTANTS
from tests.mutants.killing import PACKAGE, ROOT, Failure, Outcome
from tests.mutants.mutant import Mutant, StaleMutantError

TESTS = """
import pytest
import surefoot.errors

@pytest.fixture
def broken():
    assert issubclass(surefoot.errors.LoadError, surefoot.errors.SurefootError)

def test_tree(): assert issubclass(surefoot.errors.LoadError, surefoot.errors.SurefootError)
def test_by_fixture(broken): pass
def test_skipped(): pytest.skip("here")
def test_slow(): pytest.fail("Timeout (>1.0s) from pytest-timeout.")
"""
SCRIPT = """
import sys
from pathlib import Path
from tests.mutants.killing import PACKAGE, Run, copy_package
from tests.mutants.mutant import Mutant
scratch, tests = Path(sys.argv[1]), sys.argv[2]
line = "class LoadError(SurefootError):"
planted = {
    "sound": line,
    "defect": "class LoadError(Exception):",
    "nothing": line + "  # the same",
    "no Python": "class LoadError(SurefootError:",
}
def run(after, *names):
    directory = scratch / f"{after} {names[0]}"
    package = copy_package(PACKAGE, directory)
    if after != "sound":
        Mutant(name="", bug="", file="errors.py", before=line, after=planted[after], killer="").plant_in(package)
    return Run(directory, [f"{tests}::{name}" for name in names], stop_early=True).outcome()
for after, names in (
    ("sound", ["test_tree", "test_by_fixture"]),
    ("defect", ["test_tree"]),
    ("nothing", ["test_tree"]),
    ("no Python", ["test_tree"]),
    ("defect", ["test_by_fixture"]),
    ("defect", ["test_skipped"]),
    ("defect", ["test_slow"]),
    ("defect", ["test_nowhere"]),
):
    print(after, *names, run(after, *names).verdict)
"""


def test_only_a_failing_test_body_is_a_kill(tmp_path: Path) -> None:
    tests = tmp_path / "test_toy.py"
    tests.write_text(TESTS)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(tests)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == [
        "sound test_tree test_by_fixture survived",
        "defect test_tree killed",
        "nothing test_tree survived",
        "no Python test_tree error",
        "defect test_by_fixture error",
        "defect test_skipped error",
        "defect test_slow error",
        "defect test_nowhere error",
    ]


def test_a_failure_beside_a_fault_is_no_kill() -> None:
    failed = [Failure(test="a", reason="b")]
    assert Outcome(failed=failed).verdict == "killed"
    assert Outcome(failed=failed, faults=["c"]).verdict == "error"
    assert Outcome(passed=["d"]).verdict == "survived"


def mutant(before: str, after: str, file: str = "errors.py") -> Mutant:
    return Mutant(name="here", bug="", file=file, before=before, after=after, killer="")


@pytest.mark.parametrize(
    ("before", "after"),
    [("three", "3"), ("one", "1"), ("two\none", "2\n1"), ("two\n", ""), ("two", "two"), ("two", "2\n3")],
    ids=["absent", "twice", "two lines", "a line less", "nothing", "a line more"],
)
def test_a_mutant_changes_one_line_that_is_there_once(before: str, after: str) -> None:
    with pytest.raises(StaleMutantError, match="here"):
        mutant(before, after).plant("one\ntwo\none\n")
    assert mutant("two\none", "2\none").plant("one\ntwo\none\n") == "one\n2\none\n"


def test_a_file_that_is_gone_makes_a_mutant_stale(tmp_path: Path) -> None:
    with pytest.raises(StaleMutantError, match=r"no\.py"):
        mutant("a", "b", "no.py").plant_in(tmp_path)
    assert (PACKAGE / "errors.py").is_file()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_still_finds_its_line(mutant: Mutant) -> None:
    assert mutant.plant((PACKAGE / mutant.file).read_text("utf-8"))
