"""A conversation: its cache is kept between turns, so a turn reads only what is new."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from surefoot.errors import CacheError, DrafterError, RequestError
from surefoot.opening import Asked, OnRound, Opener, Prompt
from surefoot.options import SamplingParams, SpeculativeOptions
from surefoot.protocols import Cache, Drafter, DrafterModel
from surefoot.request import Request, Result, Stream
from surefoot.stops import OnToken
from surefoot.types import Capture, TargetOutput, Tokens

Ask: TypeAlias = Callable[[Prompt, SamplingParams, SpeculativeOptions, str | Sequence[int] | None], Asked]
"""Checks a request."""

_READS_NO_ROWS = Capture()
_GREEDY = SamplingParams()
_SPECULATE = SpeculativeOptions()


class Conversation:
    """One sequence over many turns; made by :meth:`surefoot.engine.Engine.conversation`.

    Every turn gives the whole prompt. What it shares with the tokens computed before is kept and the rest is forgotten,
    so earlier turns may be edited or answered again. Where the target's rows are exact, the answer is bit for bit the
    one a fresh prefill would give. One answer at a time.
    """

    def __init__(self, opener: Opener, ask: Ask) -> None:
        self._opener = opener
        self._ask = ask
        self._cache: Cache | None = None
        self._tokens: Tokens = ()
        self._model: DrafterModel | None = None
        self._drafter: Drafter | None = None
        self._request: Request | None = None
        self._stream: Stream | None = None

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams = _GREEDY,
        *,
        speculative: SpeculativeOptions = _SPECULATE,
        prediction: str | Sequence[int] | None = None,
        on_token: OnToken | None = None,
        on_round: OnRound | None = None,
    ) -> Result:
        """The next turn, read to its end."""
        return self.stream(
            prompt, params, speculative=speculative, prediction=prediction, on_token=on_token, on_round=on_round
        ).read()

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams = _GREEDY,
        *,
        speculative: SpeculativeOptions = _SPECULATE,
        prediction: str | Sequence[int] | None = None,
        on_token: OnToken | None = None,
        on_round: OnRound | None = None,
    ) -> Stream:
        """The next turn, token by token; arguments as for :meth:`surefoot.engine.Engine.stream`.

        Raises:
            RequestError: as there, or the last turn's stream is still open.
        """
        asked = self._ask(prompt, params, speculative, prediction)
        return self._open(replace(asked, on_token=on_token, on_round=on_round))

    def close(self) -> None:
        """Ends the answer that is open, and frees cache and drafter."""
        if self._stream is not None:
            self._stream.close()
        self._take_over()
        self._drop_drafter()
        self._cache, self._tokens = None, ()

    def _open(self, asked: Asked) -> Stream:
        if self._stream is not None and not self._stream.ended:
            raise RequestError("the last answer's stream is still open; read it to its end or close() it first")
        self._take_over()
        cache, kept = self._cut_cache(asked)
        drafter, kept = self._drafter_at(asked, kept)
        if cache is None or not kept:
            self._cache, self._tokens = None, ()
            length = self._opener.length(asked)
            # Later turns are longer: untouched room costs little, and moving a cache costs a copy.
            cache = self._opener.target.new_cache(length, spare=max(length, asked.spare))
        self._cache = cache
        self._request = self._opener.resume(asked, cache, drafter, keeps_drafter=True)
        self._stream = Stream(self._request)
        return self._stream

    def _take_over(self) -> None:
        """Learns what the last turn left in the cache. A drafter that failed, or may not have learnt of the last round
        because the turn did, is not gone on with."""
        request, stream = self._request, self._stream
        self._request = self._stream = None
        if request is None or stream is None or self._cache is None:
            return
        emitted = tuple(event.token for event in request.stops.events)
        self._tokens = (*request.prompt, *emitted)[: self._cache.length]
        if request.decoding.tally.fallbacks:  # closed already
            self._drafter = self._model = None
        elif stream.failed:
            self._drop_drafter()

    def _cut_cache(self, asked: Asked) -> tuple[Cache | None, int]:
        """The cache cut back to what the prompt shares with it, with room for this turn, and the tokens it holds.

        As much of that as the cache can go back to, and never the whole prompt, whose last row draws the first token.
        None where nothing can be kept.
        """
        cache, length = self._cache, self._opener.length(asked)
        if cache is None or asked.params.prompt_logprobs is not None or not self._opener.target.serves(cache, length):
            return None, 0
        kept = cache.restorable(min(_num_shared(self._tokens, asked.prompt), len(asked.prompt) - 1))
        try:
            cache.truncate(kept)
            if cache.capacity < length + asked.spare:
                cache = cache.fork(2 * length + asked.spare)
        except CacheError:  # a cache that was interrupted: it is made anew
            return None, 0
        return cache, kept

    def _drafter_at(self, asked: Asked, kept: int) -> tuple[Drafter, int]:
        """The drafter after the kept tokens, and how many may be kept: a new one that reads the target's rows needs all
        of them computed again.

        Raises:
            DrafterError: it failed; the next turn begins a new one.
        """
        is_new = self._drafter is None or self._model is not asked.drafter
        if is_new:
            self._drop_drafter()
            self._drafter, self._model = asked.drafter.start(self._opener.target), asked.drafter
        drafter = self._drafter
        assert drafter is not None
        try:
            if not is_new:
                drafter.truncate(kept)
            elif drafter.capture != _READS_NO_ROWS:
                return drafter, 0
            elif kept:
                drafter.observe(asked.prompt[:kept], TargetOutput(logits=None), None)
        except BaseException as error:
            self._drop_drafter()
            if not isinstance(error, Exception):
                raise
            raise DrafterError(
                f"the drafter {type(drafter).__name__} failed between turns: {type(error).__name__}: {error}; expected "
                "one that goes back to an earlier length. Ask again, and a new one begins"
            ) from error
        return drafter, kept

    def _drop_drafter(self) -> None:
        drafter, self._drafter, self._model = self._drafter, None, None
        if drafter is not None:
            drafter.close()


def _num_shared(ours: Tokens, theirs: Tokens) -> int:
    """Length of the longest common beginning."""
    shorter = min(len(ours), len(theirs))
    return next((place for place in range(shorter) if ours[place] != theirs[place]), shorter)
