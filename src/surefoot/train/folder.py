"""A run's folder: it belongs to one run of one process, and says what that run is made of.

The drafter lies in it in its public layout; ``run.json`` is the record, ``training/`` is what the run needs to go on.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from surefoot.errors import OptionError, TrainingError
from surefoot.loading.dflash import RECORD
from surefoot.train.checkpoint import aside_of, write_json

TRAINING, LOCK = "training", ".lock"
STATE, ANSWERS = "state.safetensors", "answers.jsonl"


class RunFolder:
    """The record, and where the rest lies; made by :func:`opened`."""

    def __init__(self, path: Path, identity: Mapping[str, object]) -> None:
        self.path = path
        self.state, self.answers = path / TRAINING / STATE, path / TRAINING / ANSWERS
        self.record = _read_record(path / RECORD) if (path / RECORD).exists() else {}
        options = self.record.get("options")
        if isinstance(options, dict) and options.keys() == identity.keys() and not self._has_begun():
            self.record = {}  # nothing was computed with what it says
        if self.record:
            self._check("options", identity)
        self.update(options=dict(identity))  # before anything else is in it, so that it is a run's whenever this ends
        _make(path / TRAINING)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.record.get("state") == "finished"

    def update(self, **fields: object) -> None:
        """Adds to the record and writes it."""
        self.record |= fields
        write_json(self.path / RECORD, self.record)

    def hold(self, name: str, found: Mapping[str, object]) -> None:
        """Records a part of what the run is made of; on a later start it must be the same."""
        if name in self.record:
            self._check(name, found)
        else:
            self.update(**{name: dict(found)})

    def note_machine(self, provenance: Mapping[str, object], kernels: str) -> str | None:
        """Records what the last bits of numbers depend on; a warning where an earlier start had something else."""
        found, known = machine_of(provenance) | {"kernels": kernels}, self.record.get("machines")
        machines = [machine for machine in known if isinstance(machine, dict)] if isinstance(known, list) else []
        before = self.record.get("provenance")
        if not machines and isinstance(before, dict):  # begun by a version that kept no list
            machines.append(machine_of(before))
        self.update(machines=machines if found in machines else [*machines, found])
        for earlier in machines:  # those before this start
            for name, value in found.items():
                if name in earlier and earlier[name] != value:
                    return (
                        f"{self.path} was computed with {name} {earlier[name]!r} before, and now {name} is "
                        f"{value!r}: the drafter may differ in the last bits from one that was made in one piece"
                    )
        return None

    def _has_begun(self) -> bool:
        """Whether anything was computed that another command would spoil."""
        return "step" in self.record or self.state.exists() or self.answers.exists()

    def _check(self, name: str, found: Mapping[str, object]) -> None:
        recorded = self.record.get(name)
        recorded = recorded if isinstance(recorded, dict) else {}
        differing = [key for key in {**recorded, **found} if recorded.get(key) != found.get(key)]
        if differing:
            key = differing[0]
            raise OptionError(
                f"{self.path} holds a run with {key} {recorded.get(key)!r}, and now {key} is {found.get(key)!r}; "
                "expected the same to go on with it. Give the options it was begun with, or another --out"
            )


def machine_of(provenance: Mapping[str, object]) -> dict[str, object]:
    """Of the circumstances of a run those that decide the order in which its numbers are added up."""
    packages = provenance.get("packages")
    found = {"torch": packages.get("torch") if isinstance(packages, dict) else None}
    if provenance.get("device") == "cpu":
        found |= {"threads": provenance.get("num_threads"), "processor": provenance.get("processor")}
    return found


@contextmanager
def opened(path: Path, identity: Mapping[str, object]) -> Iterator[RunFolder]:
    """The folder of a run, made if need be; until it is left no other process can open it.

    Raises:
        OptionError: something else is in it, or a run of other options.
        TrainingError: another process trains in it, or it cannot be written.
    """
    if path.exists() and not path.is_dir():
        raise OptionError(f"found a file at {path}; expected a new folder, or a run's. Give another --out")
    if path.exists() and not (path / RECORD).exists():
        others = {file.name for file in path.iterdir()} - {aside_of(path / RECORD).name, LOCK}
        if others:
            raise OptionError(
                f"found {min(others)} in {path} and no {RECORD}; expected a new folder, or a run's. Give another --out"
            )
    _make(path)
    with _locked(path):
        yield RunFolder(path, identity)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keeps other processes out; the kernel lets go of the lock however this process ends."""
    try:
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as fault:
        raise TrainingError(f"{path / LOCK} cannot be made ({fault}); expected a folder to write in") from fault
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as fault:
            owner = os.read(descriptor, 32).decode(errors="replace").strip()
            raise TrainingError(
                f"found process {owner or 'unknown'} training in {path}; expected one process for a folder. Wait for "
                "it, end it, or give another --out"
            ) from fault
        except OSError as fault:
            raise TrainingError(
                f"{path / LOCK} cannot be locked ({fault}); expected a file system with locks. Give another --out"
            ) from fault
        _sign(descriptor)
        yield
    finally:
        os.close(descriptor)


def _sign(descriptor: int) -> None:
    """Leaves the number of this process for whoever asks; a full disk does not matter to it."""
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    except OSError:
        return


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise TrainingError(f"{path} cannot be made ({fault}); expected a place for a new folder") from fault


def _read_record(path: Path) -> dict[str, object]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"{path} cannot be read ({error}); expected a run's record. Give another --out") from error
    if not isinstance(record, dict):
        raise OptionError(f"{path} holds a {type(record).__name__}; expected a run's record. Give another --out")
    return record
