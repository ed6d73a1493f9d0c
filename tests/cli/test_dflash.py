"""Every command takes a DFlash drafter where it takes a draft model, and finds out by itself that it is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import VOCABULARY, Program
from tests.drafters.blockers import random_network, save_network

PROMPT = ("--prompt", "for index", "--max-tokens", "8")
TREE = ("--num-draft", "12", "--tree-width", "3")


@pytest.fixture(scope="session")
def drafter(model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A drafter for the target of these tests."""
    network = random_network(vocab_size=VOCABULARY, num_target_layers=3)
    return str(save_network(tmp_path_factory.mktemp("drafters") / "dflash", network))


@pytest.mark.parametrize(
    "extra", [(), TREE, ("--method", "dflash"), ("--method", "lookup+dflash", "--lookup-min", "3")]
)
def test_generate_gives_the_plain_text(
    surefoot_program: Program, model: str, drafter: str, extra: tuple[str, ...]
) -> None:
    ran = surefoot_program("generate", model, "--draft-model", drafter, *PROMPT, "--json", "--trace", *extra)
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    plain = json.loads(surefoot_program("generate", model, "--num-draft", "0", *PROMPT, "--json").out)
    assert told["text"] == plain["text"]
    assert told["stats"]["fallbacks"] == 0
    assert told["stats"]["drafted"] > 0
    assert told["trace"]


def test_a_trace_tells_anchor_drafts_own_tokens_and_accepted(
    surefoot_program: Program, model: str, drafter: str
) -> None:
    ran = surefoot_program("generate", model, "--draft-model", drafter, *PROMPT, "--trace", "--no-measure-plain")
    (first, *_) = [line for line in ran.err.splitlines() if line.startswith("round")]
    assert all(word in first for word in ("round 1", "after", "drafted", "own", "accepted"))
    assert "round 1" not in ran.out


@pytest.mark.parametrize(
    "command",
    [
        ("explain", *PROMPT),
        ("prove", "--limit", "1", "--max-tokens", "4", "--temperature", "0"),
        ("bench", "--limit", "1", "--repeats", "1", "--kind", "completion", "--max-tokens", "6"),
        ("doctor",),
    ],
)
def test_every_command_takes_it(surefoot_program: Program, model: str, drafter: str, command: tuple[str, ...]) -> None:
    name, *rest = command
    ran = surefoot_program(name, model, "--draft-model", drafter, "--json", *rest)
    told = json.loads(ran.out)
    assert drafter in ran.out
    if name == "doctor":
        (files,) = [check for check in told["checks"] if check["name"] == "draft model files"]
        assert files["level"] == "PASS"
        assert files["found"].startswith("dflash, ")
        assert not [check for check in told["checks"] if check["level"] == "FAIL"]
    if name == "bench":
        assert told["arms"] == ["plain", "lookup", "dflash"]


def test_bench_measures_chain_and_tree_side_by_side(surefoot_program: Program, model: str, drafter: str) -> None:
    short = ("--limit", "1", "--repeats", "1", "--kind", "completion", "--max-tokens", "6")
    ran = surefoot_program("bench", model, "--draft-model", drafter, "--json", *short, *TREE, "--method", "dflash")
    assert json.loads(ran.out)["arms"] == ["plain", "dflash", "dflash-tree"]
    ran = surefoot_program("bench", model, "--draft-model", drafter, "--json", *short, "--method", "lookup+dflash")
    assert json.loads(ran.out)["arms"] == ["plain", "lookup+dflash"]


def test_chat_drafts_with_it(
    surefoot_program: Program, model: str, drafter: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "said").write_text("hello\nand again\n")
    with (tmp_path / "said").open() as said:
        monkeypatch.setattr("sys.stdin", said)
        ran = surefoot_program("chat", model, "--draft-model", drafter, "--max-tokens", "6", "--json")
    assert ran.code == 0, ran.err
    answers = [json.loads(line) for line in ran.out.splitlines()]
    assert len(answers) == 2
    assert all(answer["stats"]["fallbacks"] == 0 for answer in answers)


def test_inspect_says_that_it_can_be_used(surefoot_program: Program, drafter: str) -> None:
    told = json.loads(surefoot_program("inspect", drafter, "--json").out)
    assert told["kind"] == "a DFlash drafter"
    assert told["usable"]
    assert told["facts"]["reads target layers"] == "[0, 1]"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--method", "draft"), "drafts by dflash; expected the same"),
        (("--method", "lookup+draft"), "drafts by lookup+dflash; expected the same"),
        (("--method", "lookup"), "--method lookup came with --draft-model"),
        (("--tree-width", "0"), "tree_width is 0; expected"),
        (("--lookup-min", "3"), "expected --method lookup"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    surefoot_program: Program, model: str, drafter: str, arguments: tuple[str, ...], error: str
) -> None:
    ran = surefoot_program("generate", model, "--draft-model", drafter, *PROMPT, *arguments)
    assert ran.code == 2
    assert error in ran.err


@pytest.mark.parametrize("command", [("generate", *PROMPT), ("doctor",), ("prove",), ("bench",), ("explain", *PROMPT)])
def test_a_drafter_is_refused_as_a_target(surefoot_program: Program, drafter: str, command: tuple[str, ...]) -> None:
    name, *rest = command
    ran = surefoot_program(name, drafter, *rest)
    assert ran.code == (1 if name == "doctor" else 2)
    assert "DFlash drafter, which cannot answer by itself" in " ".join((ran.out + ran.err).split())


def test_a_drafter_that_does_not_fit_fails_before_anything_is_generated(
    surefoot_program: Program, model: str, tmp_path: Path
) -> None:
    wrong = str(save_network(tmp_path, random_network(vocab_size=97)))
    ran = surefoot_program("generate", model, "--draft-model", wrong, *PROMPT)
    assert ran.code == 2
    assert ran.out == ""
    assert "made for another target" in ran.err
    doctor = json.loads(surefoot_program("doctor", model, "--draft-model", wrong, "--files-only", "--json").out)
    (files,) = [check for check in doctor["checks"] if check["name"] == "draft model files"]
    assert files["level"] == "FAIL"
    assert "vocab_size: 300 | 97" in json.dumps(files)
