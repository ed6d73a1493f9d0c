"""What ends a request, token by token, and which text its events carry."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from surefoot.stops import Limits, RequestStops
from surefoot.types import Event, Tokens, Verdict

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
