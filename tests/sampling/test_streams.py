"""Choices are strict at their ends and never pick the impossible."""

from __future__ import annotations

import pytest
import torch
from tests.sampling.statistics import chi_square, chi_square_limit

from surefoot.streams import Streams


class FixedStreams(Streams):
    """Streams whose variate is given."""

    def __init__(self, value: float) -> None:
        super().__init__(0, 0)
        self.value = value

    def uniform(self, node: int, purpose: str) -> float:
        return self.value


SMALLEST, LARGEST = 2.0**-53, 1 - 2.0**-53


@pytest.mark.parametrize("value", [SMALLEST, 0.5, LARGEST])
def test_a_coin_is_never_true_at_0_and_always_at_1(value):
    assert not FixedStreams(value).bernoulli(0.0, 0, "accept")
    assert FixedStreams(value).bernoulli(1.0, 0, "accept")
    assert not FixedStreams(value).bernoulli(value, 0, "accept"), "equality is a refusal"


@pytest.mark.parametrize("value", [SMALLEST, 0.25, 0.5, 0.75, LARGEST])
def test_a_choice_is_never_one_of_probability_zero(value):
    laws = [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 0.5, 0, 0.5, 0], [0.25, 0, 0.25, 0, 0.5, 0], [0.1] * 10 + [0]]
    for law in laws:
        probs = torch.tensor(law, dtype=torch.float64)
        assert probs[FixedStreams(value).categorical(probs, 0, "draft")] > 0


def test_a_choice_takes_unnormalised_rounding_in_its_stride():
    for seed in range(200):
        probs = torch.rand(50, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        probs[40:] = 0
        assert FixedStreams(LARGEST).categorical(probs / probs.sum(), 0, "draft") == 39


def test_variates_of_neighbouring_keys_are_independent():
    """Chi-square over 8 x 8 cells of each pair, 4,000 pairs, false alarm 1e-9."""
    for pair in ("rounds", "nodes", "purposes", "samples"):
        counts = [0] * 64
        streams = Streams(5, 0)
        for i in range(4000):
            first = streams.uniform(1, "draft")
            if pair == "nodes":
                second = streams.uniform(2, "draft")
            elif pair == "purposes":
                second = streams.uniform(1, "accept")
            streams.next_round()
            if pair == "rounds":
                second = streams.uniform(1, "draft")
            elif pair == "samples":
                first, second = (Streams(5, i + j).uniform(1, "draft") for j in (0, 1))
            counts[int(first * 8) * 8 + int(second * 8)] += 1
        assert chi_square(counts, [1 / 64] * 64) < chi_square_limit(63)


def test_variates_are_equal_only_for_equal_keys():
    def variate(seed=0, sample=0, rounds=0, node=0, purpose="a"):
        streams = Streams(seed, sample)
        for _ in range(rounds):
            streams.next_round()
        return streams.uniform(node, purpose)

    others = [variate(seed=1), variate(sample=1), variate(rounds=1), variate(node=1), variate(purpose="b")]
    assert variate() == variate()
    assert len({variate(), *others}) == 6
