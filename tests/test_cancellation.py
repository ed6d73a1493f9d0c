"""Cancelling a request from another thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from tests.guesses import Guesser
from tests.tables import TableCache, TableTarget

from surefoot import Engine, SamplingParams
from surefoot.types import Capture, Event, TargetOutput, Tokens

PARAMS = SamplingParams(max_tokens=40)


def test_another_thread_ends_a_request_that_keeps_what_it_said() -> None:
    engine = Engine(TableTarget(vocab_size=31, context_length=128))
    stream = engine.stream((1, 2, 3), PARAMS)
    reached, cancelled = threading.Event(), threading.Event()
    events: list[Event] = []

    def read() -> None:
        for event in stream:
            events.append(event)
            if len(events) == 5:
                reached.set()
                assert cancelled.wait(10)

    reader = threading.Thread(target=read)
    reader.start()
    assert reached.wait(10)
    stream.cancel()
    cancelled.set()
    reader.join(10)
    assert not reader.is_alive()
    result = stream.result
    assert result.finish_reason == events[-1].finish_reason == "cancelled"
    assert len(result.tokens) == 6  # the round that was under way was cut after its first token
    assert result.tokens == engine.generate((1, 2, 3), PARAMS).tokens[:6]


def test_a_round_is_cut_after_its_first_token_and_nothing_behind_it_is_committed() -> None:
    target = TableTarget(vocab_size=31, context_length=128)
    answer = Engine(target).generate((1, 2, 3), PARAMS).tokens
    guesser = Guesser(lambda context: [list(answer[len(context) - 3 :][:8])])
    conversation = Engine(target, guesser).conversation()
    stream = conversation.stream((1, 2, 3), PARAMS)
    next(stream)
    stream.cancel()
    rest = [event.token for event in stream]
    assert (answer[0], *rest) == answer[:2]
    assert stream.result.stats.fallbacks == 0
    assert conversation.generate((1, 2, 3, *answer[:2], 9)).usage.cached_tokens == 3 + 1


class SlowReader(TableTarget):
    """Cancels while the prompt is being read."""

    def __init__(self) -> None:
        super().__init__(vocab_size=31, context_length=128)
        self.chunks = 0
        self.on_chunk = lambda: None

    def prefill(
        self, tokens: Sequence[int], cache: TableCache, capture: Capture
    ) -> Iterator[tuple[Tokens, TargetOutput]]:
        for chunk in super().prefill(tokens, cache, capture):
            self.chunks += 1
            yield chunk
            self.on_chunk()


def test_a_prompt_is_not_read_to_its_end_for_nobody() -> None:
    target = SlowReader()
    stream = Engine(target).stream(tuple(range(30)), PARAMS)
    stream.cancel()
    assert list(stream) == []
    assert target.chunks == 1
    assert stream.result.finish_reason == "cancelled"
    assert stream.result.tokens == ()
    target.chunks = 0
    assert len(Engine(target).generate(tuple(range(30)), PARAMS).tokens) == 40
    assert target.chunks == 10
