"""Measures files, functions and arguments against the size caps.

``python -m tools.size`` prints every file of ``src`` beside its budget and exits with 1 when something is past its cap.
Arguments count all named parameters but ``self`` and ``cls``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "src"

SOFT_LINES = 250
HARD_LINES = 400
FUNCTION_LINES = 60
ARGUMENTS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function's place and size."""

    name: str
    line: int
    lines: int
    arguments: int


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One source file's size and its functions."""

    path: Path
    lines: int
    functions: tuple[Function, ...]

    def excesses(self) -> Iterator[str]:
        """What is past a hard cap, a line each."""
        if self.lines > HARD_LINES:
            yield f"{self.path}: {self.lines} lines; at most {HARD_LINES}"
        for function in self.functions:
            place = f"{self.path}:{function.line} {function.name}"
            if function.lines > FUNCTION_LINES:
                yield f"{place}: {function.lines} lines; at most {FUNCTION_LINES}"
            if function.arguments > ARGUMENTS:
                yield f"{place}: {function.arguments} arguments; at most {ARGUMENTS}"


def measure(path: Path) -> File:
    """The sizes of one Python file."""
    source = path.read_text(encoding="utf-8")
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    functions = tuple(
        Function(
            name=node.name,
            line=node.lineno,
            lines=(node.end_lineno or node.lineno) - node.lineno + 1,
            arguments=sum(
                arg.arg not in ("self", "cls")
                for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            ),
        )
        for node in nodes
    )
    return File(path=path, lines=len(source.splitlines()), functions=functions)


def measure_all(root: Path = SOURCES) -> list[File]:
    """The sizes of every Python file under ``root``."""
    return [measure(path) for path in sorted(root.rglob("*.py"))]


def main() -> int:
    """Prints the table and says whether every hard cap is kept."""
    files = measure_all()
    print(f"{'lines':>6} {'longest function':>17} {'most arguments':>15}  file")
    print(f"{SOFT_LINES:>6} {FUNCTION_LINES:>17} {ARGUMENTS:>15}  budget (hard cap {HARD_LINES} lines)")
    for file in files:
        longest = max((function.lines for function in file.functions), default=0)
        widest = max((function.arguments for function in file.functions), default=0)
        mark = "  over the soft budget" if file.lines > SOFT_LINES else ""
        print(f"{file.lines:>6} {longest:>17} {widest:>15}  {file.path.relative_to(SOURCES)}{mark}")
    print(f"{sum(file.lines for file in files):>6} {'':>17} {'':>15}  total of {len(files)} files")
    excesses = [line for file in files for line in file.excesses()]
    print(*excesses, sep="\n", end="\n" if excesses else "")
    return 1 if excesses else 0


if __name__ == "__main__":
    sys.exit(main())
