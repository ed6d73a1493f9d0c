"""Ways to type: lines on standard input, and a terminal with somebody at it."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from time import monotonic

import pytest

from surefoot.cli.chat.reader import Reader

PROGRAM = (
    "import os, signal; os.open(os.ttyname(0), os.O_RDWR); "  # a session leader that opens a terminal controls it
    "signal.signal(signal.SIGINT, signal.default_int_handler); "  # a background shell's children inherit it ignored
    "from surefoot.cli import main; main()"
)
CTRL_C, CTRL_D = "\x03", "\x04"


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> Reader:
    """Puts lines on standard input, and a reader of them."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return Reader(interactive=False)


class Terminal:
    """The program in a terminal of its own: what it writes is read here, what is typed here it reads."""

    def __init__(self, *arguments: str, columns: int = 80, no_color: bool = False) -> None:
        self._own, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        unset = ("NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR")
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        environment |= {"OMP_NUM_THREADS": "1", "TERM": "xterm"} | ({"NO_COLOR": "1"} if no_color else {})
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
        )
        os.close(theirs)
        self.rest = ""
        """What was not expected yet."""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *failure: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._own)

    def type(self, text: str) -> None:
        """Presses keys."""
        os.write(self._own, text.encode())

    def expect(self, pattern: str, seconds: float = 60) -> str:
        """Waits until ``pattern`` is on the screen; all that came up to its end since the last call."""
        until = monotonic() + seconds
        while (match := re.search(pattern, self.rest, re.DOTALL)) is None:
            assert monotonic() < until, f"waited for {pattern!r}; the screen shows {self.rest!r}"
            more = self._read(0.2)
            assert more is not None, f"waited for {pattern!r}; the program ended after {self.rest!r}"
            self.rest += more
        shown, self.rest = self.rest[: match.end()], self.rest[match.end() :]
        return shown

    def interrupt(self, pattern: str) -> str:
        """Presses Ctrl-C at a prompt until ``pattern`` is on the screen; what came up to its end.

        A signal that comes between readline's last look for one and its wait for a key is only seen at the next key or
        signal.
        """
        for _ in range(6):
            self.type(CTRL_C)
            try:
                return self.expect(pattern, seconds=2)
            except AssertionError:
                continue
        return self.expect(pattern, seconds=2)

    def interrupted(self) -> int:
        """Presses Ctrl-C at a prompt until the program ends; its exit code."""
        for _ in range(6):
            self.type(CTRL_C)
            try:
                return self.leave(seconds=10)
            except subprocess.TimeoutExpired:
                continue
        return self.leave(seconds=2)

    def leave(self, seconds: float = 60) -> int:
        """Reads what is left; the exit code."""
        until = monotonic() + seconds
        while (more := self._read(0.2)) is not None and monotonic() < until:
            self.rest += more
        return self.process.wait(timeout=max(until - monotonic(), 1))

    def _read(self, seconds: float) -> str | None:
        """What the program wrote, "" where it wrote nothing for so long; None where it has ended."""
        if not select.select([self._own], [], [], seconds)[0]:
            return ""
        try:
            return os.read(self._own, 65536).decode("utf-8", "replace") or None
        except OSError:  # how Linux says that the other side is gone
            return None
