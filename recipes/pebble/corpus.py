"""The standard library's part of the text: which files are read, and which modules are held out.

Files come from the running Python's own standard library, in sorted order. Files that are data rather than program
text (character tables, generated help topics) are skipped by a measured share of digits and by a short list.
"""

import string
import sysconfig
from dataclasses import dataclass
from pathlib import Path

HELD_OUT: tuple[str, ...] = (
    "asyncio/streams.py",
    "calendar.py",
    "cmd.py",
    "contextlib.py",
    "csv.py",
    "fileinput.py",
    "fractions.py",
    "gettext.py",
    "html/parser.py",
    "json/decoder.py",
    "lib2to3/pytree.py",
    "plistlib.py",
    "pprint.py",
    "queue.py",
    "selectors.py",
    "shlex.py",
    "socketserver.py",
    "tempfile.py",
    "textwrap.py",
    "tkinter/filedialog.py",
    "trace.py",
    "unittest/loader.py",
    "urllib/robotparser.py",
    "wsgiref/handlers.py",
)
"""Ordinary modules of 8 to 40 KB from many areas, never trained on; the evaluation set is cut from them."""

DATA_FILES: tuple[str, ...] = ("html/entities.py", "pydoc_data/topics.py", "this.py", "stringprep.py")
MAX_DIGIT_SHARE = 0.12
MIN_CHARACTERS = 200
TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})
SKIPPED_FOLDERS = frozenset({"site-packages", "__pycache__", "cjkencodings", "encoded_modules", "data"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One readable source file: its path below its root, its text, whether it is part of a test suite."""

    path: str
    text: str
    is_test: bool


def digit_share(text: str) -> float:
    """Returns the share of ASCII digits among the characters that are not white space; tables of numbers score high."""
    visible = sum(map(len, text.split()))
    return sum(map(text.count, string.digits)) / max(1, visible)


def is_program(text: str) -> bool:
    """Returns whether `text` is neither tiny nor mostly numbers."""
    return len(text) >= MIN_CHARACTERS and digit_share(text) <= MAX_DIGIT_SHARE


def read_source(root: Path, path: Path) -> SourceFile | None:
    """Returns the file when it is program text, None when it is undecodable, tiny, generated or mostly data."""
    relative = path.relative_to(root)
    name = relative.as_posix()
    if SKIPPED_FOLDERS.intersection(relative.parts) or name in DATA_FILES or name.startswith("_sysconfigdata"):
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
    if not is_program(text):
        return None
    return SourceFile(path=name, text=text, is_test=bool(TEST_FOLDERS.intersection(relative.parts)))


def collect_sources(root: Path | None = None) -> list[SourceFile]:
    """Returns every program file of the standard library at `root` (default: the running Python's), in path order."""
    root = root or Path(sysconfig.get_path("stdlib"))
    found = (read_source(root, path) for path in sorted(root.rglob("*.py")))
    return [source for source in found if source is not None]


def split_held_out(sources: list[SourceFile]) -> tuple[list[SourceFile], list[SourceFile]]:
    """Returns (training candidates, held-out modules).

    Raises ValueError when a held-out module is missing from `sources`.
    """
    held_out = [source for source in sources if source.path in HELD_OUT]
    missing = sorted(set(HELD_OUT) - {source.path for source in held_out})
    if missing:
        raise ValueError(f"held-out modules not found in this standard library: {missing}; use CPython 3.11")
    return [source for source in sources if source.path not in HELD_OUT], held_out
