"""The commands of a chat, through the program and its JSON."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.chatting import typed
from tests.cli.conftest import Program

from surefoot.cli.chat.parameters import NAMES

Chat = Callable[..., tuple[int, list[dict[str, object]], str]]


@pytest.fixture
def chat(surefoot_program: Program, model: str, monkeypatch: pytest.MonkeyPatch) -> Chat:
    """Runs the program on typed lines; its exit code, its JSON objects, and what it said besides."""

    def run(*lines: str, flags: tuple[str, ...] = ()) -> tuple[int, list[dict[str, object]], str]:
        typed(monkeypatch, *lines)
        fixed = ("--json", "--max-tokens", "12", "--seed", "1", "--ignore-eos", "--draft-model", model)
        ran = surefoot_program("chat", model, *fixed, *flags)
        return ran.code, [json.loads(line) for line in ran.out.splitlines()], ran.err

    return run


def test_json_is_an_object_per_answer_with_cache_and_context(chat: Chat) -> None:
    code, (first, second, totals), err = chat("def greet", "", "class Point:", "/stats")
    assert (code, err) == (0, "")
    assert (first["answer"], second["answer"]) == (1, 2)
    assert first["seed"] == 1
    assert len(first["tokens"]) == len(first["origins"]) == 12
    assert first["usage"]["cached_tokens"] == 0 < second["usage"]["cached_tokens"]
    assert second["context_length"] == 512
    assert second["stats"]["accepted"] > 0 == second["stats"]["fallbacks"]
    assert totals["stats"]["answers"] == 2
    assert totals["stats"]["tokens"] == 24
    assert totals["stats"]["cached_tokens"] == second["usage"]["cached_tokens"]


def test_without_json_the_answer_goes_to_stdout_and_all_else_to_stderr(
    surefoot_program: Program, model: str, monkeypatch: pytest.MonkeyPatch, chat: Chat
) -> None:
    _, (answer, _), _ = chat("def greet", "/stats")
    typed(monkeypatch, "def greet", "/stats")
    fixed = ("--max-tokens", "12", "--seed", "1", "--ignore-eos", "--draft-model", model)
    ran = surefoot_program("chat", model, *fixed)
    assert ran.out == f"{answer['text']}\n"
    assert "\x1b" not in ran.out + ran.err
    status, *account = ran.err.splitlines()
    assert status.startswith("12 tokens · ")
    for part in ("tok/s", "of 4 drafts accepted per round", "0 prompt tokens kept, ", "context ", " of 512"):
        assert part in status
    assert "times plain" not in status, "what was not measured is not printed"
    assert [line.split()[0] for line in account] == ["answers", "prompts", "drafts", "length", "position", "time"]
    assert "1 + accepted / rounds" in ran.err


def test_each_answer_is_measured_against_plain_decoding_on_request(
    surefoot_program: Program, model: str, monkeypatch: pytest.MonkeyPatch, chat: Chat
) -> None:
    _, answers, _ = chat("def greet", "class Point:", flags=("--measure-plain", "--exact", "require"))
    for answer in answers:
        assert answer["plain"]["same_tokens"] is True
        assert answer["plain"]["times_plain"] > 0
    _, (unmeasured,), _ = chat("def greet")
    assert unmeasured["plain"] is None
    typed(monkeypatch, "def greet")
    ran = surefoot_program(
        "chat", model, "--max-tokens", "12", "--ignore-eos", "--draft-model", model, "--measure-plain"
    )
    assert "times plain (measured)" in ran.err


def test_input_that_is_no_text_ends_the_chat_and_is_told(
    surefoot_program: Program, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8"))
    ran = surefoot_program("chat", model, "--json")
    assert ran.code == 2
    assert "expected UTF-8" in json.loads(ran.out)["error"]


def test_answering_again_takes_another_seed_and_says_when_that_changes_nothing(chat: Chat) -> None:
    _, (first, second, third), _ = chat("def greet", "/regenerate", "/regenerate", flags=("--temperature", "2"))
    assert (first["seed"], second["seed"], third["seed"]) == (1, 2, 3)
    assert first["tokens"] != second["tokens"] != third["tokens"]
    _, (first, second), err = chat("def greet", "/regenerate")
    assert first["tokens"] == second["tokens"]
    assert "temperature is 0" in err


def test_an_edit_reads_the_new_words_and_answers_from_there(chat: Chat) -> None:
    _, (_, _, edited), err = chat("class Point:", "def greet", "/edit 1", "for index")
    _, (fresh,), _ = chat("for index")
    assert edited["tokens"] == fresh["tokens"]
    assert "it reads: class Point:" in err
    _, objects, err = chat("class Point:", "/edit", "")
    assert len(objects) == 1
    assert "nothing was changed" in err
    _, objects, err = chat("class Point:", "/edit")
    assert len(objects) == 1, "the input ended before the new words"


def test_undo_clear_and_system_change_what_the_model_reads(chat: Chat) -> None:
    _, (_, _, after_undo), _ = chat("class Point:", "def greet", "/undo", "/undo", "for index")
    _, (fresh,), _ = chat("for index")
    _, (_, after_clear), _ = chat("class Point:", "/clear", "for index")
    assert after_undo["tokens"] == after_clear["tokens"] == fresh["tokens"]
    _, (told,), err = chat("/system", "/system Be brief.", "for index")
    _, (by_flag,), _ = chat("for index", flags=("--system", "Be brief."))
    assert told["tokens"] == by_flag["tokens"]
    assert told["usage"] == by_flag["usage"] != fresh["usage"]
    assert err.splitlines() == ["there is no system message", "system: Be brief."]
    _, (_, removed), _ = chat("def greet", "/clear", '/system ""', "for index", flags=("--system", "Be brief."))
    assert removed["tokens"] == fresh["tokens"]


def test_a_chat_is_saved_and_loaded(chat: Chat, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    _, (_, second), _ = chat("class Point:", f"/save {path}", "for index", flags=("--system", "Be brief."))
    assert [item["role"] for item in json.loads(path.read_text("utf-8"))] == ["system", "user", "assistant"]
    _, (on,), err = chat(f"/load {path}", "for index")
    assert on["tokens"] == second["tokens"]
    assert "3 messages loaded" in err
    path.write_text('[{"role": "user", "content": "def greet"}]')
    _, (answered,), err = chat(f"/load {path}", "/regenerate", flags=("--temperature", "0"))
    _, (fresh,), _ = chat("def greet")
    assert answered["tokens"] == fresh["tokens"]
    assert "/regenerate answers" in err


def test_speculation_is_switched_and_changes_no_token(chat: Chat) -> None:
    code, (on, off, two, again), err = chat(
        "def greet",
        "/speculative off",
        "/regenerate",
        "/speculative 2",
        "/regenerate",
        "/speculative on",
        "/regenerate",
    )
    assert code == 0
    assert on["tokens"] == off["tokens"] == two["tokens"] == again["tokens"]
    assert len(on["stats"]["drafted_by_position"]) == 4
    assert off["stats"]["drafted"] == 0
    assert len(two["stats"]["drafted_by_position"]) == 2
    assert "plain decoding" in err


def test_without_a_drafter_speculation_cannot_be_switched_on(
    surefoot_program: Program, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "/speculative on", "def greet")
    ran = surefoot_program("chat", model, "--json", "--method", "none", "--max-tokens", "4")
    error, answer = map(json.loads, ran.out.splitlines())
    assert ran.code == 2
    assert "none was loaded" in error["error"]
    assert answer["stats"]["drafted"] == 0


def test_a_parameter_that_is_set_holds_from_then_on(chat: Chat) -> None:
    _, (short, longer), err = chat("def greet", "/set max_tokens 20", "/set max_tokens", "/regenerate")
    assert (len(short["tokens"]), len(longer["tokens"])) == (12, 20)
    assert err.count("max_tokens 20") == 2
    _, _, err = chat("/set")
    assert [line.split()[0] for line in err.splitlines()] == list(NAMES)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/nope", "found '/nope'; expected one of /regenerate"),
        ("/regenerate now", "expected nothing after it"),
        ("/regenerate", "Say something first"),
        ("/undo", "Say something first"),
        ("/edit", "Say something first"),
        ("/edit x", "found 'x'"),
        ("/speculative maybe", "found 'maybe'"),
        ("/speculative 65", "num_draft is 65; expected"),
        ("/save", "expected /save FILE"),
        ("/save /no/such/folder/file", "expected a file that can be written"),
        ("/save ~no-such-user/file", "expected a file that can be written"),
        ("/load /no/such/file", "expected a readable UTF-8 file"),
        ("/set magic 1", "found 'magic'; expected one of temperature"),
    ],
)
def test_a_command_that_cannot_be_obeyed_says_why_and_the_chat_goes_on(chat: Chat, line: str, message: str) -> None:
    code, (error, answer), _ = chat(line, "def greet")
    assert code == 2, "a script learns that not everything could be served"
    assert message in error["error"]
    assert answer["answer"] == 1


def test_an_edit_of_a_message_that_is_not_there_names_those_that_are(chat: Chat) -> None:
    _, (_, error), _ = chat("def greet", "/edit 2")
    assert "expected one of your messages, 1 to 1" in error["error"]


def test_help_names_every_command_and_quit_leaves(chat: Chat) -> None:
    code, objects, err = chat("/help", "/quit", "def greet")
    assert (code, objects) == (0, [])
    assert {line.split()[0] for line in err.splitlines() if line.startswith("/")} >= {"/stats", "/edit", "/quit"}


def test_a_bundled_model_completes_unless_told_otherwise(
    surefoot_program: Program, model: str, monkeypatch: pytest.MonkeyPatch, chat: Chat
) -> None:
    def answer(name: str, *flags: str) -> tuple[dict[str, object], str]:
        typed(monkeypatch, "def add(a, b):")
        ran = surefoot_program("chat", name, "--json", "--max-tokens", "4", "--seed", "1", *flags)
        return json.loads(ran.out), ran.err

    completed, told = answer("pebble")
    templated, untold = answer("pebble", "--no-raw")
    assert "completion mode" in told
    assert "completion mode" not in untold
    assert completed["usage"]["prompt_tokens"] < templated["usage"]["prompt_tokens"]
    assert "completion mode" not in answer(model)[1]
    assert "completion mode" in answer(model, "--raw")[1]


def test_an_empty_line_lets_a_model_that_completes_go_on(chat: Chat) -> None:
    _, (first, second), _ = chat("", "def greet", "", flags=("--raw",))
    _, (whole,), _ = chat("def greet", flags=("--raw",))
    assert first["tokens"] == whole["tokens"]
    assert second["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"]


def test_what_stands_between_fences_is_no_command(chat: Chat) -> None:
    _, (answer,), _ = chat('"""/quit"""')
    assert answer["answer"] == 1
