"""Runs chosen tests against a copy of the package, in a process forked after the slow imports."""

from __future__ import annotations

import compileall
import multiprocessing
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import perf_counter
from typing import Literal

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "surefoot"
LIMIT_SECONDS = 240
"""A run longer than this is stopped. That is a fault of the mutant, not a kill: it would depend on the machine."""

OPTIONS = [
    *("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)),
    *("-p", "pytest_timeout", "--timeout=120"),
    *("--assert=plain", "--tb=short"),  # rewriting the assertions of every test module takes longer than the tests
]
_WEIGHTS = "pebble"
Verdict = Literal["killed", "survived", "error"]
_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failed test and the first line of why."""

    test: str
    reason: str


@dataclass(slots=True)
class Outcome:
    """What a run of tests said.

    ``faults`` are all that is neither a passed nor a failed test body: a module that cannot be imported, a fixture, a
    time limit, an unknown name. A mutant with faults has not been killed.
    """

    passed: list[str] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """What became of a mutant whose killer said this."""
        if self.faults:
            return "error"
        return "killed" if self.failed else "survived"


class _Recorder:
    """A pytest plugin that writes an outcome."""

    def __init__(self) -> None:
        self.outcome = Outcome()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.outcome.faults.append(f"cannot collect {report.nodeid}: {_reason(report)}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.passed:
            if report.when == "call":
                self.outcome.passed.append(report.nodeid)
        elif report.skipped:
            self.outcome.faults.append(f"skipped {report.nodeid}")
        elif report.when == "call" and not _reason(report).startswith("Failed: Timeout"):
            self.outcome.failed.append(Failure(test=report.nodeid, reason=_reason(report)))
        else:
            self.outcome.faults.append(f"{report.when} of {report.nodeid}: {_reason(report)}")


def _reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(report.longrepr) if crash is None else crash.message
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[0 if crash is not None else -1][:160] if lines else "no reason given"


def copy_package(source: Path, directory: Path) -> Path:
    """A copy of the package under ``directory``, compiled files included; weights are linked to."""
    package = directory / "surefoot"
    shutil.copytree(source, package, ignore=lambda parent, names: {_WEIGHTS} if Path(parent) == source else set())
    weights = PACKAGE / _WEIGHTS
    if weights.is_dir():
        (package / _WEIGHTS).symlink_to(weights, target_is_directory=True)
    return package


def compile_package(package: Path) -> None:
    """Compiles a copy of the package, for the copies made of it."""
    compileall.compile_dir(package, quiet=2)


class Run:
    """Tests running against one tree, in a process of their own."""

    def __init__(self, directory: Path, tests: Sequence[str], *, stop_early: bool) -> None:
        assert "surefoot" not in sys.modules, "the parent must not import the package, or children would inherit it"
        self.log = directory / "log"
        self._receive, send = _FORK.Pipe(duplex=False)
        self._started = perf_counter()
        self.process: BaseProcess = _FORK.Process(target=_run, args=(directory, self.log, tests, stop_early, send))
        self.process.start()
        send.close()

    def stop_if_late(self) -> None:
        """Ends a run past its limit."""
        if perf_counter() - self._started > LIMIT_SECONDS:
            self.process.kill()

    def outcome(self) -> Outcome:
        """What it said; waits for its end."""
        try:
            outcome: Outcome = self._receive.recv()
        except EOFError:
            outcome = Outcome(faults=[f"the run ended without a word or took over {LIMIT_SECONDS} s"])
        self.process.join()
        outcome.seconds = perf_counter() - self._started
        return outcome


def _run(directory: Path, log: Path, tests: Sequence[str], stop_early: bool, send: Connection) -> None:
    """The child: pytest on ``tests`` with ``directory`` first on the path."""
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(ROOT)
    sys.path.insert(0, str(directory))
    os.environ["PYTHONPATH"] = str(directory)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(directory / "hypothesis")
    _calm_hypothesis()
    recorder = _Recorder()
    code = pytest.main([*OPTIONS, *(["-x"] if stop_early else []), *tests], plugins=[recorder])
    outcome = recorder.outcome
    package = sys.modules.get("surefoot")
    if package is None or not str(package.__file__).startswith(str(directory)):
        outcome.faults.append(f"the tests imported {package}; expected the copy in {directory}")
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        outcome.faults.append(f"pytest ended with code {int(code)}; expected 0 or 1")
    send.send(outcome)


def _calm_hypothesis() -> None:
    """The same examples every time, none remembered, and none made smaller: a failure is all that is wanted."""
    import hypothesis

    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutants", phases=phases, derandomize=True, database=None)
    hypothesis.settings.load_profile("mutants")
