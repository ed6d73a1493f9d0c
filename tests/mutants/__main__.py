"""Plants one defect at a time and demands that its named test fails: ``python -m tests.mutants``.

First every killer is run on the sound source and must pass, so that a failure means the defect. A mutant whose line has
changed, whose module cannot be imported or whose test cannot be run is an error, not a kill.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when torch and numpy are imported

import argparse
import gc
import importlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from time import perf_counter

from tests.mutants.building import SOURCES, build_kernels
from tests.mutants.catalogue import MUTANTS
from tests.mutants.killing import PACKAGE, Outcome, Run, compile_package, copy_package
from tests.mutants.mutant import Mutant, StaleMutantError

SLOW_IMPORTS = (
    *("numpy", "torch", "safetensors.torch", "tokenizers", "jinja2", "typer", "rich.console"),
    *("hypothesis.stateful", "pytest_timeout", "transformers", "transformers.generation.logits_process"),
)
"""Imported once, before forking. Never the package itself."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the mutants asked for; 0 when all were killed."""
    options = _options(arguments)
    mutants = [mutant for mutant in MUTANTS if options.only is None or mutant.name in options.only]
    unknown = set(options.only or ()) - {mutant.name for mutant in mutants}
    if unknown:
        sys.exit(f"no mutant is called {', '.join(sorted(unknown))}; --list shows them")
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name:44} {mutant.file:26} {mutant.bug}")
        return 0
    for name in SLOW_IMPORTS:
        importlib.import_module(name)
    gc.freeze()  # children never collect what was imported here
    started = perf_counter()
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        sound = Path(scratch) / "sound"
        compile_package(copy_package(PACKAGE, sound))
        if not _killers_pass(sound, mutants):
            return 2
        counts = {"killed": 0, "survived": 0, "error": 0}
        for mutant, outcome in _in_parallel(sound, mutants, options.jobs):
            counts[outcome.verdict] += 1
            _show(mutant, outcome)
    print(
        f"{counts['killed']} killed, {counts['survived']} survived"
        + (f", {counts['error']} with errors" if counts["error"] else "")
        + f" ({perf_counter() - started:.0f} s)"
    )
    return 0 if counts["killed"] == len(mutants) else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAME", nargs="+", help="run these mutants alone")
    parser.add_argument("--list", action="store_true", help="show the mutants and the bugs they stand for")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="runs at a time (default: 2)")
    return parser.parse_args(arguments)


def _killers_pass(sound: Path, mutants: Sequence[Mutant]) -> bool:
    """Whether every killer passes on the sound source."""
    killers = sorted({mutant.killer for mutant in mutants})
    run = Run(sound, killers, stop_early=False)
    outcome = run.outcome()
    faults = [*outcome.faults, *(f"{failure.test}: {failure.reason}" for failure in outcome.failed)]
    faults += [f"{killer}: nothing passed" for killer in killers if not _cases(killer, outcome.passed)]
    if faults:
        print(run.log.read_text()[-4000:])
        print("on the sound source:", *faults[:20], sep="\n  ")
        return False
    print(
        f"{len(killers)} killers, {len(outcome.passed)} cases, pass on the sound source ({outcome.seconds:.0f} s)",
        flush=True,
    )
    return True


def _cases(killer: str, tests: Sequence[str]) -> list[str]:
    return [test for test in tests if test == killer or test.startswith(f"{killer}[")]


def _in_parallel(sound: Path, mutants: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, Outcome]]:
    """Each mutant with what its killer said, as they finish."""
    waiting = list(reversed(mutants))
    running: list[tuple[Mutant, Run]] = []
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop()
            directory = sound.parent / mutant.name
            try:
                package = copy_package(sound / "surefoot", directory)
                mutant.plant_in(package)
                if mutant.file.startswith(SOURCES):
                    build_kernels(package)
            except StaleMutantError as fault:
                yield mutant, Outcome(faults=[str(fault)])
                continue
            running.append((mutant, Run(directory, [mutant.killer], stop_early=True)))
        wait([run.process.sentinel for _, run in running], timeout=1)
        for pair in list(running):
            mutant, run = pair
            run.stop_if_late()
            if not run.process.is_alive():
                running.remove(pair)
                yield mutant, run.outcome()


def _show(mutant: Mutant, outcome: Outcome) -> None:
    if outcome.verdict == "killed":
        (failure, *_) = outcome.failed
        print(f"killed    {mutant.name:44} {outcome.seconds:5.1f} s  {failure.test}: {failure.reason}", flush=True)
    elif outcome.verdict == "survived":
        print(f"SURVIVED  {mutant.name:44} {outcome.seconds:5.1f} s  {mutant.killer} passes: {mutant.bug}", flush=True)
    else:
        print(f"ERROR     {mutant.name:44} {'; '.join(outcome.faults)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
