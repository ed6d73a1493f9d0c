"""What one position's noise costs at a large vocabulary: ``python benchmarks/noise.py`` writes results/noise.json."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from surefoot.noise import IntArray, PositionNoise

RESULT = Path(__file__).parent / "results" / "noise.json"
REPEATS = 51


def median_microseconds(call: Callable[[int], object]) -> float:
    """Median wall time of ``call(position)`` over fresh positions."""
    seconds = []
    for position in range(REPEATS):
        start = time.perf_counter()
        call(position)
        seconds.append(time.perf_counter() - start)
    return round(statistics.median(seconds) * 1e6, 1)


def call_swapped(call: Callable[[int, IntArray], object], ids: IntArray, position: int) -> object:
    """``call(position, ids)``."""
    return call(position, ids)


def main() -> None:
    """Measures whole rows and a support of 50 ids, and writes the JSON."""
    cases = {}
    for vocab_size in (4096, 32_000, 152_064):
        ids = np.linspace(0, vocab_size - 1, 50).astype(np.int64)
        noise = PositionNoise(1, 0, vocab_size)
        cases[str(vocab_size)] = {
            "support_of_50_us": median_microseconds(partial(call_swapped, noise.at, ids)),
            "whole_row_us": median_microseconds(noise.row),
        }
    report = {
        "command": "python benchmarks/noise.py",
        "hardware": f"{platform.machine()} {platform.system()}, 1 thread",
        "numpy": np.__version__,
        "torch": torch.__version__,
        "median_of": REPEATS,
        "by_vocabulary": cases,
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(report, indent=2) + "\n")
    print(RESULT.read_text())


if __name__ == "__main__":
    main()
