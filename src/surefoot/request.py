"""A request while it runs, and what comes out of it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

from surefoot.decode import Decoding, decode
from surefoot.errors import RequestError
from surefoot.protocols import Target
from surefoot.stats import Stats
from surefoot.stops import RequestStops
from surefoot.types import Event, FinishReason, Tokens, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished request.

    Attributes:
        text: the new text; "" without a tokenizer.
        tokens: the new ids, the terminating one included.
        finish_reason: why it ended.
        usage: token counts.
        stats: rounds, drafts and seconds.
        seed: the seed that was used; with it and the same request the same tokens come again.
        events: one per token.
    """

    text: str
    tokens: Tokens
    finish_reason: FinishReason
    usage: Usage
    stats: Stats
    seed: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One checked request and everything that carries it out."""

    prompt: Tokens
    seed: int
    target: Target
    stops: RequestStops
    decoding: Decoding

    def events(self) -> Generator[Event, None, None]:
        """Its events as they come; none where no token may be emitted."""
        if self.stops.remaining == 0:
            return
        sent = 0
        for _ in decode(self.target, self.prompt, self.decoding):
            while sent < len(self.stops.events):
                sent += 1
                yield self.stops.events[sent - 1]

    def result(self, num_events: int) -> Result:
        """The account of the first ``num_events`` events; a request that was left early counts as cancelled."""
        events = tuple(self.stops.events[:num_events])
        finish: FinishReason | None = "length" if not events and self.stops.remaining == 0 else None
        if events:
            finish = events[-1].finish_reason
        return Result(
            text="".join(event.text for event in events),
            tokens=tuple(event.token for event in events),
            finish_reason=finish or "cancelled",
            usage=Usage(prompt_tokens=len(self.prompt), completion_tokens=len(events)),
            stats=self.decoding.tally.finish(strict=self.target.strict),
            seed=self.seed,
            events=events,
        )


class Stream:
    """The events of a running request, to be iterated once; ``result`` is there after the last one or after ``close``.

    As a context manager it closes itself.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._events = request.events()
        self._num_events = 0
        self._ended = False

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        try:
            event = next(self._events)
        except StopIteration:
            self._ended = True
            raise
        self._num_events += 1
        return event

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the request where it stands; the target's state stays valid."""
        self._events.close()
        self._ended = True

    @property
    def result(self) -> Result:
        """What came out.

        Raises:
            RequestError: events are still to come.
        """
        if not self._ended:
            raise RequestError("the stream is still open; read it to its end or close() it, then ask for its result")
        return self._request.result(self._num_events)
