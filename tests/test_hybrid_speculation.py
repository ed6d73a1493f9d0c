"""Hybrid models through the whole engine, as targets and as draft models: the text is the text without drafts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from tests.guesses import Guesser, half_right
from tests.pairs import relative_of, target_of

from surefoot import Engine, SamplingParams, SpeculativeOptions
from surefoot.cache.hybrid import HybridCache
from surefoot.drafters.draft_model import DraftModel
from surefoot.drafters.lookup import Lookup
from surefoot.protocols import DrafterModel
from surefoot.request import Result

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PROMPT = (5, 9, 5, 9, 11, 60, 5, 9, 11, 3, 3, 7)
PLAIN = SpeculativeOptions(num_draft=0)


NUM_TOKENS = 24
FEW = (3, 5, 9, 11, 60)
"""What may be drawn, so that a random model repeats itself and lookup is right now and then."""


def params_at(temperature: float) -> SamplingParams:
    return SamplingParams(temperature=temperature, max_tokens=NUM_TOKENS, seed=11, allowed_tokens=FEW)


@cache
def plain(family: str, dtype: torch.dtype, temperature: float) -> tuple[int, ...]:
    return Engine(target_of(family, dtype)).generate(PROMPT, params_at(temperature)).tokens


def drafter_of(name: str, family: str, dtype: torch.dtype, temperature: float) -> DrafterModel:
    if name == "lookup":
        return Lookup(min_match=1)
    if name == "draft model":
        return DraftModel(relative_of(family, dtype))
    return Guesser(half_right([*plain(family, dtype, temperature), *[0] * 8], len(PROMPT), 97))


CELLS = [
    *itertools.product(["qwen3_5"], DTYPES, [0.0, 0.8]),
    *itertools.product(["qwen3_next", "qwen3_5_moe"], ["fp32"], [0.0]),
    *itertools.product(["qwen3_next", "qwen3_5_moe"], ["bf16"], [0.8]),
]


@pytest.mark.parametrize(("family", "dtype", "temperature"), CELLS)
@pytest.mark.parametrize("name", ["lookup", "draft model", "tree"])
def test_speculative_tokens_are_the_plain_tokens(name: str, family: str, dtype: str, temperature: float) -> None:
    engine = Engine(target_of(family, DTYPES[dtype]), drafter_of(name, family, DTYPES[dtype], temperature))
    result = engine.generate(PROMPT, params_at(temperature))
    assert result.tokens == plain(family, DTYPES[dtype], temperature)
    assert len(result.tokens) == NUM_TOKENS
    assert result.stats.strict
    assert result.stats.fallbacks == 0
    assert result.stats.drafted > result.stats.accepted > 0


@pytest.mark.parametrize(("target", "draft"), [("qwen3", "qwen3_5"), ("qwen3_5", "qwen3")])
def test_a_hybrid_drafts_for_a_dense_target_and_the_other_way_round(target: str, draft: str) -> None:
    for temperature in (0.0, 0.8):
        drafter = DraftModel(relative_of(draft, torch.float32))
        result = Engine(target_of(target, torch.float32), drafter).generate(PROMPT, params_at(temperature))
        assert result.tokens == plain(target, torch.float32, temperature)
        assert result.stats.fallbacks == 0
        assert result.stats.accepted > 0


def test_samples_share_a_prompt_and_nothing_else() -> None:
    engine = Engine(target_of("qwen3_5", torch.float32), DraftModel(relative_of("qwen3_5", torch.float32)))
    params = SamplingParams(temperature=0.8, max_tokens=12, seed=4)
    with engine.samples(PROMPT, params, n=3) as samples:
        for _ in samples:
            pass
        results = samples.results
    for number, result in enumerate(results):
        alone = engine.generate(PROMPT, replace(params, sample_index=number), speculative=PLAIN)
        assert result.tokens == alone.tokens
        assert result.stats.fallbacks == 0


@dataclass
class Turns:
    """A conversation beside fresh requests for the same prompts."""

    engine: Engine
    temperature: float

    def __post_init__(self) -> None:
        self.conversation = self.engine.conversation()

    def ask(self, prompt: tuple[int, ...], seed: int) -> Result:
        params = SamplingParams(temperature=self.temperature, max_tokens=12, seed=seed, logprobs=1)
        result = self.conversation.generate(prompt, params)
        fresh = self.engine.generate(prompt, params, speculative=PLAIN)
        assert result.tokens == fresh.tokens
        assert [event.logprobs for event in result.events] == [event.logprobs for event in fresh.events]
        assert result.stats.fallbacks == 0
        return result


@pytest.mark.parametrize(("name", "temperature"), [("lookup", 0.0), ("draft model", 0.8)])
def test_a_turn_that_is_asked_again_or_edited_keeps_what_the_states_allow(name: str, temperature: float) -> None:
    dtype = torch.bfloat16
    drafter: DrafterModel = Lookup(min_match=1) if name == "lookup" else DraftModel(relative_of("qwen3_5", dtype))
    turns = Turns(Engine(target_of("qwen3_5", dtype), drafter), temperature)
    turns.ask(PROMPT, 1)
    again = turns.ask(PROMPT, 2)
    assert again.usage.cached_tokens == 10  # the prompt was read in chunks of five, the last from its tenth token on
    said = (*PROMPT, *again.tokens)
    kept = len(said) - 1  # the last token of an answer was drawn and never read
    for seed, message in ((3, (4, 4, 8)), (4, (4, 4, 8)), (5, (4, 7, 7, 1))):  # a turn, once more, edited
        assert turns.ask((*said, *message), seed).usage.cached_tokens == kept
    assert turns.ask((*PROMPT[:7], 1, 2, 3), 6).usage.cached_tokens == 0  # states of the seventh token are gone
    turns.conversation.close()


def test_a_conversation_that_believed_its_keys_alone_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: going back to any length, as keys and values can."""
    monkeypatch.setattr(HybridCache, "restorable", lambda self, length: min(length, self.length))
    monkeypatch.setattr("surefoot.cache.recurrent.RecurrentStates.restore", lambda self, length: None)
    turns = Turns(Engine(target_of("qwen3_5", torch.float32), Lookup(min_match=1)), 0.0)
    turns.ask(PROMPT, 1)
    with pytest.raises(AssertionError):
        turns.ask((*PROMPT[:7], 1, 2, 3), 2)
