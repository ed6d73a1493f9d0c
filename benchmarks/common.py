"""What the benchmarks share: interleaved timing, medians, and results with their circumstances."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from surefoot.prompts import evaluation_set
from surefoot.provenance import Provenance

RESULTS = Path(__file__).parent / "results"


def evaluation_prompts(limit: int | None = None) -> list[tuple[int, ...]]:
    """The token ids of pebble's evaluation prompts."""
    return [tuple(ids) for ids, _ in evaluation_set()[:limit]]


def timed(run: Callable[[], Sequence[int]]) -> tuple[float, tuple[int, ...]]:
    """Seconds a run took, and the ids it gave."""
    started = perf_counter()
    tokens = tuple(run())
    return perf_counter() - started, tokens


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The names from another starting point each turn, so that no variant always follows the same one."""
    start = turn % len(names)
    return [*names[start:], *names[:start]]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Minimum, median and maximum."""
    return {"min": min(values), "median": median(values), "max": max(values)}


def write_result(name: str, body: Mapping[str, object], *, device: str = "cpu") -> Path:
    """Writes ``results/<name>.json`` with the run's provenance; ``device`` names what it ran on."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {"provenance": Provenance.collect(device).as_json(), **body}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path
