"""Several answers to one prompt, which is read once."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from surefoot.decode import advance, prefill
from surefoot.errors import RequestError
from surefoot.request import Request, Result, require_idle
from surefoot.types import Event


class Samples:
    """The events of several samples as ``(sample, event)``, to be iterated once; then ``results``.

    A sample's tokens are those of a single request with its sample index. Where the target's rows are exact the samples
    share each forward; elsewhere each is computed alone, so that its bits do not depend on the others.
    As a context manager it closes itself. ``cancel`` may be called from any thread.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = tuple(requests)
        for request in self._requests:
            request.prompt_logprobs = self._requests[0].prompt_logprobs  # the prompt is read once, for all of them
        self._events = self._run()
        self._ended = False

    def __iter__(self) -> Iterator[tuple[int, Event]]:
        return self

    def __next__(self) -> tuple[int, Event]:
        require_idle(self._events)
        try:
            return next(self._events)
        except BaseException:
            self._ended = True
            raise

    def __enter__(self) -> Samples:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def cancel(self, sample: int | None = None) -> None:
        """Ends one sample at its next token, or all of them.

        Raises:
            RequestError: there is no such sample.
        """
        most = len(self._requests) - 1
        if sample is not None and not 0 <= sample <= most:
            raise RequestError(f"sample {sample} was to be cancelled; expected 0 to {most}, or None for all")
        for request in self._requests if sample is None else (self._requests[sample],):
            request.stops.cancel()

    def close(self) -> None:
        """Ends all samples where they stand."""
        require_idle(self._events)
        self._events.close()
        self._close_all()  # events that were never asked for have closed nothing
        self._ended = True

    @property
    def results(self) -> tuple[Result, ...]:
        """What came out, a result per sample.

        Raises:
            RequestError: events are still to come.
        """
        if not self._ended:
            raise RequestError("the samples are still open; read them to their end or close() them first")
        return tuple(request.result() for request in self._requests)

    def _run(self) -> Generator[tuple[int, Event], None, None]:
        first = self._requests[0]
        try:
            if first.stops.remaining == 0:
                first.read_prompt_alone()
                return
            prefill(first.target, first.prompt, [request.decoding for request in self._requests])
            yield from self._news()
            while True:
                open_requests = [request for request in self._requests if request.decoding.finish_reason is None]
                if not open_requests:
                    return
                shares = [open_requests] if first.target.strict else [[request] for request in open_requests]
                for share in shares:
                    advance(first.target, [request.decoding for request in share])
                yield from self._news()
        finally:
            self._close_all()

    def _close_all(self) -> None:
        for request in self._requests:
            request.decoding.close()

    def _news(self) -> Iterator[tuple[int, Event]]:
        for index, request in enumerate(self._requests):
            for event in request.new_events():
                yield index, event
