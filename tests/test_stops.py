"""What ends a request, token by token, and which text its events carry."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.text.vocabularies import KINDS

from surefoot.stops import Limits, RequestStops
from surefoot.text import StreamDecoder, Tokenizer
from surefoot.types import Event, FinishReason, Tokens, Verdict

ROWS = torch.zeros(8, 4)


class Pairs:
    """A text stream that shows every second token, together with the one it held back; id 9 is a stop."""

    def __init__(self) -> None:
        self.held: list[int] = []

    def feed(self, tokens: Tokens) -> str:
        self.held += tokens
        return self.flush() if len(self.held) == 2 else ""

    def flush(self) -> str:
        text = "".join(map(str, self.held))
        self.held = []
        return text


def stops_of(
    max_tokens: int = 20,
    min_tokens: int = 0,
    on_token: Callable[[Event], bool | None] | None = None,
    *,
    at_context_end: bool = False,
) -> RequestStops:
    limits = Limits(stop_ids=(9,), max_tokens=max_tokens, at_context_end=at_context_end, min_tokens=min_tokens)
    return RequestStops(limits, Pairs(), on_token)


def run_of(*tokens: int) -> Verdict:
    """A round that emits ``tokens``, all but the last accepted drafts."""
    count = len(tokens)
    return Verdict(
        path=tuple(range(count)),
        fed=(7, *tokens[:-1]),
        next_token=tokens[-1],
        next_origin="bonus",
        num_drafted=count - 1,
    )


def texts(stops: RequestStops) -> list[str]:
    return [event.text for event in stops.events]


def test_text_held_back_comes_with_the_last_event() -> None:
    length = stops_of(max_tokens=3)
    assert length.take(run_of(1, 2, 3), ROWS) == (3, "length")
    assert texts(length) == ["", "12", "3"]
    stopped = stops_of()
    assert stopped.take(run_of(1, 9, 3), ROWS) == (2, "stop")
    assert texts(stopped) == ["", "1"]
    cancelled = stops_of(on_token=lambda event: event.token != 3)
    assert cancelled.take(run_of(1, 2, 3, 4), ROWS) == (3, "cancelled")
    assert texts(cancelled) == ["", "12", "3"]


def test_the_terminating_id_is_an_id_and_no_text() -> None:
    stops = stops_of()
    assert stops.take(run_of(1, 2), ROWS) == (2, None)
    assert stops.take(run_of(3, 4, 9, 5), ROWS) == (3, "stop")
    assert [event.token for event in stops.events] == [1, 2, 3, 4, 9]
    assert "".join(texts(stops)) == "1234"
    assert [event.finish_reason for event in stops.events] == [None] * 4 + ["stop"]


@pytest.mark.parametrize("min_tokens", range(6))
def test_a_stop_id_counts_from_min_tokens_on(min_tokens: int) -> None:
    """``min_tokens`` come before the terminating id may; the sampler forbids it until then."""
    for place in range(6):
        stops = stops_of(min_tokens=min_tokens)
        tokens = [1] * place + [9, 2]
        expected = (place + 1, "stop") if place >= min_tokens else (place + 2, None)
        assert stops.take(run_of(*tokens), ROWS) == expected


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (2, 3), (5,), (1, 4), (4, 4)])
def test_a_limit_is_met_however_the_tokens_come(sizes: tuple[int, ...]) -> None:
    for limit in range(1, 6):
        for at_context_end in (False, True):
            stops = stops_of(max_tokens=limit, at_context_end=at_context_end)
            reason, total = None, 0
            for size in sizes:
                if reason is None:
                    assert stops.remaining == limit - total
                    kept, reason = stops.take(run_of(*[1] * size), ROWS)
                    total += kept
            assert total == limit == len(stops.events)
            assert reason == ("context" if at_context_end else "length")


def test_a_stop_id_at_the_limit_is_a_stop() -> None:
    stops = stops_of(max_tokens=3)
    assert stops.take(run_of(10, 11, 9, 20, 21, 22), ROWS) == (3, "stop")
    refused = stops_of(max_tokens=3, on_token=lambda event: False if event.token == 9 else None)
    assert refused.take(run_of(10, 11, 9, 20), ROWS) == (3, "stop")


def test_rounds_are_numbered_from_the_prefill_on() -> None:
    stops = stops_of()
    for verdict in (run_of(1), run_of(2, 3), run_of(4)):
        stops.take(verdict, ROWS)
    assert [event.round for event in stops.events] == [0, 1, 1, 2]
    assert [event.origin for event in stops.events] == ["bonus", "draft", "bonus", "bonus"]


def text_stops(tokenizer: Tokenizer, *stop: str, **limits: int) -> RequestStops:
    """The stops of a request whose text is a tokenizer's."""
    given = {"max_tokens": 40, "min_tokens": 0, **limits}
    return RequestStops(
        Limits(stop_ids=(), eos_ids=tokenizer.special_ids, stop=stop, at_context_end=False, **given),
        StreamDecoder(tokenizer),
    )


def taken(stops: RequestStops, tokens: Sequence[int], sizes: Sequence[int]) -> FinishReason | None:
    """Feeds ``tokens`` in rounds of ``sizes`` in turn, until one ends the request."""
    reason: FinishReason | None = None
    done = 0
    for size in itertools.cycle(sizes):
        if reason is not None or done == len(tokens):
            return reason
        count, reason = stops.take(run_of(*tokens[done : done + size]), ROWS)
        done += count
    return reason


def account(stops: RequestStops) -> tuple[object, ...]:
    """All that must not depend on how tokens came: rounds and origins do."""
    return [(event.token, event.text, event.finish_reason) for event in stops.events], stops.matched, stops.remaining


@pytest.mark.parametrize("kind", ["byte level", "byte level, stripped", "llama 2", "gemma", "metaspace"])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_rounds_do_not_change_where_a_text_ends(kind: str, data: st.DataObject) -> None:
    tokenizer = KINDS[kind]
    tokens = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), min_size=1, max_size=14))
    whole = tokenizer.decode(tokens)
    places = st.tuples(st.integers(0, len(whole)), st.integers(1, 5))
    cuts = data.draw(st.lists(places, max_size=3))
    stop = [whole[start : start + size] for start, size in cuts if whole[start : start + size]]
    limits = {"max_tokens": data.draw(st.integers(1, 15)), "min_tokens": data.draw(st.sampled_from([0, 0, 3]))}
    one_by_one = text_stops(tokenizer, *stop, **limits)
    reason = taken(one_by_one, tokens, (1,))
    for sizes in ((2,), (len(tokens),), data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))):
        rounds = text_stops(tokenizer, *stop, **limits)
        assert taken(rounds, tokens, sizes) == reason
        assert account(rounds) == account(one_by_one)
    shown = "".join(texts(one_by_one))
    if reason == "stop" and isinstance(one_by_one.matched, str):
        assert one_by_one.matched in stop
        assert tokenizer.decode(tokens[: len(one_by_one.events)]).startswith(shown + one_by_one.matched)
    elif reason is not None:
        ended = [event.token for event in one_by_one.events]
        assert shown == tokenizer.decode(ended)
        assert limits["min_tokens"] or not any(text in shown for text in stop)


def test_a_stop_string_ends_ids_and_text_at_the_token_that_completes_it() -> None:
    tokenizer = KINDS["byte level"]
    for size in range(1, 9):
        stops = text_stops(tokenizer, "cd")
        assert taken(stops, b"abcdefg", (size,)) == "stop"
        assert [event.token for event in stops.events] == [*b"abcd"]
        assert texts(stops) == ["a", "b", "", ""]
        assert stops.matched == "cd"
        assert stops.events[-1].finish_reason == "stop"


def test_held_back_text_comes_as_soon_as_it_cannot_be_a_stop_string() -> None:
    stops = text_stops(KINDS["byte level"], "bcd")
    taken(stops, b"abcx", (4,))
    assert texts(stops) == ["a", "", "", "bcx"]
    ended = text_stops(KINDS["byte level"], "bcd", max_tokens=3)
    assert taken(ended, b"abcx", (4,)) == "length"
    assert texts(ended) == ["a", "", "bc"]
    assert ended.matched is None


@pytest.mark.parametrize("min_tokens", range(6))
def test_a_stop_string_counts_from_min_tokens_on(min_tokens: int) -> None:
    """It ends a request with a token that comes after ``min_tokens`` others, wherever it begins."""
    stops = text_stops(KINDS["byte level"], "ab", min_tokens=min_tokens)
    reason = taken(stops, b"xabxx", (3,))
    assert (reason, "".join(texts(stops))) == (("stop", "x") if min_tokens < 3 else (None, "xabxx"))


def test_a_stop_string_that_only_the_end_brings_to_light_cuts_too() -> None:
    llama = KINDS["llama 2"]
    smile = [3 + byte for byte in "🙂".encode()]
    word = llama.core.token_to_id("▁hello")
    assert word is not None
    for tokens, max_tokens, count in (
        ([word, *smile], 5, 5),
        ([word, *smile, word], 40, 6),
        ([word, *smile, 2, word], 40, 6),
    ):
        stops = text_stops(llama, "🙂", max_tokens=max_tokens)
        assert taken(stops, tokens, (9,)) == "stop"
        assert "".join(texts(stops)) == "hello"
        assert len(stops.events) == count
        assert stops.matched == "🙂"
    cancelled = text_stops(llama, "🙂")
    taken(cancelled, [word, *smile[:3]], (9,))
    cancelled.cancel()
    assert cancelled.take(run_of(smile[3], word), ROWS) == (1, "stop")
    assert "".join(texts(cancelled)) == "hello"


def test_a_stop_string_is_found_across_a_special_token_without_text() -> None:
    tokenizer = KINDS["byte level"]
    special = tokenizer.core.token_to_id("<s>")
    stops = RequestStops(
        Limits(stop_ids=(), stop=("ab", "<s>"), max_tokens=9, at_context_end=False), StreamDecoder(tokenizer)
    )
    assert taken(stops, [*b"xa", special, *b"b"], (2,)) == "stop"
    assert stops.matched == "ab"


def test_what_ended_a_request_is_named_but_not_the_models_own_eos() -> None:
    limits = Limits(stop_ids=(9,), eos_ids=(8,), max_tokens=20, at_context_end=False)
    for tokens, reason, matched in (((1, 9), "stop", 9), ((1, 8), "stop", None), ((1, 2), None, None)):
        stops = RequestStops(limits, Pairs())
        assert stops.take(run_of(*tokens), ROWS) == (2, reason)
        assert stops.matched == matched


def test_cancelling_from_another_thread_keeps_one_more_token_and_all_held_text() -> None:
    stops = text_stops(KINDS["byte level"], "bcd")
    assert not stops.cancelled
    assert stops.take(run_of(*b"ab"), ROWS) == (2, None)
    thread = threading.Thread(target=stops.cancel)
    thread.start()
    thread.join()
    assert stops.cancelled
    assert stops.take(run_of(*b"cde"), ROWS) == (1, "cancelled")
    assert texts(stops) == ["a", "", "bc"]
    assert stops.events[-1].finish_reason == "cancelled"


def test_cancelling_from_on_token_ends_with_that_token() -> None:
    stops = stops_of(on_token=lambda event: stops.cancel() if event.token == 2 else None)
    assert stops.take(run_of(1, 2, 3, 4), ROWS) == (2, "cancelled")
    assert texts(stops) == ["", "12"]


def test_a_cut_one_token_late_is_seen() -> None:
    """Negative control: the laws above fail for stops that look at a string one token after it is complete."""

    class Late(RequestStops):
        def _cut(self, shown: str, finish: FinishReason | None) -> tuple[str, FinishReason | None]:
            late, self.shown = getattr(self, "shown", ""), shown
            return super()._cut(late, finish)

    stops = Late(
        Limits(stop_ids=(), stop=("cd",), max_tokens=9, at_context_end=False), StreamDecoder(KINDS["byte level"])
    )
    assert taken(stops, b"abcdefg", (3,)) == "stop"
    assert [event.token for event in stops.events] != [*b"abcd"]
