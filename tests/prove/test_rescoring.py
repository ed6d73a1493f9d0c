"""The gap of a token: the rise of its logit that makes the production sampler draw it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot import SamplingParams
from surefoot.noise import gumbel_reference
from surefoot.rescoring import smallest_rise
from surefoot.sampling import RequestSampler

VOCABULARY = 12
PROMPT = (3, 1, 4)


def gap_of(row: torch.Tensor, token: int, params: SamplingParams, seed: int = 5) -> float | None:
    sampler = RequestSampler(params, PROMPT, seed=seed, vocab_size=VOCABULARY)
    return smallest_rise(row, token, sampler.draw)


def row_of(number: int) -> torch.Tensor:
    return torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(number), dtype=torch.float64) * 3


@given(st.integers(0, 10**6), st.integers(0, VOCABULARY - 1))
@settings(max_examples=50, deadline=None)
def test_the_greedy_gap_is_the_distance_of_the_logits(number: int, token: int) -> None:
    row = row_of(number)
    assert gap_of(row, token, SamplingParams()) == pytest.approx(float(row.max() - row[token]), rel=1e-5, abs=1e-10)


@given(st.integers(0, 10**6), st.integers(0, VOCABULARY - 1), st.sampled_from([0.3, 0.8, 2.0]))
@settings(max_examples=50, deadline=None)
def test_the_sampled_gap_is_the_distance_of_the_scores_in_logits(number: int, token: int, temperature: float) -> None:
    row = row_of(number)
    noise = torch.tensor([gumbel_reference(5, 0, len(PROMPT), i) for i in range(VOCABULARY)], dtype=torch.float64)
    scores = row / temperature + noise
    expected = temperature * float(scores.max() - scores[token])
    gap = gap_of(row, token, SamplingParams(temperature=temperature))
    assert gap == pytest.approx(expected, rel=1e-5, abs=1e-9)


def test_a_token_that_processors_cut_off_must_rise_until_they_let_it_in() -> None:
    row = torch.arange(VOCABULARY, dtype=torch.float64)
    gap = gap_of(row, 0, SamplingParams(temperature=0.8, top_k=2))
    assert gap is not None
    assert gap >= 10 - 1e-5


def test_a_forbidden_token_has_no_gap() -> None:
    assert gap_of(row_of(1), 3, SamplingParams(forbidden_tokens=(3,))) is None


def test_the_token_that_is_drawn_has_a_gap_of_zero() -> None:
    row = row_of(2)
    assert gap_of(row, int(row.argmax()), SamplingParams()) == 0.0
