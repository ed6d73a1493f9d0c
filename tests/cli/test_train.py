"""``surefoot train dflash``: what its flags change, what it says, and what a killed run leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cli.conftest import Program, Ran
from tests.train.teaching import LENGTH, VOCABULARY, cycles, make_target

from surefoot.cli import run
from surefoot.train import trainer

DRAFTER = ("--layers", "1", "--block-size", "4", "--taps", "2", "--inner-size", "64", "--anchors", "4")
SHORT = (
    *("--steps", "2", "--batch", "2", "--length", str(LENGTH), "--held-out", "1", "--check-prompts", "0"),
    *("--precision", "float32"),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny target and data in two forms."""
    path = tmp_path_factory.mktemp("train")
    make_target(path / "target")
    np.save(path / "ids.npy", cycles(6).ids)
    (path / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": f"for index in {i}"}) for i in range(12)))
    return path


def train(program: Program, place: Path, out: Path, *flags: str, data: str = "ids.npy") -> Ran:
    arguments = ("--target", str(place / "target"), "--data", str(place / data), "--out", str(out))
    return program("train", "dflash", *arguments, *DRAFTER, *SHORT, *flags)


def record_of(out: Path) -> dict[str, object]:
    record: dict[str, object] = json.loads((out / "run.json").read_text())
    return record


def test_a_run_says_how_it_went_and_leaves_a_drafter(surefoot_program: Program, place: Path, tmp_path: Path) -> None:
    ran = train(surefoot_program, place, tmp_path / "out", "--check-prompts", "1", "--evaluate-every", "1")
    assert ran.code == 0
    steps, held_out, loop, where = ran.out.splitlines()
    assert steps.startswith("step 2 of 2, loss ")
    assert "accepted per block; by position" in held_out
    assert loop.endswith("predicted from the same text: agrees")
    assert where == f"{tmp_path / 'out'}: the drafter"
    assert "step 1 of 2  loss" in ran.err
    prompt = ("--prompt", "for index", "--max-tokens", "8", "--json", "--no-measure-plain")
    used = surefoot_program("generate", str(place / "target"), "--draft-model", str(tmp_path / "out"), *prompt)
    assert used.code == 0, used.err


def test_json_is_the_record_without_every_loss(surefoot_program: Program, place: Path, tmp_path: Path) -> None:
    ran = train(surefoot_program, place, tmp_path / "out", "--json")
    assert (ran.code, ran.err, ran.out.count("\n")) == (0, "", 1)
    said = json.loads(ran.out)
    assert said["state"] == "finished"
    assert "losses" not in said
    assert said["options"] == record_of(tmp_path / "out")["options"]


RECORDED = {
    "--steps": "3",
    "--batch": "1",
    "--at-once": "1",
    "--learning-rate": "0.01",
    "--warmup": "1.0",
    "--weight-decay": "0.1",
    "--clip": "0.5",
    "--seed": "7",
    "--precision": "bfloat16",
    "--layers": "2",
    "--heads": "2",
    "--kv-heads": "1",
    "--head-dim": "8",
    "--inner-size": "32",
    "--block-size": "3",
    "--taps": "1",
    "--tap-layer": "2",
    "--mask-token-id": "1",
    "--rope-theta": "500.0",
    "--anchors": "2",
    "--gamma": "3.0",
    "--length": "40",
    "--held-out": "2",
    "--max-sequences": "3",
}
"""Flags that change what comes out, and another value for each."""


def uninterrupted(place: Path, out: Path, *flags: str) -> Path:
    """The folder of a run that ends as it should."""
    arguments = ("--target", str(place / "target"), "--data", str(place / "ids.npy"), "--out", str(out))
    assert run(("train", "dflash", *arguments, *DRAFTER, *SHORT, *flags, "--json")) == 0
    return out


@pytest.fixture(scope="module")
def weights(place: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What comes out without any of them."""
    return (uninterrupted(place, tmp_path_factory.mktemp("plain") / "out") / "model.safetensors").read_bytes()


@pytest.mark.parametrize("flag", RECORDED)
def test_flags_change_the_drafter_and_are_recorded(
    surefoot_program: Program, place: Path, tmp_path: Path, weights: bytes, flag: str
) -> None:
    ran = train(surefoot_program, place, tmp_path / "out", flag, RECORDED[flag])
    assert ran.code == 0, ran.err
    options = record_of(tmp_path / "out")["options"]
    assert isinstance(options, dict)
    value = options[flag.removeprefix("--").replace("-", "_")]
    assert RECORDED[flag] in (str(value), ",".join(map(str, value if isinstance(value, list) else ())))
    if flag not in ("--at-once", "--rope-theta", "--clip"):  # these may come to the same after two steps
        assert (tmp_path / "out" / "model.safetensors").read_bytes() != weights


def test_epochs_are_steps_where_no_steps_are_given(surefoot_program: Program, place: Path, tmp_path: Path) -> None:
    arguments = ("--target", str(place / "target"), "--data", str(place / "ids.npy"), "--out", str(tmp_path / "out"))
    short = ("--epochs", "2", "--batch", "3", "--length", str(LENGTH), "--held-out", "2", "--check-prompts", "0")
    assert surefoot_program("train", "dflash", *arguments, *DRAFTER, *short).code == 0
    assert record_of(tmp_path / "out")["num_steps"] == 3  # four sequences twice, three at a time


def test_the_target_writes_answers_as_it_is_told(surefoot_program: Program, place: Path, tmp_path: Path) -> None:
    how = (
        "--length",
        "16",
        "--answers",
        "target",
        "--answer-tokens",
        "9",
        "--prompt-tokens",
        "8",
        "--max-sequences",
        "2",
    )
    lines: dict[str, list[list[int]]] = {}
    for name, more in (
        ("greedy", ("--greedy-share", "1")),
        ("cold", ("--greedy-share", "0", "--temperature", "0")),
        ("warm", ("--greedy-share", "0", "--temperature", "1.5")),
    ):
        ran = train(surefoot_program, place, tmp_path / name, *how, *more, data="prompts.jsonl")
        assert ran.code == 0, ran.err
        text = (tmp_path / name / "training" / "answers.jsonl").read_text()
        lines[name] = sorted(json.loads(line) for line in text.splitlines())
    assert lines["greedy"] == lines["cold"] != lines["warm"]
    assert max(len(ids) for _, ids in lines["cold"]) == 9
    ran = train(surefoot_program, place, tmp_path / "texts", *how)
    assert ran.code == 0, ran.err
    assert len((tmp_path / "texts" / "training" / "answers.jsonl").read_text().splitlines()) == 6 * 3


def test_init_begins_with_another_drafter(surefoot_program: Program, place: Path, tmp_path: Path) -> None:
    train(surefoot_program, place, tmp_path / "first")
    slow = ("--learning-rate", "1e-9")
    for name, flags in (("second", ("--init", str(tmp_path / "first"))), ("third", ())):
        assert train(surefoot_program, place, tmp_path / name, *slow, *flags).code == 0
    offline = {name: record_of(tmp_path / name)["evaluations"] for name in ("first", "second", "third")}
    assert record_of(tmp_path / "second")["losses"] != record_of(tmp_path / "third")["losses"]
    assert offline["second"] == offline["first"]


def test_pace_flags_say_when_it_saves_looks_reads_and_checks(
    surefoot_program: Program, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves: list[int] = []
    ahead: list[int] = []
    save, read_ahead = trainer.save, trainer.read_ahead
    monkeypatch.setattr(trainer, "save", lambda *given: (saves.append(given[3].step), save(*given))[1])
    monkeypatch.setattr(trainer, "read_ahead", lambda *given: (ahead.append(given[2]), read_ahead(*given))[1])
    flags = ("--steps", "6", "--save-every", "2", "--evaluate-every", "3", "--prefetch", "2", "--check-prompts", "1")
    assert train(surefoot_program, place, tmp_path / "out", *flags).code == 0
    record = record_of(tmp_path / "out")
    assert saves == [2, 4, 6]
    assert [step for step, _ in record["evaluations"]] == [3, 6]  # type: ignore[attr-defined]  # a list
    assert ahead == [2]
    assert record["loop"]["prompts"] == 1  # type: ignore[index]  # a dict


def test_threads_dtype_and_device_hold_for_the_target(
    surefoot_program: Program, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    flags = ("--threads", "1", "--dtype", "bfloat16", "--device", "cpu")
    assert train(surefoot_program, place, tmp_path / "out", *flags).code == 0
    assert threads == [1]
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    ran = train(surefoot_program, place, tmp_path / "other", "--device", "abacus")
    assert ran.code == 2
    assert "abacus" in ran.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--threads", "0"), "--threads is 0"),
        (("--block-size", "1"), "block_size is 1"),
        (("--learning-rate", "0"), "learning_rate is 0.0"),
        (("--mask-token-id", str(VOCABULARY + 8)), "mask_token_id is"),
        (("--taps", "9"), "--taps"),
        (("--data", "nowhere.txt"), "found no nowhere.txt"),
        (("--target", "no-such-model"), "found 'no-such-model'"),
        (("--length", "4000"), "expected at most 512"),
        (("--length", "500"), "expected at least 2"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(
    surefoot_program: Program, place: Path, tmp_path: Path, flags: tuple[str, ...], message: str
) -> None:
    ran = train(surefoot_program, place, tmp_path / "out", *flags)
    assert (ran.code, ran.out) == (2, "")
    (line,) = ran.err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert "expected" in line
    assert not (tmp_path / "out" / "training" / "state.safetensors").exists()


def test_the_same_command_goes_on_and_another_does_not(surefoot_program: Program, place: Path, tmp_path: Path) -> None:
    first = train(surefoot_program, place, tmp_path / "out")
    assert train(surefoot_program, place, tmp_path / "out").out == first.out
    ran = train(surefoot_program, place, tmp_path / "out", "--batch", "3")
    assert ran.code == 2
    assert "batch 2, and now batch is 3" in ran.err


def started(place: Path, out: Path, *flags: str) -> subprocess.Popen[str]:
    arguments = ("--target", str(place / "target"), "--data", str(place / "ids.npy"), "--out", str(out))
    command = [sys.executable, "-m", "surefoot", "train", "dflash", *arguments, *DRAFTER, *SHORT, *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    for _ in range(1200):
        if file.exists():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    pytest.fail(f"{file} did not come")


LONG = ("--steps", "70", "--save-every", "5", "--evaluate-every", "1000")


@pytest.fixture(scope="module")
def whole(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of such a run that nothing ended."""
    return uninterrupted(place, tmp_path_factory.mktemp("whole") / "out", *LONG)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_was_ended_goes_on_as_if_it_had_not_been(
    surefoot_program: Program, place: Path, whole: Path, tmp_path: Path, number: signal.Signals
) -> None:
    process = started(place, tmp_path / "out", *LONG)
    wait_for(tmp_path / "out" / "training" / "state.safetensors", process)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == (130 if number == signal.SIGTERM else -number)
    if number == signal.SIGTERM:
        assert "not finished" in out
        assert "the same command goes on from here" in err
    record = record_of(tmp_path / "out")
    if record["state"] == "finished":  # pragma: no cover  (a machine faster than its signals)
        pytest.skip("it had ended before")
    resumed = train(surefoot_program, place, tmp_path / "out", *LONG)
    assert resumed.code == 0, resumed.err
    assert record_of(tmp_path / "out")["losses"] == record_of(whole)["losses"]
    drafters = [(folder / "model.safetensors").read_bytes() for folder in (tmp_path / "out", whole)]
    assert drafters[0] == drafters[1]
