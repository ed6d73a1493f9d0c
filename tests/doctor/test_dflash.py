"""A DFlash drafter examined: its files, its fit, what it takes of memory, and the pair at work."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.doctor.conftest import VOCABULARY, Make, change_config
from tests.doctor.test_examination import files, of
from tests.drafters.blockers import random_network, save_network

from surefoot.doctor import Examination, examine
from surefoot.doctor.memory import Room
from surefoot.options import LoadOptions

FITTING = {"vocab_size": VOCABULARY, "dflash_config": {"mask_token_id": 299, "target_layer_ids": [0, 1]}}


@pytest.fixture
def drafter(tmp_path: Path) -> str:
    return str(save_network(tmp_path / "drafter", random_network(4, **FITTING)))


def test_a_sound_pair_passes_and_what_is_drafted_is_checked(make_model: Make, drafter: str) -> None:
    report = examine(Examination(model=make_model("target"), drafter=drafter, load=LoadOptions(exact="require")))
    assert {check.name for check in report.checks if check.level not in ("PASS", "WARN")} == set()
    assert "reads layers 0, 1" in of(report, "draft model files").found
    equality = of(report, "equality")  # random drafts are hardly ever right, which it says
    assert equality.found.startswith("4 answers of 64 tokens are the same")
    assert all("identical" in line for line in equality.details if line.startswith("T="))


def test_its_weights_and_its_context_are_in_the_budget(
    make_model: Make, drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make_model("target")
    alone = of(files(target), "memory")
    with_drafter = of(files(target, drafter), "memory")
    assert len(alone.details) + 1 == len(with_drafter.details)
    size = (Path(drafter) / "model.safetensors").stat().st_size
    assert any(line.startswith(f"draft model: weights {size / 1e6:.2f}"[:-1]) for line in with_drafter.details)
    taken = (Path(target) / "model.safetensors").stat().st_size
    room = Room(available=taken + size // 2, what="memory")
    monkeypatch.setattr("surefoot.doctor.examination.free_memory", lambda device: room)
    assert of(files(target), "memory").level != "FAIL"
    too_much = of(files(target, drafter), "memory")
    assert (too_much.level, "Leave the draft model out" in too_much.mend) == ("FAIL", True)


def test_a_drafter_of_another_target_fails_with_its_counts(make_model: Make, drafter: str) -> None:
    report = files(make_model("target", num_hidden_layers=4), drafter)
    check = of(report, "draft model files")
    assert check.level == "FAIL"
    assert check.details == ("layers of the target: 4 | 3",)
    assert "without the draft model" in of(report, "memory").found


def test_a_missing_tensor_and_a_context_that_ends_before_the_targets_are_told(make_model: Make, drafter: str) -> None:
    target = make_model("target")
    change_config(drafter, max_position_embeddings=100)
    short = of(files(target, drafter), "draft model files")
    assert (short.level, "context of 100 tokens" in short.found) == ("WARN", True)
    path = Path(drafter) / "model.safetensors"
    tensors = load_file(path)
    save_file({name: tensor for name, tensor in tensors.items() if name != "fc.weight"}, path)
    damaged = of(files(target, drafter), "draft model files")
    assert damaged.level == "FAIL"
    assert [line for line in damaged.details if line.startswith("missing: fc.weight")]


def test_a_drafter_whose_record_names_another_target_is_a_warning(make_model: Make, drafter: str) -> None:
    target = make_model("target")
    record = {"target": {"config_sha256": "0" * 64}, "target_name": "another-7b"}
    (Path(drafter) / "run.json").write_text(json.dumps(record))
    check = of(files(target, drafter), "draft model files")
    assert (check.level, "(another-7b)" in check.found) == ("WARN", True)
    assert "surefoot train dflash" in check.mend


def test_the_budget_follows_the_dtype_that_is_asked_for(make_model: Make, drafter: str) -> None:
    target = make_model("target", dtype=torch.bfloat16)
    report = files(target, drafter)
    wide = examine(
        replace(Examination(model=target, drafter=drafter, running=False), load=LoadOptions(dtype="float32"))
    )
    assert of(report, "memory").found != of(wide, "memory").found
