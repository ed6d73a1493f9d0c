"""What is typed and what was said: turns, parameters and transcripts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.chatting import typed

from surefoot import OptionError, SamplingParams
from surefoot.cli.chat.parameters import changed, shown
from surefoot.cli.chat.reader import Turn
from surefoot.cli.chat.transcript import Message, Transcript
from surefoot.errors import PromptError


@pytest.mark.parametrize(
    ("lines", "turns"),
    [
        (["one", "two"], [Turn("one", False), Turn("two", False)]),
        (["one\\", "two\\", "three"], [Turn("one\ntwo\nthree", False)]),
        (["one\\"], [Turn("one\n", False)]),
        (['"""one', "", 'two"""', "x"], [Turn("one\n\ntwo", True), Turn("x", False)]),
        (['"""', "one", "", '"""'], [Turn("one\n", True)]),
        (['"""/undo"""'], [Turn("/undo", True)]),
        (['""""""'], [Turn("", True)]),
        (['"""open', "to the end"], [Turn("open\nto the end", True)]),
        (["one\r"], [Turn("one", False)]),
        ([], []),
    ],
)
def test_turns_are_lines_continued_lines_or_fenced(
    monkeypatch: pytest.MonkeyPatch, lines: list[str], turns: list[Turn]
) -> None:
    reader = typed(monkeypatch, *lines)
    read_turns = []
    while (turn := reader.read()) is not None:
        read_turns.append(turn)
    assert read_turns == turns


def test_a_line_that_is_no_text_is_refused_and_the_next_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = typed(monkeypatch, "caf\udce9", "tea")
    with pytest.raises(PromptError, match="expected UTF-8"):
        reader.read()
    assert reader.read() == Turn("tea", False)


def test_every_parameter_is_set_to_what_it_already_is() -> None:
    other = SamplingParams(
        temperature=0.5,
        stop_token_ids=(3, 4),
        seed=7,
        logit_bias={3: -5.0, 4: 0.5},
        stop=("\n\n", "1"),
        allowed_tokens=(8,),
    )
    for sampling in (SamplingParams(), other):
        for line in shown(sampling):
            name, _, value = line.partition(" ")
            assert changed(sampling, name, value) == sampling


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("temperature", "1", 1),
        ("temperature", "0.7", 0.7),
        ("top_k", "40", 40),
        ("seed", "none", None),
        ("seed", "9", 9),
        ("ignore_eos", "true", True),
        ("stop_token_ids", "5", (5,)),
        ("stop_token_ids", "[5, 6]", (5, 6)),
        ("stop_token_ids", "none", ()),
        ("stop", "END", ("END",)),
        ("stop", "5", ("5",)),
        ("stop", '["a b", "c"]', ("a b", "c")),
        ("stop", '"\\n"', ("\n",)),
        ("allowed_tokens", "[5, 6]", (5, 6)),
        ("allowed_tokens", "none", None),
        ("logit_bias", "5=-1.5 6=2", {5: -1.5, 6: 2.0}),
        ("logit_bias", "none", {}),
    ],
)
def test_parameters_are_read_by_their_kind(name: str, text: str, value: object) -> None:
    assert getattr(changed(SamplingParams(stop_token_ids=(9,), seed=3), name, text), name) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("temperature", "warm"),
        ("temperature", "-1"),
        ("temperature", "true"),
        ("top_k", "1.5"),
        ("top_k", "none"),
        ("ignore_eos", "1"),
        ("ignore_eos", "yes"),
        ("stop_token_ids", "[5, true]"),
        ("stop_token_ids", "x"),
        ("tempreature", "1"),
        ("logit_bias", "{}"),
        ("logit_bias", "5"),
        ("stop", '["a", 5]'),
        ("stop", '""'),
        ("allowed_tokens", "[]"),
        ("sample_index", "1"),
    ],
)
def test_values_of_another_kind_are_refused(name: str, text: str) -> None:
    with pytest.raises(OptionError, match="expected"):
        changed(SamplingParams(), name, text)


TEXTS = st.text(max_size=6)
TRANSCRIPTS = st.builds(
    lambda system, pairs: Transcript(
        (
            *([Message("system", system)] if system else []),
            *(Message(role, text) for pair in pairs for role, text in zip(("user", "assistant"), pair, strict=True)),
        )
    ),
    TEXTS,
    st.lists(st.tuples(TEXTS, TEXTS), max_size=4),
)


@given(TRANSCRIPTS, TEXTS, TEXTS)
def test_an_exchange_that_is_undone_was_never_there(transcript: Transcript, text: str, answer: str) -> None:
    longer = transcript.say("user", text).say("assistant", answer)
    assert longer.undone() == transcript
    assert longer.unanswered() == transcript.say("user", text)
    assert longer.cleared() == transcript.cleared()


def user_messages(transcript: Transcript) -> tuple[str, ...]:
    return tuple(message.content for message in transcript.messages if message.role == "user")


@given(TRANSCRIPTS, TEXTS, st.integers(1, 4))
def test_an_edit_keeps_what_came_before_and_nothing_after(transcript: Transcript, text: str, number: int) -> None:
    users = user_messages(transcript)
    if number > len(users):
        with pytest.raises(OptionError):
            transcript.edited(text, number)
        return
    edited = transcript.edited(text, number)
    assert user_messages(edited) == (*users[: number - 1], text)
    assert edited.messages[:-1] == transcript.messages[: len(edited.messages) - 1]


@given(TRANSCRIPTS, TEXTS)
def test_a_system_message_is_one_and_first(transcript: Transcript, text: str) -> None:
    changed_system = transcript.with_system(text)
    assert [message.content for message in changed_system.messages if message.role == "system"] == [text] * bool(text)
    assert [message.role for message in changed_system.messages[1:]].count("system") == 0
    assert user_messages(changed_system) == user_messages(transcript)


@given(TRANSCRIPTS)
def test_what_was_dumped_is_parsed(transcript: Transcript) -> None:
    assert Transcript.parse(transcript.dump(), "file") == transcript


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        '["hi"]',
        '[{"role": "user"}]',
        '[{"role": "tool", "content": "x"}]',
        '[{"role": [], "content": ""}]',
        '[{"role": "user", "content": 1}]',
        '[{"role": "user", "content": ""}, {"role": "system", "content": ""}]',
    ],
)
def test_a_file_that_is_no_chat_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"file.*expected a list of objects with a role"):
        Transcript.parse(text, "file")
