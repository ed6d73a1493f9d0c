"""A folder belongs to one run of one process: others are told so, and nothing that was computed is spoilt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.train.teaching import LENGTH, SHAPE, cycles

from surefoot.errors import OptionError, TrainingError
from surefoot.loading import load_target
from surefoot.loading.loaded import LoadedTarget
from surefoot.options import LoadOptions
from surefoot.train.folder import machine_of, opened
from surefoot.train.options import DataOptions, Pace, Schedule
from surefoot.train.run import Asked, train_dflash
from surefoot.train.watcher import Report, Watcher

TEXTS = DataOptions(length=LENGTH, held_out=2)
SCHEDULE = Schedule(steps=4, batch=2, precision="float32")
PACE = Pace(save_every=2, evaluate_every=2, check_prompts=0)
HOLDER = """
import json
import sys
from pathlib import Path
from surefoot.train.folder import opened
with opened(Path(sys.argv[1]), json.loads(sys.argv[2])):
    print("mine", flush=True)
    sys.stdin.read()
"""
"""Keeps a folder until its input ends, or it is killed."""


@dataclass
class Noting(Watcher):
    """Remembers what it was told, and stops after so many steps."""

    steps: int = 10**6
    seen: int = 0
    notes: list[str] = field(default_factory=list)

    def noticed(self, note: str) -> None:
        self.notes.append(note)

    def trained(self, report: Report) -> None:
        self.seen = report.step

    def stopping(self) -> bool:
        return self.seen >= self.steps


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    np.save(tmp_path / "ids.npy", cycles(8).ids)
    out = tmp_path / "out"
    return Asked(data=(tmp_path / "ids.npy",), out=out, texts=TEXTS, schedule=SCHEDULE, shape=SHAPE, pace=PACE)


def holder_of(path: Path, identity: Mapping[str, object]) -> subprocess.Popen[str]:
    """A process that has the folder of such a run."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), json.dumps(identity)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "mine\n"
    return process


def test_two_processes_do_not_train_in_one_folder_until_one_is_killed(target: LoadedTarget, asked: Asked) -> None:
    with holder_of(asked.out, asked.identity()) as process:
        before = (asked.out / "run.json").read_bytes()
        message = rf"found process {process.pid} training in {asked.out}; expected one process for a folder\. Wait"
        with pytest.raises(TrainingError, match=message):
            train_dflash(target, asked, Watcher())
        assert (asked.out / "run.json").read_bytes() == before
        process.kill()
        process.wait()
    assert train_dflash(target, asked, Watcher()).finished
    assert train_dflash(target, asked, Watcher()).finished  # what one start locked is free for the next


def test_a_failed_start_keeps_nobody_out(target: LoadedTarget, asked: Asked) -> None:
    train_dflash(target, asked, Noting(steps=1))
    with pytest.raises(OptionError, match="now batch is 3"):
        train_dflash(target, replace(asked, schedule=replace(SCHEDULE, batch=3)), Watcher())
    assert train_dflash(target, asked, Watcher()).finished


def test_a_lock_without_a_number_is_still_a_lock(tmp_path: Path) -> None:
    with opened(tmp_path, {}):
        os.truncate(tmp_path / ".lock", 0)
        with pytest.raises(TrainingError, match="found process unknown training"), opened(tmp_path, {}):
            pytest.fail("both have it")


def test_a_folder_that_cannot_be_locked_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    with pytest.raises(TrainingError, match="cannot be made"), opened(tmp_path, {}):
        pytest.fail("it was opened")


def test_until_something_was_computed_other_options_may_be_given(target: LoadedTarget, asked: Asked) -> None:
    """The advice of an error, such as to lower ``--held-out``, can be followed with the same ``--out``."""
    wrong = replace(asked, texts=replace(TEXTS, held_out=8))
    with pytest.raises(OptionError, match="lower --length or --held-out"):
        train_dflash(target, wrong, Watcher())
    folder = train_dflash(target, asked, Watcher())
    assert folder.finished
    assert json.loads((asked.out / "run.json").read_text())["options"]["held_out"] == 2


def test_a_record_of_something_else_is_left_alone(tmp_path: Path) -> None:
    for record in ({}, {"options": {"model": "x"}}, {"arms": []}):
        (tmp_path / "run.json").write_text(json.dumps(record))
        if record:
            with pytest.raises(OptionError, match="holds a run with"), opened(tmp_path, {"steps": 4}):
                pytest.fail("it was opened")
            assert json.loads((tmp_path / "run.json").read_text()) == record


def test_a_run_does_not_write_into_what_it_reads(target: LoadedTarget, asked: Asked, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="which is trained on; expected a folder elsewhere"):
        train_dflash(target, replace(asked, data=(tmp_path,), out=tmp_path / "below" / "out"), Watcher())
    assert not (tmp_path / "below").exists()


def test_numbers_of_another_width_do_not_go_on_with_a_run(target: LoadedTarget, asked: Asked) -> None:
    train_dflash(target, asked, Noting(steps=1))
    half = load_target(target.path, LoadOptions(dtype="bfloat16"))
    with pytest.raises(OptionError, match="dtype 'float32', and now dtype is 'bfloat16'"):
        train_dflash(half, asked, Watcher())


def test_neither_do_other_weights_to_begin_with(target: LoadedTarget, asked: Asked, tmp_path: Path) -> None:
    first = replace(asked, out=tmp_path / "first")
    train_dflash(target, first, Watcher())
    second = replace(asked, shape=replace(SHAPE, init=first.out))
    train_dflash(target, second, Noting(steps=1))
    other = replace(first, out=tmp_path / "other", schedule=replace(SCHEDULE, seed=1))
    train_dflash(target, other, Watcher())
    os.replace(other.out / "model.safetensors", first.out / "model.safetensors")
    with pytest.raises(OptionError, match="weights_sha256"):
        train_dflash(target, second, Watcher())


def test_another_thread_count_is_told_and_recorded(target: LoadedTarget, asked: Asked) -> None:
    first = Noting(steps=1)
    train_dflash(target, asked, first)
    again = Noting(steps=2)
    assert len(machines_of(train_dflash(target, asked, again).record)) == 1
    assert first.notes == again.notes == []
    torch.set_num_threads(2)
    try:
        other = Noting(steps=3)
        train_dflash(target, asked, other)
    finally:
        torch.set_num_threads(1)
    (note,) = other.notes
    assert "was computed with threads 1 before, and now threads is 2" in note
    back = Noting()
    folder = train_dflash(target, asked, back)
    assert back.notes == [note.replace("threads 1", "threads 2").replace("is 2", "is 1")]  # some steps were
    assert [machine["threads"] for machine in machines_of(folder.record)] == [1, 2]


def test_kernels_that_are_missing_are_told(target: LoadedTarget, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Noting(steps=1), Noting()
    monkeypatch.setattr("surefoot.train.run.available", lambda: Kernels())
    train_dflash(target, asked, first)
    monkeypatch.setattr("surefoot.train.run.available", lambda: None)
    train_dflash(target, asked, second)
    assert first.notes == []
    assert "was computed with kernels 'abacus' before, and now kernels is 'none'" in second.notes[0]


class Kernels:
    instructions = "abacus"


def test_a_run_of_a_version_without_these_records_goes_on(target: LoadedTarget, asked: Asked) -> None:
    """Its threads are known from what it says of its making."""
    whole = train_dflash(target, replace(asked, out=asked.out.with_name("whole")), Watcher())
    train_dflash(target, asked, Noting(steps=1))
    record = json.loads((asked.out / "run.json").read_text())
    del record["machines"], record["arithmetic"]
    record["provenance"]["num_threads"] = 7
    (asked.out / "run.json").write_text(json.dumps(record))
    (asked.out / ".lock").unlink()
    watcher = Noting()
    folder = train_dflash(target, asked, watcher)
    assert "threads 7 before, and now threads is 1" in watcher.notes[0]
    assert [machine["threads"] for machine in machines_of(folder.record)] == [7, 1]
    assert folder.record["losses"] == whole.record["losses"]


def test_a_drafter_that_is_gone_is_not_said_to_be_there(target: LoadedTarget, asked: Asked) -> None:
    train_dflash(target, asked, Watcher())
    before = (asked.out / "model.safetensors").read_bytes()
    (asked.out / "model.safetensors").unlink()
    assert train_dflash(target, asked, Watcher()).finished
    assert (asked.out / "model.safetensors").read_bytes() == before


def machines_of(record: Mapping[str, object]) -> list[dict[str, object]]:
    machines = record["machines"]
    assert isinstance(machines, list)
    return machines


def test_an_accelerators_numbers_do_not_depend_on_threads() -> None:
    made = {"num_threads": 4, "processor": "x", "packages": {"torch": "2"}}
    assert machine_of({**made, "device": "cpu"}) == {"torch": "2", "threads": 4, "processor": "x"}
    assert machine_of({**made, "device": "cuda"}) == {"torch": "2"}
