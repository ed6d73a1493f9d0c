"""Reads turns, obeys commands and shows answers, until the user leaves."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from surefoot.cli.chat.commands import Edit, Outcome, obey
from surefoot.cli.chat.reader import Reader, Turn
from surefoot.cli.chat.screen import Screen
from surefoot.cli.chat.session import Session
from surefoot.errors import SurefootError
from surefoot.request import Result, Stream


class Loop:
    """A chat from its first line to its last.

    Args:
        session: what is said and answered.
        reader: where the user's turns come from.
        screen: where the answers go.
        measuring: each answer is given again plainly, to compare.
    """

    def __init__(self, session: Session, reader: Reader, screen: Screen, *, measuring: bool = False) -> None:
        self._session = session
        self._reader = reader
        self._screen = screen
        self._measuring = measuring

    def run(self) -> bool:
        """Serves turns to the end of the input or ``/quit``; whether all of them could be served."""
        served = True
        while True:
            try:
                turn = self._reader.read()
                if turn is None or self._serve(turn):
                    return served
            except SurefootError as error:
                self._screen.fail(error)
                served = False

    def _serve(self, turn: Turn) -> bool:
        """Answers or obeys one turn; whether it was the last."""
        if turn.text.startswith("/") and not turn.fenced:
            return self._carry_out(obey(self._session, turn.text))
        if turn.text.strip() or (self._session.completing and self._session.transcript.messages):
            self._answer(self._session.say(turn.text))
        return False

    def _carry_out(self, outcome: Outcome) -> bool:
        if outcome.text:
            self._screen.tell(outcome.text)
        if outcome.stats:
            self._screen.stats(self._session.totals)
        if outcome.stream is not None:
            self._answer(outcome.stream)
        if outcome.edit is not None:
            self._edit(outcome.edit)
        return outcome.leave

    def _edit(self, edit: Edit) -> None:
        """Asks for the new words; none, or Ctrl-C, leaves the old ones."""
        self._screen.tell(f"it reads: {edit.old}")
        try:
            turn = self._reader.read("edit> ", edit.old)
        except KeyboardInterrupt:
            turn = None
        if turn is None or not turn.text.strip():
            self._screen.tell("nothing was changed")
        else:
            self._answer(self._session.edit(turn.text, edit.number))

    def _answer(self, stream: Stream) -> None:
        """Shows an answer as it comes; Ctrl-C stops it, and what was said is kept."""
        with stream, interrupting(stream.cancel):
            for event in stream:
                self._screen.show(event)
        result = self._session.keep(stream)
        self._screen.end(result, self._session, self._plain(result) if self._measuring else None)

    def _plain(self, result: Result) -> Result | None:
        """The same answer given plainly; Ctrl-C leaves it out."""
        try:
            return self._session.plainly(result)
        except KeyboardInterrupt:
            return None


@contextmanager
def interrupting(cancel: Callable[[], None]) -> Iterator[None]:
    """While it is open, the first Ctrl-C calls ``cancel``; a second one interrupts as usual."""
    usual = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        cancel()

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
