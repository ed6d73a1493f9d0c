"""What one position's noise costs: ``python -m benchmarks.noise`` writes ``results/noise.json``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.common import write_result
from surefoot.noise import IntArray, PositionNoise

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
    path = write_result("noise", {"threads": 1, "median_of": REPEATS, "by_vocabulary": cases})
    print(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
