"""A chat without its terminal: every answer is the one a fresh request gives, whatever came before it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.chatting import typed
from tests.cli.conftest import VOCABULARY
from tests.factories import make_checkpoint, make_tokenizer
from tests.tables import TableTarget
from tests.text.vocabularies import byte_level

from surefoot import Engine, OptionError, PromptError, RequestError, SamplingParams, SpeculativeOptions, load
from surefoot.cli.chat.loop import Loop, interrupting
from surefoot.cli.chat.screen import TextScreen
from surefoot.cli.chat.session import Session
from surefoot.cli.chat.transcript import Transcript
from surefoot.drafters.lookup import Lookup
from surefoot.request import Result, Stream
from surefoot.types import Event, Tokens

PLAIN = SpeculativeOptions(num_draft=0)
Said = list[tuple[str, str]]
Engines = Callable[[str, str], Engine]


@pytest.fixture(scope="module")
def engines(model: str) -> Engines:
    """Row-exact engines by model and drafter, each loaded once."""
    loaded: dict[tuple[str, str], Engine] = {}

    def engine(target: str, drafter: str) -> Engine:
        names = {"tiny": (model, model), "pebble": ("pebble", "pebble-draft")}[target]
        key = (target, drafter)
        if key not in loaded:
            loaded[key] = load(names[0], names[1] if drafter == "draft" else drafter, exact="require")
        return loaded[key]

    return engine


def read(stream: Stream) -> None:
    for _ in stream:
        pass


class Checked:
    """Drives a session, keeps its own account of what was said, and compares each answer with a fresh plain request."""

    def __init__(self, engine: Engine, session: Session) -> None:
        self.engine = engine
        self.session = session
        self.said: Said = []
        self.system = ""
        self.attempt = 0
        self.results: list[Result] = []

    def say(self, text: str) -> None:
        self.said.append(("user", text))
        self.attempt = 0
        self._check(self.session.say(text))

    def regenerate(self) -> None:
        self.said.pop()
        self.attempt += 1
        self._check(self.session.regenerate())

    def edit(self, text: str, number: int | None = None) -> None:
        places = [place for place, (role, _) in enumerate(self.said) if role == "user"]
        self.said = [*self.said[: places[number - 1 if number else -1]], ("user", text)]
        self.attempt = 0
        self._check(self.session.edit(text, number))

    def undo(self) -> None:
        self.said = self.said[:-2]
        self.session.transcript = self.session.transcript.undone()

    def tell_system(self, text: str) -> None:
        self.system = text
        self.session.transcript = self.session.transcript.with_system(text)

    def _check(self, stream: Stream) -> None:
        read(stream)
        result = self.session.keep(stream)
        if self.session.completing:
            text = "".join([self.system + "\n" if self.system else "", *(text for _, text in self.said)])
            prompt: object = text
        else:
            system = [{"role": "system", "content": self.system}] if self.system else []
            prompt = [*system, *({"role": role, "content": text} for role, text in self.said)]
        sampling = self.session.sampling
        fresh = self.engine.generate(prompt, replace(sampling, seed=sampling.seed + self.attempt), speculative=PLAIN)
        assert result.seed == fresh.seed
        assert result.tokens == fresh.tokens
        assert result.text == fresh.text
        assert result.stats.fallbacks == 0
        assert result.stats.strict
        self.said.append(("assistant", result.text))
        self.results.append(result)


def whole_chat(chat: Checked) -> None:
    """Every way to get an answer, in an order that makes the cache go back and forth."""
    chat.say("def greet(name):\n")
    chat.say("for index, value in enumerate(values):\n")
    chat.regenerate()
    chat.regenerate()
    chat.edit("for index in values:\n")
    chat.say("class Point:\n")
    chat.edit("def greet(name, name):\n", 1)
    chat.say("The quick brown fox")
    chat.undo()
    chat.say("The quick brown dog")
    chat.session.speculating = False
    chat.regenerate()
    chat.session.speculating = True
    chat.tell_system("Be brief.")
    chat.say("return")
    chat.tell_system("")
    chat.edit("return self", 2)


@pytest.mark.parametrize(
    ("target", "completing", "drafter", "temperature"),
    [
        ("tiny", False, "lookup", 0.0),
        ("tiny", False, "lookup", 0.8),
        ("tiny", False, "draft", 0.0),
        ("tiny", False, "draft", 0.8),
        ("tiny", True, "lookup", 0.8),
        ("tiny", True, "draft", 0.0),
        ("pebble", True, "lookup", 0.0),
        ("pebble", True, "draft", 0.8),
    ],
)
def test_each_answer_is_the_one_a_fresh_request_gives(
    engines: Engines, target: str, completing: bool, drafter: str, temperature: float
) -> None:
    engine = engines(target, drafter)
    # Few tokens to choose from, so that a random model repeats itself and lookup finds something.
    cold = 0.1 if target == "tiny" and drafter == "lookup" and temperature else temperature
    sampling = SamplingParams(temperature=cold, seed=5, max_tokens=12 if target == "pebble" else 24, ignore_eos=True)
    chat = Checked(engine, Session(engine, sampling, SpeculativeOptions(), completing=completing))
    whole_chat(chat)
    totals, results = chat.session.totals, chat.results
    assert totals.answers == len(results)
    assert totals.accepted == sum(result.stats.accepted for result in results) > 0
    assert totals.tokens == sum(len(result.tokens) for result in results)
    assert totals.rounds == sum(result.stats.rounds for result in results)
    assert totals.cached_tokens == sum(result.usage.cached_tokens for result in results) > 0
    assert sum(totals.accepted_by_position) == totals.accepted
    assert totals.fallbacks == 0
    assert results[2].usage.cached_tokens == results[2].usage.prompt_tokens - 1, "only the last row is needed again"
    assert results[1].tokens != results[2].tokens or not temperature


class KeepsWhatFollowed(Session):
    """Takes an edited message back into a transcript that still holds the answers to the old one."""

    def edit(self, text: str, number: int | None = None) -> Stream:
        return self._answer(self.transcript.say("user", text), 0)


class KeepsEmittedTokens(Session):
    """Goes on from the ids that were emitted, where the template renders their text, which may become other ids."""

    known: Tokens = ()

    def encode(self, transcript: Transcript) -> Tokens:
        tokens = super().encode(transcript)
        return (*self.known, *tokens[len(self.known) :])

    def keep(self, stream: Stream) -> Result:
        result = super().keep(stream)
        self.known = (*super().encode(self._pending), *result.tokens)
        return result


class KeepsTheSeed(Session):
    """Answers again from the same seed."""

    def regenerate(self) -> Stream:
        return self._answer(self.transcript.unanswered(), 0)


@pytest.mark.parametrize("wrong", [KeepsWhatFollowed, KeepsEmittedTokens, KeepsTheSeed])
def test_a_chat_that_goes_on_from_something_else_is_noticed(engines: Engines, wrong: type[Session]) -> None:
    engine = engines("tiny", "draft")
    sampling = SamplingParams(temperature=0.8, seed=5, max_tokens=28, ignore_eos=True)
    with pytest.raises(AssertionError):
        whole_chat(Checked(engine, wrong(engine, sampling, SpeculativeOptions())))


def test_a_full_context_is_told_and_loses_nothing(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "short", vocab_size=VOCABULARY, max_position_embeddings=64)
    make_tokenizer(path, VOCABULARY)
    session = Session(load(path), SamplingParams(max_tokens=3), SpeculativeOptions(), completing=True)
    first = session.say("class Point")
    read(first)
    session.keep(first)
    before = session.transcript
    with pytest.raises(PromptError, match=r"the context is full: .* 64\. Nothing is lost: /undo"):
        session.say("for index, value in enumerate(values): " * 4)
    assert session.transcript == before
    session.sampling = SamplingParams(max_tokens=200, ignore_eos=True)
    last = session.say(" x")
    read(last)
    assert session.keep(last).finish_reason == "context"
    session.transcript = session.transcript.undone()
    again = session.say(" y")
    assert next(again) is not None
    session.keep(again)


def test_a_chat_needs_a_tokenizer_and_a_template_or_completion(engines: Engines, other_tokenizer: str) -> None:
    sampling, speculative = SamplingParams(), SpeculativeOptions()
    with pytest.raises(RequestError, match=r"no tokenizer\.json"):
        Session(Engine(engines("tiny", "lookup").target), sampling, speculative)
    with pytest.raises(OptionError, match=r"no chat template.*--raw"):
        Session(load(other_tokenizer), sampling, speculative)
    Session(load(other_tokenizer), sampling, speculative, completing=True)


class Interrupting(TextScreen):
    """A screen at which somebody presses Ctrl-C after some tokens, once or more often."""

    def __init__(self, after: int, times: int = 1) -> None:
        super().__init__()
        self.after, self.times, self.shown = after, times, 0

    def show(self, event: Event) -> None:
        super().show(event)
        self.shown += 1
        if self.shown == self.after:
            for _ in range(self.times):
                signal.raise_signal(signal.SIGINT)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT as a program has it that nobody started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(
    engines: Engines,
    interruptible: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine = engines("pebble", "draft")
    session = Session(engine, SamplingParams(max_tokens=60), SpeculativeOptions(), completing=True)
    assert Loop(session, typed(monkeypatch, "def add(a, b):"), Interrupting(after=6)).run()
    (asked, answer) = session.transcript.messages
    whole = engine.generate(asked.content, session.sampling, speculative=PLAIN)
    assert 6 <= session.totals.tokens < 20
    assert answer.content
    assert whole.text.startswith(answer.content)
    out, err = capsys.readouterr()
    assert out == answer.content + "\n"
    assert "stopped" in err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    on = session.say("\n    return")
    read(on)
    fresh = engine.generate("def add(a, b):" + answer.content + "\n    return", session.sampling, speculative=PLAIN)
    assert session.keep(on).tokens == fresh.tokens


def test_an_answer_that_fails_is_told_below_what_was_said_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = byte_level()
    target = TableTarget(tokenizer.vocab_size, 400)
    target.fail_at = 4
    session = Session(Engine(target, Lookup(), tokenizer), SamplingParams(), SpeculativeOptions(), completing=True)
    assert not Loop(session, typed(monkeypatch, "ab", "/stats"), TextScreen()).run()
    out, err = capsys.readouterr()
    assert out.endswith("\n")
    assert "error: the target failed" in err
    assert session.transcript == Transcript()
    target.fail_at = -1
    assert Loop(session, typed(monkeypatch, "ab"), TextScreen()).run()
    fresh = Engine(target, tokenizer=tokenizer).generate("ab", session.sampling)
    assert session.transcript.messages[-1].content == fresh.text


def test_a_second_ctrl_c_leaves(engines: Engines, interruptible: None, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(engines("pebble", "draft"), SamplingParams(), SpeculativeOptions(), completing=True)
    with pytest.raises(KeyboardInterrupt):
        Loop(session, typed(monkeypatch, "def add(a, b):"), Interrupting(after=6, times=2)).run()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    asked: list[int] = []
    with interrupting(lambda: asked.append(1)):
        signal.raise_signal(signal.SIGINT)
    assert asked == [1]
