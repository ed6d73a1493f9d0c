"""A request while it runs, and what comes out of it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from inspect import GEN_RUNNING, getgeneratorstate

from surefoot.decode import Decoding, decode, read_prompt
from surefoot.errors import RequestError
from surefoot.logprobs import PromptLogprobs
from surefoot.protocols import Target
from surefoot.stats import Stats
from surefoot.stops import RequestStops
from surefoot.types import Event, FinishReason, TokenLogprobs, Tokens, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished request.

    Attributes:
        text: the new text; "" without a tokenizer.
        tokens: the new ids, the terminating one included.
        finish_reason: why it ended.
        stop_reason: the stop id or stop string that ended it; None for an EOS id and every other end.
        usage: token counts.
        stats: rounds, drafts and seconds.
        seed: the seed that was used; with it and the same request the same tokens come again.
        sample_index: which sample of its prompt it is.
        events: one per token.
        prompt_logprobs: one per token of the prompt, None for the first; None where they were not asked for.
    """

    text: str
    tokens: Tokens
    finish_reason: FinishReason
    stop_reason: int | str | None
    usage: Usage
    stats: Stats
    seed: int
    sample_index: int
    events: tuple[Event, ...]
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None


@dataclass(slots=True, kw_only=True)
class Request:
    """One checked request and everything that carries it out.

    Attributes:
        num_cached: tokens of the prompt that its cache held when it was opened.
        num_sent: events that were handed out; what lies beyond them was never seen and does not count.
    """

    prompt: Tokens
    seed: int
    sample_index: int
    num_cached: int
    target: Target
    stops: RequestStops
    decoding: Decoding
    prompt_logprobs: PromptLogprobs | None = None
    num_sent: int = 0

    def events(self) -> Generator[Event, None, None]:
        """Its events as they come; none where no token may be emitted."""
        if self.stops.remaining == 0:
            try:
                self.read_prompt_alone()
            finally:
                self.decoding.close()
            return
        events = self.stops.events
        for _ in decode(self.target, self.prompt, self.decoding):
            while self.num_sent < len(events):
                self.num_sent += 1
                yield events[self.num_sent - 1]

    def new_events(self) -> Iterator[Event]:
        """Events that were not handed out yet."""
        for event in self.stops.events[self.num_sent :]:
            self.num_sent += 1
            yield event

    def read_prompt_alone(self) -> None:
        """Scores the prompt of a request that emits nothing, where that was asked for."""
        if self.prompt_logprobs is not None:
            read_prompt(self.target, self.prompt, [self.decoding])

    def result(self) -> Result:
        """The account of the events handed out; a request that was left early counts as cancelled."""
        events = tuple(self.stops.events[: self.num_sent])
        finish: FinishReason | None = self.decoding.finish_reason
        if events:
            finish = events[-1].finish_reason
        elif finish is None and self.stops.remaining == 0:
            finish = "length"
        return Result(
            text="".join(event.text for event in events),
            tokens=tuple(event.token for event in events),
            finish_reason=finish or "cancelled",
            stop_reason=self.stops.matched if finish == "stop" else None,
            usage=Usage(prompt_tokens=len(self.prompt), completion_tokens=len(events), cached_tokens=self.num_cached),
            stats=self.decoding.tally.finish(strict=self.target.strict),
            seed=self.seed,
            sample_index=self.sample_index,
            events=events,
            prompt_logprobs=self.prompt_logprobs.scored if self.prompt_logprobs else None,
        )


class Stream:
    """The events of a running request, to be iterated once; ``result`` is there after the last one or after ``close``.

    As a context manager it closes itself. ``cancel`` may be called from any thread, everything else from one.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._events = request.events()
        self._ended = False
        self._failed = False

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        try:
            return next(self._events)
        except StopIteration:
            self._ended = True
            raise
        except BaseException:
            require_idle(self._events)
            self._ended = self._failed = True
            raise

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def cancel(self) -> None:
        """Ends the request at its next token: the iteration goes on to an event with ``cancelled``, or ends at once
        where the prompt is still being read."""
        self._request.stops.cancel()

    def close(self) -> None:
        """Ends the request where it stands; the target's state stays valid."""
        require_idle(self._events)
        self._events.close()
        self._request.decoding.close()  # events that were never asked for have closed nothing
        self._ended = True

    def read(self) -> Result:
        """What comes out, once all that is still to come was read; closed, whatever happens."""
        with self:
            for _ in self:
                pass
        return self.result

    @property
    def ended(self) -> bool:
        """Whether no more events come."""
        return self._ended

    @property
    def failed(self) -> bool:
        """Whether an error or an interruption ended it."""
        return self._failed

    @property
    def result(self) -> Result:
        """What came out.

        Raises:
            RequestError: events are still to come.
        """
        if not self._ended:
            raise RequestError("the stream is still open; read it to its end or close() it, then ask for its result")
        return self._request.result()


def require_idle(events: Generator[object, None, None]) -> None:
    """Refuses to read or close events that are just being computed, for ``on_token`` or in another thread."""
    if getgeneratorstate(events) == GEN_RUNNING:
        raise RequestError(
            "these events are being read, by a caller of on_token or on_round or in another thread; expected one "
            "reader. Use cancel() to end them from there"
        )
