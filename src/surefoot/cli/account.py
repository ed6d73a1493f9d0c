"""Lines that say where drafts were right and where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from surefoot.stats import Seconds

_BARS = "▁▂▃▄▅▆▇█"


def acceptance_row(drafted_by_position: Sequence[int], accepted_by_position: Sequence[int]) -> str:
    """A bar and a share per position after the root: of the rounds that drafted there, those whose draft stood."""
    cells = []
    for position, (drafted, accepted) in enumerate(
        zip(drafted_by_position, accepted_by_position, strict=True), start=1
    ):
        share = accepted / drafted
        cells.append(f"{position} {_BARS[round(share * (len(_BARS) - 1))]} {share:.0%}")
    return "  ".join(cells) if cells else "nothing drafted"


def time_row(seconds: Seconds) -> str:
    """Every phase with its seconds and its share of all of them."""
    phases: dict[str, float] = asdict(seconds)
    total = sum(phases.values())
    shares = [f"{name} {duration(value)} ({value / total if total else 0:.0%})" for name, value in phases.items()]
    return " · ".join(shares)


def duration(seconds: float) -> str:
    """Seconds, or milliseconds where there is less than one."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def acceptance_length(rounds: int, accepted: int) -> str:
    """The mean acceptance length with its formula."""
    length = 1 + accepted / rounds if rounds else 1.0
    return f"1 + accepted / rounds = 1 + {accepted}/{rounds} = {length:.2f}"


def in_lines(parts: Sequence[str], width: int) -> str:
    """The parts joined by dots, in lines of at most ``width`` characters; a longer part has a line of its own."""
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]} · {part}" if lines else part
        if lines and len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    return "\n".join(lines)
