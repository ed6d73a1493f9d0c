"""What a chat shows: text in colours for people, a JSON object per answer for programs."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict
from typing import Protocol

import typer

from surefoot.cli.account import acceptance_length, acceptance_row, duration, in_lines, time_row
from surefoot.cli.answers import answer_report, plain_report, times_plain
from surefoot.cli.chat.session import Session, Totals
from surefoot.cli.generate import DIFFERS
from surefoot.cli.show import Printer, colors_wanted, tokens_per_second
from surefoot.errors import SurefootError
from surefoot.request import Result
from surefoot.types import Event


class Screen(Protocol):
    """Where a chat is shown."""

    def show(self, event: Event) -> None:
        """One more token of an answer."""
        ...

    def end(self, result: Result, session: Session, plain: Result | None) -> None:
        """The answer is over; ``plain`` is the same one given plainly, where that was measured."""
        ...

    def tell(self, text: str) -> None:
        """What a command says."""
        ...

    def stats(self, totals: Totals) -> None:
        """What all answers came to."""
        ...

    def fail(self, error: SurefootError) -> None:
        """What could not be done."""
        ...


class TextScreen:
    """For people: answers on standard output in the colours of their tokens' origins, all else on standard error."""

    def __init__(self) -> None:
        self._printer = Printer(sys.stdout)
        self._in_answer = False

    def show(self, event: Event) -> None:
        """Writes the token's text at once."""
        self._in_answer = True
        self._printer.show(event)

    def end(self, result: Result, session: Session, plain: Result | None) -> None:
        """Ends the line and writes the status below it."""
        self._in_answer = True  # an answer without tokens is a line too
        parts = status(result, session, plain)
        terminal = sys.stderr.isatty()
        text = in_lines(parts, shutil.get_terminal_size().columns) if terminal else " · ".join(parts)
        self.tell(typer.style(text, dim=True) if colors_wanted(sys.stderr) else text)

    def tell(self, text: str) -> None:
        """Writes a line, or several, below an answer that was cut short."""
        if self._in_answer:
            self._printer.end()
            self._in_answer = False
        print(text, file=sys.stderr, flush=True)

    def stats(self, totals: Totals) -> None:
        """Writes the totals, a line for each kind."""
        self.tell("\n".join(account(totals)))

    def fail(self, error: SurefootError) -> None:
        """Writes the error."""
        self.tell(f"error: {error}")


class JsonScreen:
    """For programs: one JSON object per line of standard output.

    An answer is an object with ``text`` and ``tokens``, ``/stats`` one with ``stats``, what could not be done one with
    ``error``. What other commands say goes to standard error.
    """

    def show(self, event: Event) -> None:
        """Nothing: the answer comes whole."""

    def end(self, result: Result, session: Session, plain: Result | None) -> None:
        """Prints the answer."""
        _print_object(report(result, session, plain))

    def tell(self, text: str) -> None:
        """Writes it to standard error."""
        print(text, file=sys.stderr, flush=True)

    def stats(self, totals: Totals) -> None:
        """Prints the totals."""
        _print_object({"stats": asdict(totals)})

    def fail(self, error: SurefootError) -> None:
        """Prints the error."""
        _print_object({"error": str(error), "kind": type(error).__name__})


def _print_object(value: dict[str, object]) -> None:
    print(json.dumps(value, ensure_ascii=False), flush=True)


def status(result: Result, session: Session, plain: Result | None) -> list[str]:
    """What an answer cost, in parts of one line."""
    stats, usage = result.stats, result.usage
    read = usage.prompt_tokens - usage.cached_tokens
    parts = [f"{len(result.tokens)} tokens", f"{tokens_per_second(result):.1f} tok/s"]
    times = times_plain(result, plain) if plain else None
    if times is not None:
        parts.append(f"{times:.2f} times plain (measured)")
    if plain and plain.tokens != result.tokens and session.options.acceptance == "match":
        parts.append(DIFFERS)
    if stats.drafted:
        parts.append(
            f"{stats.accepted / stats.rounds:.2f} of {session.speculative.num_draft} drafts accepted per round"
        )
    else:
        parts.append("nothing drafted")
    parts.append(f"{usage.cached_tokens} prompt tokens kept, {read} read in {duration(stats.seconds.prefill)}")
    parts.append(f"context {usage.total_tokens} of {session.context_length}")
    if not session.sampling.greedy:
        parts.append(f"seed {result.seed}")
    if stats.fallbacks:
        parts.append("the drafter failed and was dropped")
    ended = {
        "cancelled": "stopped",
        "length": f"ended at {session.sampling.max_tokens} tokens (/set max_tokens N)",
        "context": "the context is full: /undo or /clear makes room",
    }
    if result.finish_reason in ended:
        parts.append(ended[result.finish_reason])
    return parts


def account(totals: Totals) -> list[str]:
    """What all answers of a session came to."""
    return [
        f"answers   {totals.answers} with {totals.tokens} tokens, in {totals.rounds} rounds",
        f"prompts   {totals.prompt_tokens} tokens, {totals.cached_tokens} of them kept from the answers before",
        f"drafts    {totals.accepted} of {totals.drafted} accepted; drafters dropped: {totals.fallbacks}",
        f"length    {acceptance_length(totals.rounds, totals.accepted)}",
        f"position  {acceptance_row(totals.drafted_by_position, totals.accepted_by_position)}",
        f"time      {time_row(totals.seconds)}",
    ]


def report(result: Result, session: Session, plain: Result | None) -> dict[str, object]:
    """The JSON object of an answer."""
    return {
        "answer": session.totals.answers,
        **answer_report(result),
        "context_length": session.context_length,
        "plain": plain and plain_report(result, plain),
    }
