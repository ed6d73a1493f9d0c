"""Reads what a user types: one line, or several, with line editing and history where there is a terminal."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

from surefoot.errors import PromptError

FENCE = '"""'
PROMPT = "> "
CONTINUED = ". "


class Turn(NamedTuple):
    """What was typed, and whether it stood between fences, so that it is no command whatever it begins with."""

    text: str
    fenced: bool


class Reader:
    """Turns of a chat from standard input.

    A turn is a line. One that ends in a backslash goes on in the next line; one that begins with three double quotes
    goes on to the next three, newlines included, and is never a command.

    Args:
        interactive: standard input and output are a terminal: prompts are shown and lines can be edited.
    """

    def __init__(self, *, interactive: bool) -> None:
        self._interactive = interactive
        self._ended = False
        self._editing = _line_editing() if interactive else None

    def read(self, prompt: str = PROMPT, prefill: str = "") -> Turn | None:
        """The next turn; None at the end of the input. Raises ``PromptError`` where a line is no text.

        ``prefill`` stands on the line from the start, to be edited, where there is line editing and it is one line.
        """
        line = self._line(prompt, prefill)
        if line is None:
            return None
        if line.startswith(FENCE):
            return Turn(self._fenced(line[len(FENCE) :]), True)
        while line.endswith("\\"):
            more = self._line(CONTINUED)
            line = line[:-1] + "\n" + (more or "")
        return Turn(line, False)

    def _fenced(self, first: str) -> str:
        """The text up to the closing fence; the newlines next to the fences are not part of it."""
        lines = [first]
        while not lines[-1].endswith(FENCE):
            more = self._line(CONTINUED)
            if more is None:
                break
            lines.append(more)
        lines[-1] = lines[-1].removesuffix(FENCE)
        text = "\n".join(lines)
        return text.removeprefix("\n").removesuffix("\n") if len(lines) > 1 else text

    def _line(self, prompt: str, prefill: str = "") -> str | None:
        """A line without its end; None at the end of the input."""
        if self._ended:
            return None
        try:
            line = self._edited(prompt, prefill) if self._interactive else _plain_line(prompt)
            if line is not None:
                line.encode("utf-8")  # where bytes that are no text become lone surrogates
            return line
        except UnicodeEncodeError as error:
            raise PromptError(f"found a line that is no text ({error}); expected UTF-8. It was not read") from error
        except UnicodeDecodeError as error:
            self._ended = not self._interactive  # a stream cannot be read past what it cannot decode
            raise PromptError(f"found a line that is no text ({error}); expected UTF-8. It was not read") from error
        except (EOFError, KeyboardInterrupt) as end:
            print(file=sys.stderr)  # the prompt's line stays open
            if isinstance(end, KeyboardInterrupt):
                raise
            return None

    def _edited(self, prompt: str, prefill: str) -> str:
        editing = self._editing
        if editing is None or not prefill or "\n" in prefill:
            return input(prompt)
        insert: Callable[[str], object] = editing.insert_text
        editing.set_startup_hook(lambda: insert(prefill))
        try:
            return input(prompt)
        finally:
            editing.set_startup_hook()


def _plain_line(prompt: str) -> str | None:
    """A line of standard input, where output goes elsewhere; somebody who types sees a prompt all the same."""
    if sys.stdin.isatty():
        print(prompt, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    return line.removesuffix("\n").removesuffix("\r") if line else None


def _line_editing() -> ModuleType | None:
    """Python's ``readline``, which ``input`` uses from then on; not every platform has it.

    It is loaded only for a terminal, as loading it may write to standard output.
    """
    try:
        return importlib.import_module("readline")
    except ImportError:
        return None
