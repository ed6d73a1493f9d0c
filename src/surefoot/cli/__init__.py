"""The command line: parses, finds the command, and turns our errors into exit codes."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from threading import current_thread, main_thread
from types import FrameType, ModuleType
from typing import Annotated

import typer

from surefoot import __version__
from surefoot.cli.hints import foreign_flags
from surefoot.errors import SurefootError

COMMANDS = {
    "generate": "Completes a prompt, shows where each token came from, and measures the gain.",
    "chat": "Talks with a model in the terminal, and shows where each token came from.",
    "explain": "Replays one generation round by round.",
    "doctor": "Examines a pair: files, memory, exactness, and the speedup to expect.",
    "bench": "Measures plain decoding against each drafter, and reports what it found.",
    "inspect": "Says what a target or drafter directory is.",
    "prove": "Runs your own pair with and without speculation and compares the tokens.",
    "train": "Trains a drafter for a target of yours.",
    "init": "Writes a commented settings file.",
    "config": "Reads and changes the settings file.",
}
"""Each command is the object ``command`` of the module that is called like it."""

WRONG_USE = 2
INTERRUPTED = 130
READER_GONE = 141

EXIT_CODES = (
    "Exit codes: 0 done; 1 what was examined failed (prove: a real divergence; doctor: a FAIL; bench: a text that "
    "differs); 2 wrong use, or something that cannot be done as asked; 3 prove: near-ties only; 4 prove: nothing was "
    "speculated, so nothing is proved; 130 interrupted; 141 whoever read the output has gone."
)


def build_app(command: str | None) -> typer.Typer:
    """The application, with only ``command``'s module imported: help for the others is one line."""
    app = typer.Typer(
        name="surefoot",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback(help="Exact speculative decoding of local language models.", epilog=EXIT_CODES)(_version)
    for name, line in COMMANDS.items():
        if name != command:
            app.command(name, help=line)(_unreached)
            continue
        chosen = _imported(f"surefoot.cli.{name}").command
        if isinstance(chosen, typer.Typer):
            app.add_typer(chosen, name=name, help=line)
        else:
            app.command(name)(chosen)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program and exits."""
    if sys.stdout is None:  # Python's way of saying that it was closed
        print("error: found standard output closed; expected somewhere to write, if only /dev/null", file=sys.stderr)
        sys.exit(WRONG_USE)
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  # as long as the process
    code = run(sys.argv[1:] if arguments is None else arguments)
    try:
        sys.stdout.flush()
    except OSError as error:
        # What is left in the buffer cannot go there either; the interpreter would try again on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = READER_GONE if isinstance(error, BrokenPipeError) else _cannot_write(error)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Runs the program; its exit code."""
    try:
        hints = foreign_flags(arguments)
        if hints:
            print(*(f"error: {hint}" for hint in hints), sep="\n", file=sys.stderr)
            return WRONG_USE
        command = next((argument for argument in arguments if not argument.startswith("-")), None)
        build_app(command)(list(arguments), prog_name="surefoot")
    except SurefootError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG_USE
    except UnicodeEncodeError as error:
        unwritable = error.object[error.start : error.end]
        print(
            f"error: found {unwritable!a}, which cannot be written as {error.encoding}; expected valid Unicode and an "
            "output in UTF-8. Set PYTHONIOENCODING=utf-8",
            file=sys.stderr,
        )
        return WRONG_USE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO) or error.filename is not None:
            raise
        return _cannot_write(error)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # typer and rich end so, with 1, where the reader has gone
            return READER_GONE
        return stop.code if isinstance(stop.code, int) else 0
    return 0


def _cannot_write(error: OSError) -> int:
    print(f"error: the output cannot be written ({error}); expected a place with room", file=sys.stderr)
    return WRONG_USE


def _imported(name: str) -> ModuleType:
    """The module of this name. Ctrl-C meanwhile ends the process: half-imported modules cannot be got rid of, and what
    they raise later is no ``KeyboardInterrupt``."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler or current_thread() is not main_thread():
        return importlib.import_module(name)
    signal.signal(signal.SIGINT, _leave)
    try:
        return importlib.import_module(name)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: FrameType | None) -> None:
    print("interrupted", file=sys.stderr, flush=True)
    os._exit(INTERRUPTED)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


def _version(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Takes the flags that stand before a command."""


def _unreached() -> None:
    """Stands for the commands that were not named."""
    raise AssertionError("a command that was not named ran")
