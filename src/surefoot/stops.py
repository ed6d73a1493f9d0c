"""Ends requests, and turns emitted tokens into events cut at the same place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from surefoot.types import Event, FinishReason, Origin, Tokens, Verdict

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
        stop_ids: ids that end it; kept among the ids, left out of the text.
        max_tokens: most tokens it emits.
        at_context_end: whether ``max_tokens`` is what the context leaves rather than what was asked for.
        min_tokens: stop ids do not end it before this many tokens.
    """

    stop_ids: Collection[int]
    max_tokens: int
    at_context_end: bool
    min_tokens: int = 0


class RequestStops:
    """The stops of one request.

    It sees every token before it is committed, in order, so a cut leaves nothing behind it: not in the cache, the ids,
    the text, the events or the counts.
    """

    def __init__(self, limits: Limits, text: TextStream, on_token: OnToken | None = None) -> None:
        self._limits = limits
        self._text = text
        self._on_token = on_token
        self._cancelled = threading.Event()
        self._round = -1
        self._count = 0
        self.events: list[Event] = []

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self._limits.max_tokens - self._count

    @property
    def cancelled(self) -> bool:
        """Whether the request was cancelled from outside."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Ends the request at its next token, from any thread."""
        self._cancelled.set()

    def take(self, verdict: Verdict, logits: Tensor) -> tuple[int, FinishReason | None]:
        """Reads a round's tokens until one ends the request; appends their events."""
        self._round += 1
        finish: FinishReason | None = None
        kept = 0
        for token, origin in zip(verdict.emitted, verdict.origins, strict=True):
            kept += 1
            finish = self._read(token, origin)
            if finish is not None:
                break
        return kept, finish

    def _read(self, token: int, origin: Origin) -> FinishReason | None:
        self._count += 1
        finish = self._reason(token)
        text = "" if finish == "stop" else self._text.feed((token,))
        if finish is not None:
            text += self._text.flush()
        event = Event(token=token, text=text, origin=origin, round=self._round, finish_reason=finish)
        refused = self._on_token is not None and self._on_token(event) is False
        if finish is None and (refused or self.cancelled):
            finish = "cancelled"
            event = replace(event, text=event.text + self._text.flush(), finish_reason=finish)
        self.events.append(event)
        return finish

    def _reason(self, token: int) -> FinishReason | None:
        if token in self._limits.stop_ids and self._count > self._limits.min_tokens:
            return "stop"
        if self._count >= self._limits.max_tokens:
            return "context" if self._limits.at_context_end else "length"
        return None
