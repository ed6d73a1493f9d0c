"""Ends requests, and turns emitted tokens into events cut at the same place."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from surefoot.logprobs import LogprobScorer
from surefoot.stop_strings import StopStrings
from surefoot.types import Event, FinishReason, Origin, TokenLogprobs, Tokens, Verdict

OnToken = Callable[[Event], bool | None]
"""Called with each event before its token is committed; returning False ends the request after that token."""


class TextStream(Protocol):
    """Token ids to text, piece by piece."""

    def feed(self, tokens: Tokens) -> str:
        """The text that became complete."""
        ...

    def flush(self) -> str:
        """Whatever was held back."""
        ...


class NoText:
    """The text of a model without tokenizer: none."""

    def feed(self, tokens: Tokens) -> str:
        """Nothing."""
        return ""

    def flush(self) -> str:
        """Nothing."""
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a request ends.

    Attributes:
        stop_ids: ids the caller named that end it; kept among the ids, left out of the text.
        eos_ids: the model's own, which end it likewise.
        stop: strings that end it, found in the text as it is shown; the text ends before them.
        max_tokens: most tokens it emits.
        at_context_end: whether ``max_tokens`` is what the context leaves rather than what was asked for.
        min_tokens: neither ids nor strings end it with one of this many first tokens.
    """

    stop_ids: Collection[int]
    max_tokens: int
    at_context_end: bool
    eos_ids: Collection[int] = ()
    stop: tuple[str, ...] = ()
    min_tokens: int = 0


class RequestStops:
    """The stops of one request.

    It sees every token before it is committed, in order, so a cut leaves nothing behind it: not in the cache, the ids,
    the text, the events or the counts.

    Args:
        limits: when the request ends.
        text: turns its tokens into text.
        on_token: called with each event.
        scorer: gives each event its log probabilities; None where nobody asked for them.

    Attributes:
        events: one per token so far.
        matched: the stop id or stop string that ended the request; None for the model's EOS and every other reason.
    """

    def __init__(
        self,
        limits: Limits,
        text: TextStream,
        on_token: OnToken | None = None,
        *,
        scorer: LogprobScorer | None = None,
    ) -> None:
        self._limits = limits
        self._text = text
        self._on_token = on_token
        self._scorer = scorer
        self._strings = StopStrings(limits.stop)
        self._ends = frozenset((*limits.stop_ids, *limits.eos_ids))
        self._cancelled = False
        self._round = -1
        self._count = 0
        self.events: list[Event] = []
        self.matched: int | str | None = None

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self._limits.max_tokens - self._count

    @property
    def cancelled(self) -> bool:
        """Whether the request was cancelled from outside."""
        return self._cancelled

    def cancel(self) -> None:
        """Ends the request at its next token, from any thread."""
        self._cancelled = True

    def take(self, verdict: Verdict, logits: Tensor) -> tuple[int, FinishReason | None]:
        """Reads a round's tokens until one ends the request; appends their events.

        Token ``i`` was drawn from row ``verdict.path[i]`` of ``logits [N, V]``, the prefill's from its last row.
        """
        self._round += 1
        finish: FinishReason | None = None
        kept, emitted = 0, verdict.emitted
        rows = verdict.path or (-1,)
        for token in emitted:
            logprobs = None if self._scorer is None else self._scorer.score(token, logits[rows[kept]])
            kept += 1
            finish = self._read(token, "draft" if kept < len(emitted) else verdict.next_origin, logprobs)
            if finish is not None:
                break
        return kept, finish

    def _read(self, token: int, origin: Origin, logprobs: TokenLogprobs | None) -> FinishReason | None:
        self._count += 1
        limits = self._limits
        ends = token in self._ends or self._count >= limits.max_tokens
        finish = self._reason(token) if ends else None
        shown = "" if finish == "stop" else self._text.feed((token,))
        text = shown
        if finish is not None or limits.stop:
            text, finish = self._cut(shown, finish)
        event = Event(token, text, origin, self._round, finish, logprobs)
        refused = self._on_token is not None and self._on_token(event) is False
        if finish is None and (refused or self._cancelled):
            rest, finish = self._cut("", "cancelled")
            event = event._replace(text=event.text + rest, finish_reason=finish)
        self.events.append(event)
        return finish

    def _reason(self, token: int) -> FinishReason | None:
        """Why the token ends the request, whatever its text."""
        limits = self._limits
        if self._count > limits.min_tokens and (token in limits.stop_ids or token in limits.eos_ids):
            self.matched = token if token in limits.stop_ids else None
            return "stop"
        if self._count >= limits.max_tokens:
            return "context" if limits.at_context_end else "length"
        return None

    def _cut(self, shown: str, finish: FinishReason | None) -> tuple[str, FinishReason | None]:
        """The text to give out now that ``shown`` became complete, cut before a stop string, which then is the reason.

        The end of a request completes all that was held back, so a stop string may come to light with it.
        """
        if finish is not None:
            shown += self._text.flush()
        text, string = self._strings.feed(shown, may_end=self._count > self._limits.min_tokens)
        if string is not None:
            self.matched = string
            return text, "stop"
        if finish is not None:
            text += self._strings.flush()
        return text, finish
