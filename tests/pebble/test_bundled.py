"""The bundled models: they load offline, they are what they say, speculation on them is exact and worth its drafts."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest

import surefoot
from surefoot import Engine, SamplingParams, SpeculativeOptions
from surefoot.options import Acceptance, DraftSampling, DTypeName, Exactness
from surefoot.prompts import builtin
from surefoot.stats import Stats

NUM_PROMPTS = 8
"""Prompts of the evaluation set that the floors are measured on: every fifth one."""

FLOORS = [
    ("lookup", 0.0, "match", None, 2.71),
    ("pebble-draft", 0.0, "match", None, 4.01),
    ("pebble-draft", 0.8, "match", "shared", 2.72),
    ("pebble-draft", 0.8, "reject", None, 3.02),
]
"""Mean acceptance length on these prompts when it was measured, minus a tenth; the measurement of all forty is in
``benchmarks/results/acceptance.json``."""


@cache
def engine_of(drafter: str | None, dtype: DTypeName = "float32", exact: Exactness = "auto") -> Engine:
    return surefoot.load("pebble", drafter, dtype=dtype, exact=exact)


def prompts_of(engine: Engine, step: int) -> list[str | list[int]]:
    return builtin(engine.tokenizer)[::step]


def test_they_fit_the_budget_and_are_bf16() -> None:
    directory = Path(str(files("surefoot") / "pebble"))
    weights = list(directory.rglob("*.safetensors"))
    assert {path.parent.name for path in weights} >= {"pebble", "pebble-draft"}
    assert sum(path.stat().st_size for path in weights) < 90e6
    for path in weights:
        assert json.loads((path.parent / "config.json").read_text())["dtype"] == "bfloat16"


def test_the_built_in_prompts_are_the_evaluation_set() -> None:
    prompts = builtin(engine_of(None).tokenizer)
    assert len(prompts) == 40
    assert all(isinstance(prompt, list) and len(prompt) == 160 for prompt in prompts)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("drafter", ["lookup", "pebble-draft"])
def test_speculation_is_exact_on_real_text(drafter: str, dtype: DTypeName, temperature: float) -> None:
    engine = engine_of(drafter, dtype, "require")
    accepted = 0
    for prompt in prompts_of(engine, 20):
        params = SamplingParams(temperature=temperature, max_tokens=48, seed=4, ignore_eos=True)
        plain = engine.generate(prompt, params, speculative=SpeculativeOptions(num_draft=0))
        result = engine.generate(prompt, params)
        assert result.tokens == plain.tokens
        assert result.text == plain.text
        assert result.stats.strict
        assert result.stats.fallbacks == 0
        accepted += result.stats.accepted
    assert accepted > 0


def measured(
    drafter: str, temperature: float, acceptance: Acceptance = "match", sampling: DraftSampling | None = None
) -> float:
    """Mean acceptance length with 4 drafts over 128 tokens of ``NUM_PROMPTS`` prompts."""
    engine = engine_of(drafter)
    options = SpeculativeOptions(num_draft=4, acceptance=acceptance, draft_sampling=sampling)
    params = SamplingParams(temperature=temperature, max_tokens=128, seed=20261120, ignore_eos=True)
    stats: list[Stats] = []
    for prompt in prompts_of(engine, 40 // NUM_PROMPTS):
        stats.append(engine.generate(prompt, params, speculative=options).stats)
    assert sum(one.fallbacks for one in stats) == 0
    return 1 + sum(one.accepted for one in stats) / sum(one.rounds for one in stats)


@pytest.mark.parametrize(("drafter", "temperature", "acceptance", "sampling", "floor"), FLOORS)
def test_drafts_are_as_often_right_as_they_were(
    drafter: str, temperature: float, acceptance: Acceptance, sampling: DraftSampling | None, floor: float
) -> None:
    assert measured(drafter, temperature, acceptance, sampling) >= floor
