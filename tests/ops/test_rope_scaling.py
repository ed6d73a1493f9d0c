"""Types of rotary positions scale as they say; that the numbers are those of transformers is shown in tests/models."""

from __future__ import annotations

import math

import pytest
import torch

from surefoot.ops.rope_scaling import Dynamic, Linear, Llama3, LongRope, Scaling, Yarn

CPU = torch.device("cpu")
THETA, DIM, CONTEXT = 10000.0, 32, 64


def frequencies(scaling: Scaling, length: int = 1) -> torch.Tensor:
    return scaling.frequencies(THETA, DIM, length, CPU)


PLAIN = frequencies(Scaling())
TURNS = CONTEXT * PLAIN / (2 * math.pi)
"""How often each pair turns within the context."""


def test_linear_divides_every_frequency() -> None:
    torch.testing.assert_close(frequencies(Linear(factor=4.0)), PLAIN / 4)


def test_llama3_divides_long_wavelengths_and_keeps_short_ones() -> None:
    scaled = frequencies(Llama3(factor=8.0, original_context=CONTEXT))
    assert torch.equal(scaled[TURNS > 4], PLAIN[TURNS > 4])
    torch.testing.assert_close(scaled[TURNS < 1], PLAIN[TURNS < 1] / 8)
    between = (TURNS > 1) & (TURNS < 4)
    assert between.any()
    assert ((scaled < PLAIN) & (scaled > PLAIN / 8))[between].all()


def test_yarn_keeps_pairs_that_turn_often_and_divides_those_that_turn_seldom() -> None:
    exact = frequencies(Yarn(factor=8.0, original_context=CONTEXT, beta_fast=4.0, truncate=False))
    torch.testing.assert_close(exact[TURNS > 4], PLAIN[TURNS > 4])
    torch.testing.assert_close(exact[TURNS < 1], PLAIN[TURNS < 1] / 8)
    between = (TURNS > 1) & (TURNS < 4)
    assert ((exact < PLAIN) & (exact > PLAIN / 8))[between].all()
    wider = frequencies(Yarn(factor=8.0, original_context=CONTEXT, beta_fast=4.0))
    assert not torch.equal(wider, exact)
    torch.testing.assert_close(wider[[0, -1]], exact[[0, -1]])


def test_yarn_without_a_blend_switches_from_one_pair_to_the_next() -> None:
    scaled = frequencies(Yarn(factor=8.0, original_context=CONTEXT, beta_fast=2.0, beta_slow=2.0, truncate=False))
    torch.testing.assert_close(scaled, torch.where(TURNS > 2, PLAIN, PLAIN / 8))


def test_dynamic_slows_with_the_length_until_the_slowest_pair_has_the_whole_factor() -> None:
    scaling = Dynamic(factor=2.0, trained_context=CONTEXT)
    assert torch.equal(frequencies(scaling, CONTEXT), PLAIN)
    lengths = [CONTEXT, CONTEXT + 1, 2 * CONTEXT, 5 * CONTEXT]
    slowest = torch.stack([frequencies(scaling, length)[-1] for length in lengths])
    growth = torch.tensor([2 * length / CONTEXT - 1 for length in lengths])
    torch.testing.assert_close(slowest, PLAIN[-1] / growth)
    assert all(frequencies(scaling, length)[0] == 1 for length in lengths)


@pytest.mark.parametrize(("length", "long"), [(1, False), (CONTEXT, False), (CONTEXT + 1, True), (1000, True)])
def test_longrope_divides_each_pair_by_the_factor_for_the_length(length: int, long: bool) -> None:
    short_factors, long_factors = torch.linspace(1, 2, DIM // 2), torch.linspace(1, 30, DIM // 2)
    scaling = LongRope(
        short_factors=tuple(short_factors.tolist()),
        long_factors=tuple(long_factors.tolist()),
        original_context=CONTEXT,
    )
    torch.testing.assert_close(frequencies(scaling, length), PLAIN / (long_factors if long else short_factors))
