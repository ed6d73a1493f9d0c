"""Every way to end a request at every token that plain decoding emits: speculation ends it at the same one.

Texts have characters split between tokens, with a byte-level and with a SentencePiece vocabulary; tables stand for the
models, so that every row is exact and the cache can be read. One real pair follows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import pytest
from tests.guesses import Guesser, oracle
from tests.tables import TableCache, TableTarget
from tests.text.vocabularies import CHARACTER
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models
from torch import Tensor

import surefoot
from surefoot import Engine, SamplingParams, SpeculativeOptions
from surefoot.drafters.draft_model import DraftModel
from surefoot.drafters.lookup import Lookup
from surefoot.protocols import DrafterModel
from surefoot.request import Result
from surefoot.stops import RequestStops
from surefoot.text import Tokenizer
from surefoot.types import Event, FinishReason, Verdict

PROMPT = (3, 4, 5, 3, 4)
LENGTH = 14
NUM_DRAFT = 4
SEED = 7
DRAFTERS = ("none", "lookup", "draft model", "oracle")
TEMPERATURES = (0.0, 0.8)


def byte_level() -> Tokenizer:
    pieces = [b"a", b"b", b"ab", b" ", b"\xc3", b"\xa9", "é".encode(), b"\xf0\x9f", b"\x98\x80", b"b a", b"x\xf0\x9f"]
    names = ["".join(CHARACTER[byte] for byte in piece) for piece in pieces]
    core = Core(models.BPE(vocab={name: token for token, name in enumerate(names)}, merges=[]))
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(["<s>"])
    return Tokenizer(core)


def sentencepiece() -> Tokenizer:
    pieces = ["a", "b", "ab", "▁a", "▁", *(f"<0x{byte:02X}>" for byte in "é🙂".encode()), "🙂", "ba"]
    core = Core(models.BPE(vocab={piece: token for token, piece in enumerate(pieces)}, merges=[]))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    core.decoder = decoders.Sequence(steps)
    core.add_special_tokens(["<s>"])
    return Tokenizer(core)


TOKENIZERS = {"byte level": byte_level(), "SentencePiece": sentencepiece()}


class Remembered(TableTarget):
    """A table that works each row out once; a blurred one is a draft model, mostly of the other's opinion."""

    def __init__(self, vocab_size: int, blur: float = 0.0) -> None:
        super().__init__(vocab_size, seed=SEED, scale=3.0, order=2)
        self.noise = TableTarget(vocab_size, seed=SEED + 1, scale=blur, order=2)
        self.rows: dict[tuple[int, ...], Tensor] = {}

    def row(self, context: Sequence[int]) -> Tensor:
        past = tuple(context[-2:])
        if past not in self.rows:
            self.rows[past] = super().row(past) + self.noise.row(past)
        return self.rows[past]


TARGETS = {kind: Remembered(tokenizer.vocab_size) for kind, tokenizer in TOKENIZERS.items()}
DRAFTS = {kind: Remembered(tokenizer.vocab_size, blur=0.5) for kind, tokenizer in TOKENIZERS.items()}


@dataclass(frozen=True)
class End:
    """What may end a request."""

    max_tokens: int = LENGTH
    eos: int | None = None
    stop_id: int | None = None
    stop: tuple[str, ...] = ()
    min_tokens: int = 0

    def params(self, temperature: float) -> SamplingParams:
        return SamplingParams(
            temperature=temperature,
            seed=3,
            max_tokens=self.max_tokens,
            stop=self.stop,
            stop_token_ids=() if self.stop_id is None else (self.stop_id,),
            min_tokens=self.min_tokens,
            logprobs=1,
        )


@dataclass(frozen=True)
class Pair:
    """Everything that answers, but for the drafter."""

    kind: str
    temperature: float

    def engine(self, name: str, end: End, answer: Sequence[int] = ()) -> Engine:
        drafters: dict[str, DrafterModel | None] = {
            "none": None,
            "lookup": Lookup(min_match=1),
            "draft model": DraftModel(DRAFTS[self.kind]),
            "oracle": Guesser(oracle(answer, len(PROMPT))),
        }
        eos = () if end.eos is None else (end.eos,)
        return Engine(TARGETS[self.kind], drafters[name], TOKENIZERS[self.kind], eos_token_ids=eos)

    def run(self, name: str, end: End, answer: Sequence[int] = ()) -> tuple[Result, list[int]]:
        """A request's result, and what its cache holds in the end."""
        options = SpeculativeOptions(num_draft=NUM_DRAFT)
        engine = self.engine(name, end, answer)
        with engine.stream(PROMPT, end.params(self.temperature), speculative=options) as stream:
            for _ in stream:
                pass
        cache_left = stream._request.decoding.cache
        assert isinstance(cache_left, TableCache)
        assert cache_left.open_tokens == []
        return stream.result, cache_left.tokens


@cache
def unended(pair: Pair) -> Result:
    """What plain decoding goes on to say; longer than any request, so that drafts reach past every end."""
    return pair.run("none", End(max_tokens=3 * LENGTH))[0]


def account(result: Result) -> tuple[object, ...]:
    """All that may not depend on the drafter: everything but rounds, origins and statistics."""
    events = [(event.token, event.text, event.finish_reason, event.logprobs) for event in result.events]
    return result.text, result.tokens, result.finish_reason, result.stop_reason, result.usage, events


def check(pair: Pair, end: End, expected: Result, name: str) -> int:
    """That ``name`` ends as plain decoding does and leaves nothing behind; the drafts accepted."""
    result, cached = pair.run(name, end, unended(pair).tokens)
    assert account(result) == account(expected)
    assert cached == [*PROMPT, *result.tokens][: -1 if result.tokens else 0]
    assert result.usage.completion_tokens == len(result.events) == len(result.tokens)
    assert "".join(event.text for event in result.events) == result.text
    assert result.stats.fallbacks == 0
    assert result.stats.accepted == sum(event.origin == "draft" for event in result.events), "none past the cut count"
    return result.stats.accepted


def sweep(pair: Pair, ended: Sequence[tuple[End, Result]]) -> None:
    for end, expected in ended:
        check(pair, end, expected, "oracle")


def ends(pair: Pair) -> Iterator[End]:
    """Every token declared EOS, stop id, and the beginning of stop strings; alone and at the limit."""
    events = unended(pair).events
    for place in range(LENGTH):
        token = events[place].token
        strings = ["".join(event.text for event in events[place : place + size]) for size in (1, 2, 3)]
        for max_tokens in (LENGTH, place + 1):
            yield End(max_tokens=max_tokens, eos=token)
            yield End(max_tokens=max_tokens, stop_id=token)
            for string in filter(None, strings):
                yield End(max_tokens=max_tokens, stop=(string,))
        yield End(eos=events[0].token, stop_id=token, stop=tuple(filter(None, strings)), min_tokens=place % 7)


def plainly_ended(pair: Pair, end: End) -> tuple[tuple[int, ...], str | None, FinishReason, int | str | None]:
    """Ids, text, and both reasons, found by looking at all that plain decoding says; no text where the end itself may
    bring some to light."""
    events = unended(pair).events
    text = ""
    for count, event in enumerate(events[: end.max_tokens], start=1):
        tokens = tuple(event.token for event in events[:count])
        if event.token in (end.eos, end.stop_id):
            return tokens, None, "stop", end.stop_id if event.token == end.stop_id else None
        text += event.text
        found = [(text.index(stop), -len(stop), stop) for stop in end.stop if stop in text]
        if found:
            begin, _, stop = min(found)
            return tokens, text[:begin], "stop", stop
    return tokens, None, "length", None


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_every_drafter_ends_where_plain_decoding_ends(kind: str, temperature: float) -> None:
    pair = Pair(kind, temperature)
    accepted = dict.fromkeys(DRAFTERS, 0)
    reasons = set()
    for end in ends(pair):
        expected, _ = pair.run("none", end)
        reasons.add((expected.finish_reason, type(expected.stop_reason)))
        if not end.min_tokens:
            tokens, text, finish, stop = plainly_ended(pair, end)
            shown = (expected.finish_reason, expected.stop_reason)
            assert expected.tokens == tokens
            assert shown == (finish, stop) or expected.stop_reason in end.stop, "the end may complete a stop string"
            assert text is None or expected.text == text
            assert not any(string in expected.text for string in end.stop)
        for name in DRAFTERS:
            accepted[name] += check(pair, end, expected, name)
    assert accepted.pop("none") == 0
    assert min(accepted.values()) > 0, accepted
    assert reasons == {("stop", int), ("stop", str), ("stop", type(None)), ("length", type(None))}


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_every_drafter_meets_max_tokens_from_zero_on(kind: str, temperature: float) -> None:
    pair = Pair(kind, temperature)
    for max_tokens in range(NUM_DRAFT + 4):
        end = End(max_tokens=max_tokens)
        expected, _ = pair.run("none", end)
        assert expected.tokens == unended(pair).tokens[:max_tokens]
        assert expected.finish_reason == "length"
        accepted = [check(pair, end, expected, name) for name in DRAFTERS]
        assert (accepted[DRAFTERS.index("oracle")] > 0) == (max_tokens > 2)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_an_end_that_is_only_drafted_ends_nothing(kind: str, temperature: float) -> None:
    """A drafter that says EOS, or a stop string, in every round (openvino.genai 3293)."""
    pair = Pair(kind, temperature)
    plain = unended(pair)
    unsaid = [token for token in range(TARGETS[kind].vocab_size) if token not in plain.tokens[:LENGTH]]
    for end in (End(eos=unsaid[0]), End(stop_id=unsaid[-1]), End(stop=("ab" * 9,))):
        expected, _ = pair.run("none", end)
        assert expected.tokens == plain.tokens[:LENGTH]
        engine = pair.engine("none", end)
        drafter = Guesser(lambda context, end=end: [[end.eos or end.stop_id or 2] * NUM_DRAFT])
        ended = Engine(engine.target, drafter, engine.tokenizer, eos_token_ids=engine.eos_token_ids)
        result = ended.generate(PROMPT, end.params(temperature))
        assert account(result) == account(expected)
        assert result.stats.drafted > 0


@pytest.mark.parametrize("place", range(0, 9, 2))
@pytest.mark.parametrize("name", DRAFTERS)
def test_cancelling_from_another_thread_ends_with_the_token_it_came_in(name: str, place: int) -> None:
    pair = Pair("SentencePiece", 0.8)
    plain = unended(pair)

    def cancel(event: Event) -> None:
        if len(stream._request.stops.events) == place:
            thread = threading.Thread(target=stream.cancel)
            thread.start()
            thread.join()

    params = End(stop=("a" * 20,)).params(0.8)
    stream = pair.engine(name, End(), plain.tokens).stream(PROMPT, params, on_token=cancel)
    assert len(list(stream)) == place + 1
    cut, _ = pair.run("none", End(max_tokens=place + 1))
    assert (stream.result.text, stream.result.tokens) == (cut.text, cut.tokens)
    assert stream.result.finish_reason == "cancelled"
    cache_left = stream._request.decoding.cache
    assert isinstance(cache_left, TableCache)
    assert cache_left.tokens == [*PROMPT, *plain.tokens[:place]]


def test_texts_split_characters_between_tokens() -> None:
    """The sweep would be easy without: some tokens complete no text, and some ends hold back what is no character."""
    for kind in TOKENIZERS:
        events = [event for t in TEMPERATURES for event in unended(Pair(kind, t)).events]
        assert any(event.text == "" for event in events)
        assert any(len(event.text) > 1 for event in events)


@pytest.mark.parametrize("defect", ["one token late", "only at the end of a round", "never"])
def test_stops_that_cut_elsewhere_are_seen(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the sweep fails for each of them."""
    pair = Pair("byte level", 0.0)
    sound = [(end, pair.run("none", end)[0]) for end in ends(pair)]
    take = RequestStops.take

    def wrong(self: RequestStops, verdict: Verdict, logits: Tensor) -> tuple[int, FinishReason | None]:
        count, reason = take(self, verdict, logits)
        size = len(verdict.emitted)
        if defect == "one token late":
            return min(count + (reason is not None), size), reason
        if defect == "only at the end of a round":
            return (size if reason == "stop" else count), reason
        return count, reason if reason != "stop" or self.remaining == 0 else None

    monkeypatch.setattr(RequestStops, "take", wrong)
    with pytest.raises(AssertionError):
        sweep(pair, sound)


@cache
def pebble() -> Engine:
    return surefoot.load("pebble", "pebble-draft", dtype="float32", exact="require")


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_real_models_end_where_plain_decoding_ends(temperature: float) -> None:
    engine, prompt = pebble(), "for index in range(10):\n    total = total + index\n    total ="
    num_prompt = len(engine.encode(prompt))
    accepted = dict.fromkeys(("lookup", "draft"), 0)
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=12, ignore_eos=True)
    plain = engine.generate(prompt, params, speculative=SpeculativeOptions(method="none"))
    string = "".join(event.text for event in plain.events[8:10])
    for change in ({"stop_token_ids": (plain.tokens[5],)}, {"stop": (string,)}, {"max_tokens": 7}):
        ended = replace(params, **change)  # type: ignore[arg-type]
        expected = engine.generate(prompt, ended, speculative=SpeculativeOptions(method="none"))
        assert expected.tokens == plain.tokens[: len(expected.tokens)]
        assert expected.finish_reason == ("length" if ended.max_tokens == 7 else "stop")
        for method in accepted:
            with engine.stream(prompt, ended, speculative=SpeculativeOptions(method=method)) as stream:
                for _ in stream:
                    pass
            assert account(stream.result) == account(expected)
            assert stream._request.decoding.cache.length == num_prompt + len(expected.tokens) - 1
            assert stream.result.stats.fallbacks == 0
            accepted[method] += stream.result.stats.accepted
    assert min(accepted.values()) > 0, accepted
