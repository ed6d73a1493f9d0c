"""Questions: the built-in ones and those of a user's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.bench.timed import tokenizer

from surefoot.bench.kinds import KINDS, builtin
from surefoot.bench.questions import Question, choose, read
from surefoot.errors import OptionError
from surefoot.loading import bundled
from surefoot.loading.tokenizer import load_tokenizer

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[a]{% endif %}"
)


def write(path: Path, *lines: object) -> Path:
    file = path / "mt.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return file


def test_a_file_in_the_common_format_is_read(tmp_path: Path) -> None:
    first = {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."], "reference": ["x"]}
    path = write(tmp_path, first, "", {"question_id": "b", "category": "math", "turns": ["1+1?"]}, {"turns": ["Hi"]})
    assert read(path) == [
        Question(name="81", kind="writing", turns=("Write.", "Again.")),
        Question(name="b", kind="math", turns=("1+1?",)),
        Question(name="4", kind="mt", turns=("Hi",)),
    ]


def test_a_prediction_is_read(tmp_path: Path) -> None:
    (question,) = read(write(tmp_path, {"turns": ["Rename x."], "prediction": "x = 1"}))
    assert question.prediction == "x = 1"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "mt.jsonl:1 is not JSON"),
        ("[]", "expected an object with 'turns'"),
        ({"turns": []}, "expected an object with 'turns'"),
        ({"turns": "one"}, "expected an object with 'turns'"),
        ({"turns": ["a", 2]}, "expected an object with 'turns'"),
        ({"turns": [""]}, "expected an object with 'turns'"),
        ({"turns": ["a"], "category": 3}, "category 3"),
        ({"turns": ["a"], "question_id": [1]}, r"question_id \[1\]"),
        ({"turns": ["a"], "prediction": 1}, "prediction 1"),
        ({"turns": ["a", "b"], "prediction": "c"}, "predicts an answer and has 2 turns"),
        ("", "holds no question"),
    ],
)
def test_what_is_no_question_is_refused_by_line(tmp_path: Path, line: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read(write(tmp_path, line))


def test_two_questions_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="two questions called '1'"):
        read(write(tmp_path, {"question_id": 1, "turns": ["a"]}, {"question_id": "1", "turns": ["b"]}))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"absent\.jsonl"):
        read(tmp_path / "absent.jsonl")


def test_a_conversation_is_messages_or_text() -> None:
    words = tokenizer(TEMPLATE)
    question = Question(name="q", kind="k", turns=("one", "two"), raw="ONE")
    said = [words.decode(question.prompt(answers, words, raw=False)) for answers in ([], ["first"])]
    assert said == ["[user]one[a]", "[user]one[assistant]first[user]two[a]"]
    assert [question.wording(turn, raw=raw) for raw in (True, False) for turn in (0, 1)] == ["ONE", "two", "one", "two"]
    said = [words.decode(question.prompt(answers, words, raw=True)) for answers in ([], ["first"])]
    assert said == ["ONE", "ONEfirst\ntwo"]


def test_the_limit_holds_for_each_kind() -> None:
    questions = builtin()
    chosen = choose(questions, (), 1)
    assert [question.kind for question in chosen] == list(KINDS)
    assert choose(questions, ("free", "edit"), None) == [one for one in questions if one.kind in ("edit", "free")]
    with pytest.raises(OptionError, match="found kind 'poem'; expected one of completion, edit, copy, free"):
        choose(questions, ("poem",), None)


def test_every_kind_has_several_questions_and_edits_carry_the_old_code() -> None:
    questions = builtin()
    assert len({(question.kind, question.name) for question in questions}) == len(questions)
    for kind in KINDS:
        mine = [question for question in questions if question.kind == kind]
        assert len(mine) > 1
        assert all((question.prediction is not None) == (kind == "edit") for question in mine)
    for question in questions:
        assert question.raw
        assert question.prediction is None or (
            question.prediction in question.turns[0] and question.prediction in question.raw
        )


@pytest.mark.parametrize("raw", [True, False])
def test_built_in_questions_leave_a_small_model_room_to_answer(raw: bool) -> None:
    words, _ = load_tokenizer(bundled()["pebble"])
    assert words is not None
    lengths = {question.name: len(question.prompt((), words, raw=raw)) for question in builtin()}
    assert max(lengths.values()) <= 512 - 128, lengths


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85"])
def test_only_a_newline_ends_a_line(tmp_path: Path, end: str) -> None:
    path = tmp_path / "asked.jsonl"
    path.write_text(f'{{"turns": ["one{end}two"]}}\n{{"turns": ["three{end}"]}}\n', encoding="utf-8")
    assert [question.turns for question in read(path)] == [(f"one{end}two",), (f"three{end}",)]
