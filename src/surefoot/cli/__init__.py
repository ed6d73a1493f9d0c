"""The command line: parses, finds the command, and turns our errors into exit codes.

Exit codes: 0 done; 1 ``prove`` found a real divergence; 2 wrong usage, or an error of ours; 3 ``prove`` found near-ties
only; 4 ``prove`` could prove nothing, because nothing was speculated; 130 interrupted.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from surefoot import __version__
from surefoot.cli.hints import foreign_flags
from surefoot.errors import SurefootError

COMMANDS = {
    "generate": "Completes a prompt, shows where each token came from, and measures the gain.",
    "prove": "Runs your own pair with and without speculation and compares the tokens.",
}


def build_app(command: str | None) -> typer.Typer:
    """The application, with only ``command``'s module imported: help for the others is one line."""
    app = typer.Typer(name="surefoot", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    app.callback(help="Exact speculative decoding of local language models.")(_version)
    for name, line in COMMANDS.items():
        if name == command:
            app.command(name)(importlib.import_module(f"surefoot.cli.{name}").command)
        else:
            app.command(name, help=line)(_unreached)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program and exits."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Runs the program; its exit code."""
    try:
        hints = foreign_flags(arguments)
        if hints:
            print(*(f"error: {hint}" for hint in hints), sep="\n", file=sys.stderr)
            return 2
        command = next((argument for argument in arguments if not argument.startswith("-")), None)
        build_app(command)(list(arguments), prog_name="surefoot")
    except SurefootError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    return 0


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
