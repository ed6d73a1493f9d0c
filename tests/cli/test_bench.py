"""``surefoot bench``: what each flag changes, the outputs, and the exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.bench.pages import embedded, parse
from tests.cli.conftest import Program

import surefoot.cli.bench as bench
from surefoot.bench.answers import Comparison
from surefoot.bench.run import measure
from surefoot.models.decoder import DecoderModel
from surefoot.types import TargetOutput

Json = dict[str, Any]
QUESTIONS = (
    {"question_id": "a", "category": "edit", "turns": ["def greet(name):\n"], "prediction": "    return name\n"},
    {"question_id": "b", "category": "talk", "turns": ["class Point:\n", "for index"]},
    {"question_id": "c", "category": "talk", "turns": ["The quick brown fox"]},
)
CORE = ("--max-tokens", "6", "--repeats", "1", "--raw")


@pytest.fixture(scope="session")
def questions(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("questions") / "mine.jsonl"
    path.write_text("\n".join(json.dumps(question) for question in QUESTIONS))
    return str(path)


@pytest.fixture
def report(surefoot_program: Program, model: str, questions: str) -> Any:
    """Runs ``bench --json`` and gives the object; flags that come later win."""

    def run(*flags: str, code: int = 0) -> Json:
        ran = surefoot_program("bench", model, "--questions", questions, *CORE, *flags, "--json")
        assert ran.code == code, ran.err
        found: Json = json.loads(ran.out)
        return found

    return run


def arms_of(found: Json) -> list[str]:
    return list(dict.fromkeys(cell["arm"] for cell in found["cells"]))


def asked_of(found: Json) -> set[tuple[str, int]]:
    return {(one["question"], one["turn"]) for one in found["comparisons"]}


def test_the_json_says_what_was_done_and_with_what(report: Any, model: str, questions: str) -> None:
    found = report("--seed", "5")
    assert (found["model"], found["drafter"], found["questions"]) == (model, "lookup", questions)
    assert (found["arms"], found["num_draft"], found["seed"]) == (["plain", "lookup", "prediction"], 4, 5)
    assert (found["dtype"], found["exact"], found["complete"], found["chat"]) == ("float32", "auto", True, False)
    assert asked_of(found) == {("a", 0), ("b", 0), ("b", 1), ("c", 0)}
    assert {"command", "processor", "num_threads", "packages", "finished", "device"} <= set(found["provenance"])
    assert [point["rows"] for point in found["cost"]["points"]] == [1, 2, 3, 4, 5]
    for cell in found["cells"]:
        assert cell["identical"] == cell["answers"]
        assert cell["tokens"] == 6 * cell["answers"]
        assert cell["tokens_per_second"]["count"] == cell["answers"]
        assert sum(cell["acceptance"]["histogram"]) == cell["acceptance"]["rounds"]
        assert (cell["times_plain"] is None) == (cell["arm"] == "plain")
        assert cell["slower_than_plain"] == (cell["times_plain"] is not None and cell["times_plain"]["median"] < 1)
        assert set(cell["phase_seconds"]) >= {"prefill", "draft", "score", "verify", "commit", "observe"}


def test_a_draft_model_is_measured_beside_lookup(report: Any, model: str) -> None:
    found = report("--draft-model", model, "--num-draft", "3")
    assert arms_of(found) == ["plain", "lookup", "draft", "prediction"]
    drafting = [cell for cell in found["cells"] if cell["arm"] == "draft"]
    assert all(cell["acceptance"]["accepted"] > 0 for cell in drafting), "it is the target itself"
    assert max(len(cell["acceptance"]["by_position"]) for cell in drafting) == found["num_draft"] == 3
    assert [point["rows"] for point in found["cost"]["points"]] == [1, 2, 3, 4]
    assert found["drafter"] == model


@pytest.mark.parametrize("flags", [("--num-draft", "2"), ("--num-draft-tokens", "2")])
def test_the_number_of_drafts_has_two_names(report: Any, model: str, flags: tuple[str, ...]) -> None:
    found = report("--draft-model", model, "--method", "draft", *flags)
    assert max(len(cell["acceptance"]["by_position"]) for cell in found["cells"]) == 2


def test_methods_choose_the_arms(report: Any, model: str) -> None:
    pair = ("--draft-model", model)
    assert arms_of(report(*pair, "--method", "draft")) == ["plain", "draft"]
    assert arms_of(report(*pair, "--method", "prediction", "--method", "lookup")) == ["plain", "lookup", "prediction"]


def test_kinds_limit_and_repeats_choose_what_is_asked(report: Any) -> None:
    assert asked_of(report("--kind", "talk")) == {("b", 0), ("b", 1), ("c", 0)}
    assert asked_of(report("--limit", "1")) == {("a", 0), ("b", 0), ("b", 1)}
    found = report("--kind", "edit", "--repeats", "2")
    assert [one["repeat"] for one in found["comparisons"]] == [0, 1]
    places = [[answer["place"] for answer in one["answers"]] for one in found["comparisons"]]
    assert places[0] != places[1], "the arms' order turns"


def test_sampling_flags_shape_the_answers(report: Any) -> None:
    def text(*flags: str) -> str:
        found = report("--kind", "edit", "--method", "lookup", *flags)
        assert all(cell["identical"] == cell["answers"] for cell in found["cells"])
        return json.dumps([one["pieces"] for one in found["texts"]])

    greedy, warm = text(), text("--temperature", "2", "--seed", "1")
    assert warm == text("--temperature", "2", "--seed", "1") != greedy
    assert text("--temperature", "2", "--seed", "2") != warm
    for narrow in (("--top-k", "1"), ("--top-p", "0.000001"), ("--min-p", "1")):
        assert text("--temperature", "2", "--seed", "1", *narrow) == greedy
    assert len(text("--max-tokens", "3")) < len(greedy)
    temperatures = report("--kind", "edit", "--temperature", "0", "--temperature", "0.8")
    assert {cell["temperature"] for cell in temperatures["cells"]} == {0.0, 0.8}


def test_eos_may_be_ignored(report: Any) -> None:
    def ended(*flags: str) -> set[str]:
        found = report("--kind", "talk", "--temperature", "50", "--max-tokens", "24", "--seed", "2", *flags)
        return {answer["finish_reason"] for one in found["comparisons"] for answer in one["answers"]}

    assert "stop" in ended()
    assert ended("--ignore-eos") == {"length"}


def test_acceptance_by_rejection_says_other_things_and_that_is_no_defect(report: Any, model: str) -> None:
    hot = ("--draft-model", model, "--method", "draft", "--temperature", "1.5", "--exact", "require")
    assert {cell["identical"] == cell["answers"] for cell in report(*hot, "--max-tokens", "20")["cells"]} == {True}
    found = report(*hot, "--max-tokens", "20", "--acceptance", "reject")
    assert found["acceptance"] == "reject"
    assert any(cell["first_difference"] is not None for cell in found["cells"])


def test_draft_sampling_changes_the_guesses_and_not_the_text(report: Any, model: str) -> None:
    hot = ("--draft-model", model, "--method", "draft", "--temperature", "1.5", "--max-tokens", "20")
    accepted = {}
    for how in ("shared", "argmax"):
        found = report(*hot, "--draft-sampling", how)
        accepted[how] = sum(cell["acceptance"]["accepted"] for cell in found["cells"])
        assert all(cell["identical"] == cell["answers"] for cell in found["cells"])
    assert accepted["shared"] > accepted["argmax"], "the draft model is the target itself"


def test_lookup_drafts_after_as_many_equal_tokens_as_asked(report: Any) -> None:
    hot = ("--method", "lookup", "--temperature", "0.1", "--max-tokens", "60")
    drafted = [
        sum(cell["acceptance"]["drafted"] for cell in report(*hot, "--lookup-min", count)["cells"])
        for count in ("1", "6")
    ]
    assert drafted[0] > drafted[1]


def test_load_flags_reach_the_model(report: Any) -> None:
    assert report("--kind", "edit", "--dtype", "bfloat16")["dtype"] == "bfloat16"
    found = report("--kind", "edit", "--exact", "require", "--device", "cpu", "--prefill-chunk", "3", "--threads", "1")
    assert (found["exact"], found["strict"]) == ("require", True)
    assert (found["provenance"]["device"], found["provenance"]["num_threads"]) == ("cpu", 1)


def test_models_with_a_chat_template_are_asked_in_chat_unless_raw(
    surefoot_program: Program, model: str, other_tokenizer: str, questions: str
) -> None:
    lengths = {}
    flags = (
        "--questions",
        questions,
        "--max-tokens",
        "4",
        "--repeats",
        "1",
        "--limit",
        "1",
        "--kind",
        "edit",
        "--json",
    )
    for name, path, more in (("chat", model, ()), ("raw", model, ("--raw",)), ("bare", other_tokenizer, ())):
        found = json.loads(surefoot_program("bench", path, *flags, *more).out)
        assert found["chat"] == (name == "chat")
        lengths[name] = found["comparisons"][0]["prompt_tokens"]
    assert lengths["chat"] > lengths["raw"]


def test_the_table_tells_people(surefoot_program: Program, model: str, questions: str) -> None:
    ran = surefoot_program("bench", model, "--questions", questions, *CORE)
    assert ran.code == 0
    for word in ("edit", "talk", "plain", "lookup", "prediction", "times plain", "4 drafts a round", "float32"):
        assert word in ran.out
    assert "\x1b" not in ran.out, "no colours where nobody sees them"


def test_slower_is_called_slower(
    surefoot_program: Program, model: str, questions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    honest = DecoderModel.score

    def slow(self: DecoderModel, rounds: Any, capture: Any) -> list[TargetOutput]:
        time.sleep(0.02 if len(rounds[0][0]) > 1 else 0)
        return honest(self, rounds, capture)

    monkeypatch.setattr(DecoderModel, "score", slow)
    flags = ("--questions", questions, *CORE, "--kind", "edit", "--draft-model", model, "--max-tokens", "12")
    ran = surefoot_program("bench", model, *flags, "--method", "draft", "--num-draft", "1")
    assert "slower than plain" in ran.out


def test_the_report_is_one_file_with_the_same_numbers(surefoot_program: Program, model: str, tmp_path: Path) -> None:
    script = "</script><script>alert(1)</script>"
    asked = tmp_path / "evil.jsonl"
    asked.write_text(json.dumps({"question_id": script, "category": script, "turns": ["for " + script]}))
    path = tmp_path / "report.html"
    ran = surefoot_program("bench", model, "--questions", str(asked), *CORE, "--html", str(path), "--json")
    assert ran.code == 0, ran.err
    html = path.read_text(encoding="utf-8")
    assert embedded(html) == json.loads(ran.out)
    page = parse(html)
    assert page.tags.count("script") == 1
    assert page.addresses() == []
    assert script in page.text
    assert f"report written to {path}" in ran.err


def test_built_in_questions_are_asked_where_they_fit(surefoot_program: Program, model: str) -> None:
    flags = ("--raw", "--repeats", "1", "--kind", "copy", "--max-tokens")
    ran = surefoot_program("bench", model, *flags, "100", "--json")
    found = json.loads(ran.out)
    assert found["questions"] == "built-in"
    assert asked_of(found) == {("table", 0), ("settings", 0)}
    assert [skipped["question"] for skipped in found["skipped"]] == ["steps"]
    assert "note: skipped copy/steps, turn 1" in ran.err
    ran = surefoot_program("bench", model, *flags, "500")
    assert ran.code == 2
    assert "no question fits" in ran.err


def test_a_text_that_differs_although_strict_exits_with_1(
    surefoot_program: Program, model: str, questions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = DecoderModel.score

    def shifted(self: DecoderModel, rounds: Any, capture: Any) -> list[TargetOutput]:
        outs = honest(self, rounds, capture)
        return [out if len(out.logits) == 1 else TargetOutput(logits=out.logits.roll(1, -1)) for out in outs]

    flags = ("--questions", questions, *CORE, "--draft-model", model, "--method", "draft", "--exact", "require")
    assert surefoot_program("bench", model, *flags).code == 0, "the control"
    monkeypatch.setattr(DecoderModel, "score", shifted)
    ran = surefoot_program("bench", model, *flags)
    assert ran.code == 1
    assert "texts differ, although equal texts were promised" in ran.out


@pytest.mark.parametrize("kept", [0, 2])
def test_an_interrupt_exits_with_130_and_keeps_what_was_measured(
    surefoot_program: Program,
    model: str,
    questions: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kept: int,
) -> None:
    def interrupted(*arguments: Any, **named: Any) -> Iterator[Comparison]:
        for number, one in enumerate(measure(*arguments, **named)):
            if number == kept:
                raise KeyboardInterrupt
            yield one

    monkeypatch.setattr(bench, "measure", interrupted)
    path = tmp_path / "report.html"
    ran = surefoot_program("bench", model, "--questions", questions, *CORE, "--json", "--html", str(path))
    assert ran.code == 130
    assert "interrupted" in ran.err
    if not kept:
        assert (ran.out, path.exists()) == ("", False)
        return
    found = json.loads(ran.out)
    assert (found["complete"], len(found["comparisons"]), found["cost"]) == (False, kept, None)
    assert "Interrupted" in parse(path.read_text(encoding="utf-8")).text


def test_settings_of_a_file_are_read(report: Any, model: str, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[profiles.short]\nnum_draft = 2\n")
    found = report("--config", str(config), "--profile", "short", "--draft-model", model, "--kind", "edit")
    assert found["num_draft"] == 2


def test_the_pair_may_be_said_in_vllms_keys(report: Any, model: str) -> None:
    found = report("--speculative-config", json.dumps({"model": model, "num_speculative_tokens": 2}), "--kind", "edit")
    assert (arms_of(found), found["num_draft"]) == (["plain", "lookup", "draft", "prediction"], 2)
    said = {"method": "draft_model", "model": model, "num_speculative_tokens": 2}
    assert arms_of(report("--speculative-config", json.dumps(said), "--kind", "edit")) == ["plain", "draft"]
    assert arms_of(report("--speculative-config", '{"method": "ngram"}')) == ["plain", "lookup"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--limit", "0"), "--limit is 0; expected at least 1"),
        (("--repeats", "0"), "--repeats is 0; expected at least 1"),
        (("--num-draft", "0"), "nothing to compare plain decoding with"),
        (("--max-tokens", "1"), "--max-tokens is 1; expected at least 2"),
        (("--speculative-config", '{"method": "ngram"}', "--method", "lookup"), "and --method both say it"),
        (("--method", "draft"), "found method 'draft'; expected one of lookup, prediction"),
        (("--method", "prediction", "--kind", "talk"), "carry none"),
        (("--kind", "poem"), "found kind 'poem'; expected one of edit, talk"),
        (("--questions", "absent.jsonl"), "absent.jsonl"),
        (("--html", "no/such/folder.html"), "--html is no/such/folder.html; expected a file"),
        (("--html", "."), "--html is .; expected a file"),
        (("--temperature", "-1"), "temperature is -1.0; expected"),
    ],
)
def test_mistakes_are_answered_before_anything_is_measured(
    surefoot_program: Program,
    model: str,
    questions: str,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setattr(bench, "measure", None)
    ran = surefoot_program("bench", model, "--questions", questions, *CORE, *flags)
    assert ran.code == 2
    assert message in ran.err
    assert ran.out == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no file that is always full")
def test_a_report_that_cannot_be_written_is_told_after_the_table(
    surefoot_program: Program, model: str, questions: str
) -> None:
    ran = surefoot_program("bench", model, "--questions", questions, *CORE, "--json", "--html", "/dev/full")
    assert ran.code == 2
    assert "--html /dev/full: " in ran.err
    assert "expected a file that can be written" in ran.err
    assert json.loads(ran.out)["cells"], "what was measured is not lost"
