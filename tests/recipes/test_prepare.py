"""The evaluation set is kept apart from the training text."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from recipes.pebble.prepare import WINDOW, drop_contaminated, drop_repeats, window_hashes


def shares_window_reference(one: list[int], other: list[int], window: int) -> bool:
    """Whether any run of ``window`` tokens of one text stands in the other: by comparing all of them."""
    runs = {tuple(one[i : i + window]) for i in range(len(one) - window + 1)}
    return any(tuple(other[i : i + window]) in runs for i in range(len(other) - window + 1))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=30), st.lists(st.integers(0, 2), max_size=30), st.integers(1, 6))
def test_equal_hashes_are_equal_runs(one: list[int], other: list[int], window: int) -> None:
    hashes = (window_hashes(np.array(text, dtype=np.uint16), window) for text in (one, other))
    shared = np.intersect1d(*hashes).size > 0
    assert shared == shares_window_reference(one, other, window)


def test_a_file_that_shares_fifty_tokens_is_dropped_and_named() -> None:
    generator = np.random.default_rng(0)
    held_out = {"held.py": generator.integers(0, 4096, 400).astype(np.uint16)}
    fresh = generator.integers(0, 4096, 300).astype(np.uint16)
    copied = fresh.copy()
    copied[100 : 100 + WINDOW] = held_out["held.py"][200 : 200 + WINDOW]
    almost = fresh.copy()
    almost[100 : 99 + WINDOW] = held_out["held.py"][200 : 199 + WINDOW]
    clean, dropped = drop_contaminated({"fresh.py": fresh, "copied.py": copied, "almost.py": almost}, held_out)
    assert set(clean) == {"fresh.py", "almost.py"}
    assert dropped == {"copied.py": ["held.py"]}


def test_a_file_that_mostly_repeats_earlier_ones_is_dropped() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.integers(0, 4096, (2, 4000)).astype(np.uint16)
    mostly = np.concatenate([first[:3000], second[:1000]])
    partly = np.concatenate([first[:1000], second[1000:]])
    seen: set[int] = set()
    assert set(drop_repeats({"first.py": first, "mostly.py": mostly, "partly.py": partly}, seen)) == {
        "first.py",
        "partly.py",
    }
    assert drop_repeats({"again.py": first.copy()}, seen) == {}, "what was seen is remembered between calls"
