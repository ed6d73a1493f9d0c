"""What noise and draws cost: ``python -m benchmarks.noise`` writes ``results/noise.json``.

A draw is one row of fp32 logits to one token. Rows are normal with a standard deviation of 1, as a random model's,
where many tokens are likely, and of 3, where few are. The kernels use as many threads as torch; all else uses one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from benchmarks.common import write_result
from surefoot import native
from surefoot.noise import IntArray, PositionNoise
from surefoot.options import SamplingParams
from surefoot.sampling import RequestSampler

REPEATS = 51
VOCABULARIES = (4096, 32_000, 152_064)
SPREADS = (1.0, 3.0)
DRAWS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(),
    "T=0.8": SamplingParams(temperature=0.8),
    "T=0.8, top-p 0.95": SamplingParams(temperature=0.8, top_p=0.95),
    "T=0.8, top-k 50": SamplingParams(temperature=0.8, top_k=50),
    "T=0.8, min-p 0.05": SamplingParams(temperature=0.8, min_p=0.05),
    "T=0.8, penalties": SamplingParams(
        temperature=0.8, repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.2
    ),
}


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


def draw_microseconds(params: SamplingParams, vocab_size: int, spread: float) -> float:
    """Median wall time of one draw, each from a row of its own at a position of its own."""
    sampler = RequestSampler(params, list(range(200)), seed=1, vocab_size=vocab_size)
    rows = torch.randn(REPEATS, vocab_size, generator=torch.Generator().manual_seed(0)) * spread
    seconds = []
    for row in rows:
        start = time.perf_counter()
        token = sampler.draw(row)
        seconds.append(time.perf_counter() - start)
        sampler.advance([token])
    return round(statistics.median(seconds) * 1e6, 1)


def draw_cases(vocab_size: int) -> dict[str, dict[str, float]]:
    """Every kind of draw by the rows' spread."""
    return {
        name: {f"spread_{spread:g}_us": draw_microseconds(params, vocab_size, spread) for spread in SPREADS}
        for name, params in DRAWS.items()
    }


def main() -> None:
    """Measures whole rows of noise, a support of 50 ids, and draws; writes the JSON."""
    cases = {}
    for vocab_size in VOCABULARIES:
        ids = np.linspace(0, vocab_size - 1, 50).astype(np.int64)
        noise = PositionNoise(1, 0, vocab_size)
        cases[str(vocab_size)] = {
            "support_of_50_us": median_microseconds(partial(call_swapped, noise.at, ids)),
            "whole_row_us": median_microseconds(noise.row),
            "draw_a_row": draw_cases(vocab_size),
        }
    library = native.available()
    made_with = {
        "threads": torch.get_num_threads(),
        "kernels": None if library is None else library.instructions,
        "median_of": REPEATS,
    }
    path = write_result("noise", {**made_with, "by_vocabulary": cases})
    print(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
