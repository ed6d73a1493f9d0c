"""``surefoot prove``: verdicts, exit codes and reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.cli.conftest import Program

from surefoot.models.decoder import DecoderModel
from surefoot.types import TargetOutput


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    lines = ["for index, value in enumerate(values):\n", {"prompt": "class Point:\n"}, list(range(20, 40))]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return str(path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("drafter", ["lookup", "draft"])
def test_a_pair_is_proved_identical(
    surefoot_program: Program, model: str, prompts: str, dtype: str, drafter: str
) -> None:
    # Few tokens to choose from, so that a random model repeats itself and lookup finds something.
    flags = ("--draft-model", model) if drafter == "draft" else ("--method", "lookup", "--temperature", "0.1")
    ran = surefoot_program(
        "prove", model, "--prompts", prompts, "--max-tokens", "48", "--ignore-eos", "--dtype", dtype, *flags, "--json"
    )
    got = json.loads(ran.out)
    assert (ran.code, got["conclusion"]) == (0, "identical"), got
    assert got["strict"] is True
    assert got["exact"] == "require"
    assert {case["outcome"] for case in got["cases"]} == {"identical"}
    assert sum(case["accepted"] for case in got["cases"]) > 0


def test_the_report_for_people_ends_with_the_verdict(surefoot_program: Program, model: str, prompts: str) -> None:
    ran = surefoot_program(
        "prove", model, "--draft-model", model, "--prompts", prompts, "--max-tokens", "12", "--limit", "2"
    )
    assert ran.code == 0
    assert ran.out.splitlines()[-1] == "verdict: identical: speculation changed no token"
    assert len(ran.err.splitlines()) == 4, "two prompts at two temperatures"


def test_seeds_temperatures_and_limit_decide_what_is_run(surefoot_program: Program, model: str, prompts: str) -> None:
    flags = ("--draft-model", model, "--prompts", prompts, "--max-tokens", "6", "--limit", "1", "--json")
    ran = surefoot_program("prove", model, *flags, "--seeds", "3", "--temperature", "0", "--temperature", "1.5")
    cases = json.loads(ran.out)["cases"]
    assert [(case["prompt"], case["temperature"], case["seed"]) for case in cases] == [
        (0, 0.0, 0),
        (0, 1.5, 0),
        (0, 1.5, 1),
        (0, 1.5, 2),
    ]


def test_a_planted_defect_exits_with_1(
    surefoot_program: Program, model: str, prompts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = DecoderModel.score

    def shifted(self: DecoderModel, rounds: object, capture: object) -> list[TargetOutput]:
        outs = honest(self, rounds, capture)
        return [out if len(out.logits) == 1 else TargetOutput(logits=out.logits.roll(1, -1)) for out in outs]

    monkeypatch.setattr(DecoderModel, "score", shifted)
    for exact in ("require", "auto"):
        flags = ("--draft-model", model, "--prompts", prompts, "--max-tokens", "12", "--exact", exact)
        ran = surefoot_program("prove", model, *flags)
        assert ran.code == 1
        assert "REAL DIVERGENCE" in ran.out
        assert "Traceback" not in ran.err


def test_near_ties_alone_exit_with_3(
    surefoot_program: Program, model: str, prompts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = DecoderModel.score

    def tied(self: DecoderModel, rounds: object, capture: object) -> list[TargetOutput]:
        """Rows with two best tokens a millionth apart; beside other rows, rounding turns them round."""
        outs = []
        for out in honest(self, rounds, capture):
            logits = out.logits.clone()
            first, second = logits.topk(2).indices.sort().values.unbind(-1)
            best = logits.max(-1).values
            margin = 1e-6 if len(logits) == 1 else -1e-6
            logits[torch.arange(len(logits)), first] = best
            logits[torch.arange(len(logits)), second] = best - margin
            outs.append(TargetOutput(logits=logits))
        return outs

    monkeypatch.setattr(DecoderModel, "score", tied)
    monkeypatch.setattr("surefoot.models.decoder.available", lambda: None)  # the kernels' rows are exact: no near-ties
    flags = (
        "--draft-model",
        model,
        "--prompts",
        prompts,
        "--max-tokens",
        "12",
        "--exact",
        "auto",
        "--temperature",
        "0",
    )
    ran = surefoot_program("prove", model, *flags, "--ignore-eos")
    assert ran.code == 3, ran.out
    assert "near-tie" in ran.out


def test_without_accepted_drafts_it_exits_with_4(surefoot_program: Program, model: str, prompts: str) -> None:
    flags = ("--method", "lookup", "--prompts", prompts, "--max-tokens", "2", "--limit", "1")
    ran = surefoot_program("prove", model, *flags)
    assert ran.code == 4
    assert "not speculating" in ran.out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--limit", "0"), "--limit is 0; expected"),
        (("--seeds", "0"), "--seeds is 0; expected"),
        (("--num-draft", "0"), "--num-draft above 0"),
        (("--method", "none"), "expected lookup or a draft model"),
        (("--temperature", "-1"), "temperature is -1.0; expected"),
        (("--prompts", "no-such-file.txt"), "no-such-file.txt"),
        (("--max-tokens", "-1"), "max_tokens is -1; expected"),
    ],
)
def test_wrong_values_exit_with_2(surefoot_program: Program, model: str, flags: tuple[str, ...], message: str) -> None:
    ran = surefoot_program("prove", model, *flags)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
