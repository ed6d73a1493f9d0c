"""Processors have the supports and the probabilities of transformers' own, edges included."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as theirs

from surefoot.options import SamplingParams
from surefoot.sampling import RequestSampler
from surefoot.sampling.processors import Support, top_k, top_p

V = 12
PROMPT = [3, 4, 4, 1]


def their_law(params: SamplingParams, logits: torch.Tensor, context: list[int], stop_ids: list[int]) -> torch.Tensor:
    """The probabilities after transformers' processors, in the order its ``generate`` builds them."""
    chain: list[theirs.LogitsProcessor] = []
    if params.logit_bias:
        chain.append(theirs.SequenceBiasLogitsProcessor({(t,): float(b) for t, b in params.logit_bias.items()}))
    if params.repetition_penalty != 1:
        chain.append(theirs.RepetitionPenaltyLogitsProcessor(float(params.repetition_penalty)))
    if params.min_tokens and stop_ids:
        chain.append(theirs.MinNewTokensLengthLogitsProcessor(len(PROMPT), params.min_tokens, stop_ids))
    if params.allowed_tokens is not None:
        allowed = list(params.allowed_tokens)
        chain.append(theirs.PrefixConstrainedLogitsProcessor(lambda batch, ids: allowed, 1))
    if params.forbidden_tokens:
        chain.append(theirs.SuppressTokensLogitsProcessor(list(params.forbidden_tokens)))
    if not params.greedy:
        chain.append(theirs.TemperatureLogitsWarper(float(params.temperature)))
        if params.top_k:
            chain.append(theirs.TopKLogitsWarper(params.top_k))
        if params.top_p < 1:
            chain.append(theirs.TopPLogitsWarper(params.top_p))
        if params.min_p > 0:
            chain.append(theirs.MinPLogitsWarper(params.min_p))
    scores = logits[None].clone()
    for processor in chain:
        scores = processor(torch.tensor([context]), scores)
    if params.greedy:
        law = torch.zeros(len(logits), dtype=torch.float64)
        law[int(scores[0].argmax())] = 1
        return law
    return scores[0].softmax(-1)


def our_law(params: SamplingParams, logits: torch.Tensor, output: list[int], path: list[int], stop_ids: list[int]):
    sampler = RequestSampler(params, PROMPT, seed=0, vocab_size=V, stop_ids=stop_ids)
    sampler.advance(output)
    return sampler.law(logits, path)


def assert_same(params: SamplingParams, logits: torch.Tensor, output: list[int], path: list[int], stop_ids: list[int]):
    ours = our_law(params, logits, output, path, stop_ids)
    expected = their_law(params, logits, [*PROMPT, *output, *path], stop_ids)
    assert ((ours > 0) == (expected > 0)).all(), (params, ours, expected)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)


SINGLES = [
    {"temperature": 1},
    {"temperature": 0.3},
    {"temperature": 2.5},
    {"temperature": 1, "top_k": 1},
    {"temperature": 1, "top_k": 4},
    {"temperature": 1, "top_k": V},
    {"temperature": 1, "top_k": 5 * V},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1, "top_p": 0.5},
    {"temperature": 1, "top_p": 1e-9},
    {"temperature": 1, "top_p": 0.999999},
    {"temperature": 1, "min_p": 0.1},
    {"temperature": 1, "min_p": 1},
    {"repetition_penalty": 1.3},
    {"temperature": 1, "repetition_penalty": 0.6},
    {"temperature": 1, "logit_bias": {0: 5, 11: -100, 4: 1.5}},
    {"logit_bias": {0: 100}},
    {"temperature": 1, "forbidden_tokens": (0, 3, 7)},
    {"temperature": 1, "allowed_tokens": (1, 2, 9)},
    {"temperature": 1, "min_tokens": 3},
    {"min_tokens": 2},
    {"temperature": 0.8, "top_k": 6, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.2, "logit_bias": {2: 3}},
]


@pytest.mark.parametrize("options", SINGLES, ids=str)
def test_a_processor_has_the_law_of_transformers(options):
    generator = torch.Generator().manual_seed(7)
    params = SamplingParams(**options)
    for output, path in [([], []), ([5], []), ([5, 5, 3], [2]), ([0], [1, 1, 7])]:
        for scale in (0.1, 1.0, 6.0):
            logits = torch.randn(V, generator=generator, dtype=torch.float64) * scale
            assert_same(params, logits, output, path, stop_ids=[2, 8])


def test_random_combinations_have_the_law_of_transformers():
    rng = random.Random(3)
    generator = torch.Generator().manual_seed(8)
    for _ in range(400):
        params = SamplingParams(
            temperature=rng.choice([0, 0.5, 1, 1.7]),
            top_k=rng.choice([0, 1, 3, 8, 40]),
            top_p=rng.choice([1.0, 0.95, 0.6, 0.1]),
            min_p=rng.choice([0.0, 0.02, 0.3]),
            repetition_penalty=rng.choice([1.0, 1.3, 0.8]),
            logit_bias=rng.choice([{}, {1: 2.0, 6: -3.0}]),
            forbidden_tokens=rng.choice([(), (0, 5)]),
            allowed_tokens=rng.choice([None, (1, 2, 3, 4, 6, 9)]),
            min_tokens=rng.choice([0, 2, 4]),
        )
        logits = torch.randn(V, generator=generator, dtype=torch.float64) * rng.choice([0.5, 3.0])
        output = [rng.randrange(V) for _ in range(rng.randrange(4))]
        path = [rng.randrange(V) for _ in range(rng.randrange(3))]
        assert_same(params, logits, output, path, stop_ids=[2, 8])


def test_the_comparison_sees_a_forgotten_path():
    """The negative control: rows processed without their own path have another law."""
    params = SamplingParams(temperature=1, repetition_penalty=1.5)
    logits = torch.linspace(-2, 3, V, dtype=torch.float64)
    ours = our_law(params, logits, [5], [], [])
    assert not torch.allclose(ours, their_law(params, logits, [*PROMPT, 5, 9], []))


def test_minus_infinity_is_an_impossible_token():
    logits = torch.tensor([0.0, -math.inf, 1.0] * 4, dtype=torch.float64)
    for options in ({"temperature": 1}, {"temperature": 1, "top_k": 10}, {"temperature": 1, "top_p": 0.7}):
        assert_same(SamplingParams(**options), logits, [], [], [])


def test_top_k_keeps_all_ties_with_the_kth():
    support = Support(ids=None, logits=np.array([0.0, -1.0, -1.0, -1.0, -2.0]))
    assert top_k(support, 2).ids.tolist() == [0, 1, 2, 3]
    assert_same(
        SamplingParams(temperature=1, top_k=2), torch.tensor([0.0, -1, -1, -1, -2] + [-9.0] * 7).double(), [], [], []
    )


def test_top_p_drops_the_highest_of_tied_ids_first():
    support = Support(ids=None, logits=np.zeros(4))
    assert top_p(support, 0.5).ids.tolist() == [0, 1]
    assert top_p(support, 0.51).ids.tolist() == [0, 1, 2]
    assert top_p(support, 1e-12).ids.tolist() == [0]


def test_top_p_comes_after_top_k_on_renormalised_probabilities():
    """Of .35 .25 .2 .05 ... with k = 4, renormalised, .82 takes three tokens; unnormalised it would take four."""
    probs = torch.tensor([0.35, 0.25, 0.20, 0.05] + [0.15 / 8] * 8, dtype=torch.float64)
    law = our_law(SamplingParams(temperature=1, top_k=4, top_p=0.82), probs.log(), [], [], [])
    assert (law > 0).sum() == 3
    assert_same(SamplingParams(temperature=1, top_k=4, top_p=0.82), probs.log(), [], [], [])


def test_top_p_of_a_large_row_equals_the_plain_definition():
    """The shortcut that sorts only likely tokens drops what the full sort drops."""
    rng = np.random.default_rng(0)
    for scale, p in itertools.product([0.01, 1.0, 4.0, 12.0], [0.05, 0.5, 0.9, 0.99, 0.9999]):
        logits = rng.normal(size=2000) * scale
        probs = np.exp(logits - logits.max())
        probs /= probs.sum()
        ascending = np.argsort(probs, kind="stable")
        removed = np.cumsum(probs[ascending]) <= 1 - p
        removed[-1] = False
        expected = np.sort(ascending[~removed])
        assert top_p(Support(ids=None, logits=logits - logits.max()), p).ids.tolist() == expected.tolist()


@pytest.mark.parametrize("presence", [0.0, 0.7, -1.5])
@pytest.mark.parametrize("frequency", [0.0, 0.4, -2.0])
def test_presence_and_frequency_penalise_the_output_alone(presence, frequency):
    params = SamplingParams(temperature=1, presence_penalty=presence, frequency_penalty=frequency)
    logits = torch.linspace(-2, 2, V, dtype=torch.float64)
    output, path = [5, 5, 3], [5, 9]
    expected = logits.clone()
    for token in range(V):
        count = [*output, *path].count(token)
        expected[token] -= presence * (count > 0) + frequency * count
    torch.testing.assert_close(our_law(params, logits, output, path, []), expected.softmax(-1))


def test_temperature_cannot_overflow():
    logits = torch.tensor([3e38, 2.9e38, -3e38, *[0.0] * 9], dtype=torch.float32)
    law = our_law(SamplingParams(temperature=1e-5), logits, [], [], [])
    assert law.tolist() == [1.0] + [0.0] * 11
