"""The bundled hybrid and the DFlash drafters: held-out text is predicted, answers are exact, drafts worth it."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from recipes.pebble.export import load_exported as load_dense
from recipes.pebble.measure import read_prompts
from recipes.pebble.prepare import BUNDLE
from recipes.pebble_hybrid.export import load_exported as load_hybrid

import surefoot
from surefoot import Engine, SamplingParams, SpeculativeOptions
from surefoot.options import DTypeName, Exactness
from surefoot.stats import Stats

STEP = 5
"""Every so many prompts of the evaluation set."""
NUM_DRAFT = 7
PAIRS = [("pebble", "pebble-dflash"), ("pebble-hybrid", "pebble-hybrid-dflash")]
OTHERS = [("pebble-hybrid", "pebble-draft"), ("pebble-hybrid", "lookup")]
FLOORS = {
    ("pebble", 0.0): 2.93,
    ("pebble", 0.8): 1.73,
    ("pebble-hybrid", 0.0): 2.70,
    ("pebble-hybrid", 0.8): 1.78,
}
"""Mean acceptance length on these prompts by temperature, when it was measured, minus a tenth."""
MOST_LOSS = 2.21
"""Nats per token of these prompts for the hybrid when it was measured, plus a tenth."""
LEAST_AGREEMENT = 0.75
"""The share of their tokens after which hybrid and dense model choose the same, when measured, minus a tenth."""


@cache
def engine_of(target: str, drafter: str | None, dtype: DTypeName = "float32", exact: Exactness = "auto") -> Engine:
    return surefoot.load(target, drafter, dtype=dtype, exact=exact)


@torch.no_grad()
def test_the_hybrid_predicts_held_out_text_much_as_the_dense_model() -> None:
    ids = read_prompts()[::STEP]
    dense, hybrid = load_dense(BUNDLE / "pebble").logits(ids), load_hybrid(BUNDLE / "pebble-hybrid").logits(ids)
    loss = torch.nn.functional.cross_entropy(hybrid[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).item()
    agreement = (dense.argmax(-1) == hybrid.argmax(-1)).float().mean().item()
    assert loss < MOST_LOSS
    assert agreement > LEAST_AGREEMENT


def test_the_engine_computes_what_the_recipe_trained() -> None:
    """Greedy answers are the training network's own choices."""
    network = load_hybrid(BUNDLE / "pebble-hybrid")
    prompt = read_prompts()[3].tolist()
    result = engine_of("pebble-hybrid", None).generate(prompt, SamplingParams(max_tokens=40, ignore_eos=True))
    with torch.no_grad():
        chosen = network.logits(torch.tensor([[*prompt, *result.tokens]]))[0, len(prompt) - 1 : -1].argmax(-1)
    assert list(result.tokens) == chosen.tolist()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("target", "drafter"), [*PAIRS, ("pebble-hybrid", "pebble-draft"), ("pebble-hybrid", "lookup")]
)
def test_speculation_is_exact_on_real_text(target: str, drafter: str, dtype: DTypeName, temperature: float) -> None:
    engine = engine_of(target, drafter, dtype, "require")
    accepted = 0
    for prompt in read_prompts()[::20].tolist():
        params = SamplingParams(temperature=temperature, max_tokens=48, seed=4, ignore_eos=True)
        plain = engine.generate(prompt, params, speculative=SpeculativeOptions(num_draft=0))
        result = engine.generate(prompt, params, speculative=SpeculativeOptions(num_draft=NUM_DRAFT))
        assert result.tokens == plain.tokens
        assert result.stats.strict
        assert result.stats.fallbacks == 0
        accepted += result.stats.accepted
    assert accepted > 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("target", "drafter"), PAIRS)
def test_drafts_are_as_often_right_as_they_were(target: str, drafter: str, temperature: float) -> None:
    engine, stats = engine_of(target, drafter), list[Stats]()
    params = SamplingParams(temperature=temperature, max_tokens=128, seed=4, ignore_eos=True)
    for prompt in read_prompts()[::STEP].tolist():
        stats.append(engine.generate(prompt, params, speculative=SpeculativeOptions(num_draft=NUM_DRAFT)).stats)
    assert sum(one.fallbacks for one in stats) == 0
    length = 1 + sum(one.accepted for one in stats) / sum(one.rounds for one in stats)
    assert length >= FLOORS[target, temperature]


def test_the_bundled_drafters_say_whose_they_are() -> None:
    """Their shapes agree with both targets, so that only the record beside the weights tells."""
    for target, drafter in PAIRS:
        for other, _ in PAIRS:
            told = any("names another target" in note for note in surefoot.load(other, drafter).notes)
            assert told == (other != target)
