"""The ends of the noise in the code that draws: the smallest and the largest word any id can get."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from surefoot.noise import gumbel_of_weyl, gumbel_on_device, splitmix64, weyl_words

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def key_of_state(state: int) -> int:
    """The key that puts the generator of id 0 into ``state`` before it is mixed."""
    return (state - GOLDEN) & WORD


def state_of_word(word: int) -> int:
    """The state splitmix64 turns into ``word``."""
    z = xor_shift_inverse(word, 31)
    z = z * pow(0x94D049BB133111EB, -1, 1 << 64) & WORD
    z = xor_shift_inverse(z, 27)
    z = z * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & WORD
    return xor_shift_inverse(z, 30)


def xor_shift_inverse(value: int, shift: int) -> int:
    """``z`` with ``z ^ (z >> shift) == value``."""
    z = value
    for _ in range(64 // shift):
        z = value ^ (z >> shift)
    return z


@pytest.mark.parametrize(("word", "low", "high"), [(0, -3.61, -3.6), (WORD, 36.7, 36.75)])
def test_noise_is_finite_at_both_ends_of_the_word(word: int, low: float, high: float) -> None:
    state = state_of_word(word)
    assert splitmix64((state - GOLDEN) & WORD) == word
    key = key_of_state(state)
    (host,) = gumbel_of_weyl(key, weyl_words(np.zeros(1, dtype=np.int64)))
    (device,) = gumbel_on_device(key, torch.zeros(1, dtype=torch.int64)).tolist()
    assert low < host < high
    assert low < device < high
