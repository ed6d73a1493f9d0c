"""What one check found, and all of them together."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Literal

from surefoot.doctor.speed import Prediction
from surefoot.errors import SurefootError

Level = Literal["PASS", "WARN", "FAIL", "SKIP"]

_PARTS = re.compile(r"(?P<found>.*?)[;,:] expected (?P<expected>.*?)(?:[.;] (?P<mend>[A-Z].*)|\.?$)", re.DOTALL)
"""How our errors read: what was found, what was expected, what to do. Lines below the first are details."""
_ADVISED = re.compile(r"(?P<found>.*)\. (?P<mend>[A-Z][^.]*)\.?", re.DOTALL)
"""How those read that say only what was found and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check.

    Attributes:
        name: what was looked at.
        level: ``SKIP`` is no verdict: ``found`` says why it was not looked at.
        found: what there is.
        expected: what there should be, where that is not what was found.
        mend: what to do about it; never empty where the level is ``FAIL``.
        details: more of what was found, line by line.
    """

    name: str
    level: Level
    found: str
    expected: str = ""
    mend: str = ""
    details: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.level != "FAIL" or self.mend, self

    @classmethod
    def failed(cls, name: str, error: SurefootError, mend: str) -> Check:
        """The check that ``error`` ended, taken apart; ``mend`` serves where the error itself gives no advice."""
        first, *details = str(error).split("\n")
        parts = _PARTS.fullmatch(first.removesuffix(":"))
        if parts is None:
            advised = _ADVISED.fullmatch(first)
            found, mend = (advised["found"], advised["mend"]) if advised else (first, mend)
            return cls(name=name, level="FAIL", found=found, mend=mend, details=_stripped(details))
        return cls(
            name=name,
            level="FAIL",
            found=parts["found"],
            expected=parts["expected"],
            mend=parts["mend"] or mend,
            details=_stripped(details),
        )


def _stripped(lines: list[str]) -> tuple[str, ...]:
    return tuple(line.strip() for line in lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """An examination and what came of it.

    Attributes:
        model, drafter: as they were named.
        checks: in the order they were made.
        prediction: the predicted speedup with its parts; None where it could not be made.
    """

    model: str
    drafter: str
    checks: tuple[Check, ...]
    prediction: Prediction | None = None

    @property
    def conclusion(self) -> Level:
        """The worst level found; checks that were skipped decide nothing."""
        levels = {check.level for check in self.checks}
        return "FAIL" if "FAIL" in levels else "WARN" if "WARN" in levels else "PASS"

    def as_json(self) -> dict[str, object]:
        """Everything, as plain JSON values."""
        return {
            "model": self.model,
            "drafter": self.drafter,
            "conclusion": self.conclusion,
            "checks": [asdict(check) for check in self.checks],
            "speedup": None if self.prediction is None else self.prediction.as_json(),
        }


@dataclass(slots=True, kw_only=True)
class Findings:
    """The checks made so far; each is shown as it is made."""

    show: Callable[[Check], None]
    checks: list[Check] = field(default_factory=list)

    def add(self, check: Check) -> None:
        """Takes and shows one more."""
        self.checks.append(check)
        self.show(check)

    def skip(self, because: str, *names: str) -> None:
        """Notes checks that were not made, with the reason."""
        for name in names:
            self.add(Check(name=name, level="SKIP", found=f"skipped: {because}"))
