"""One planted defect: where it goes, what real bug it stands for, and the test that must notice it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class StaleMutantError(Exception):
    """The source no longer holds what a mutant replaces, so it would test nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A defect of one line.

    Attributes:
        name: what it does, in a few words joined by hyphens.
        bug: the real bug it stands for.
        file: the file it goes into, relative to the package.
        before: text of one line; it must occur exactly once in the file.
        after: what replaces it.
        killer: the test that must fail, as a pytest node id; without a parameter all of its cases are run.
    """

    name: str
    bug: str
    file: str
    before: str
    after: str
    killer: str

    def plant(self, source: str) -> str:
        """``source`` with the defect. Raises ``StaleMutantError`` where there is no one line to put it in."""
        count = source.count(self.before)
        if count != 1:
            raise StaleMutantError(
                f"{self.name}: found {count} places in {self.file} that read {self.before!r}; expected one. "
                "Bring the mutant up to date with the source"
            )
        mutated = source.replace(self.before, self.after)
        lines, mutated_lines = source.split("\n"), mutated.split("\n")
        pairs = zip(lines, mutated_lines, strict=False)
        if len(lines) != len(mutated_lines) or sum(old != new for old, new in pairs) != 1:
            raise StaleMutantError(f"{self.name}: changes more or less than one line of {self.file}; expected one")
        return mutated

    def plant_in(self, package: Path) -> None:
        """Writes the defect into a copy of the package."""
        path = package / self.file
        if not path.is_file():
            raise StaleMutantError(f"{self.name}: found no file {self.file}; expected one of the package's")
        mutated = self.plant(path.read_text("utf-8"))
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()
        path.write_text(mutated, "utf-8")
