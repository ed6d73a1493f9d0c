"""Several answers to one prompt are the answers of single requests, and the prompt is read once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from tests.guesses import Guesser
from tests.pairs import relative_of, target_of
from tests.tables import TableCache, TableTarget

from surefoot import Engine, OptionError, RequestError, SamplingParams, SpeculativeOptions
from surefoot.drafters.draft_model import DraftModel
from surefoot.drafters.lookup import Lookup
from surefoot.drafters.none import NoDrafts
from surefoot.protocols import DrafterModel
from surefoot.types import Capture, TargetOutput, Tokens

PROMPT = (5, 9, 5, 9, 11, 60, 5, 9, 11, 3, 3, 7)
DRAFTERS = ("none", "lookup", "draft model")


def drafter_of(name: str) -> DrafterModel:
    if name == "draft model":
        return DraftModel(relative_of("qwen3", torch.float32))
    return Lookup(min_match=1) if name == "lookup" else NoDrafts()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", DRAFTERS)
def test_every_sample_is_the_answer_of_a_request_of_its_own(name: str, temperature: float) -> None:
    engine = Engine(target_of("qwen3", torch.float32), drafter_of(name))
    params = SamplingParams(temperature=temperature, max_tokens=30, seed=4, sample_index=3, logprobs=2)
    with engine.samples(PROMPT, params, n=4) as samples:
        events: list[list[int]] = [[] for _ in range(4)]
        for index, event in samples:
            events[index].append(event.token)
    for index, result in enumerate(samples.results):
        single = replace(params, sample_index=3 + index)
        alone = engine.generate(PROMPT, single, speculative=SpeculativeOptions(num_draft=0))
        assert result.tokens == alone.tokens == tuple(events[index])
        assert (result.sample_index, result.seed) == (3 + index, 4)
        assert [event.logprobs for event in result.events] == [event.logprobs for event in alone.events]
        assert result.finish_reason == alone.finish_reason == "length"
        assert result.stats.fallbacks == 0
    distinct = {result.tokens for result in samples.results}
    assert len(distinct) == (4 if temperature else 1)
    if name == "draft model":
        assert all(result.stats.accepted > 0 for result in samples.results)


class CountingTarget(TableTarget):
    """Counts prompt tokens read, and sequences per forward; rows are said not to be exact where ``strict`` is False."""

    def __init__(self, *, strict: bool) -> None:
        super().__init__(vocab_size=97, context_length=128)
        self.strict = strict  # type: ignore[misc]
        self.num_read = 0
        self.shares: list[int] = []

    def prefill(
        self, tokens: Sequence[int], cache: TableCache, capture: Capture
    ) -> Iterator[tuple[Tokens, TargetOutput]]:
        self.num_read += len(tokens)
        return super().prefill(tokens, cache, capture)

    def score(self, rounds, capture):  # type: ignore[no-untyped-def]
        self.shares.append(len(rounds))
        return super().score(rounds, capture)


def test_samples_that_share_a_cache_are_caught() -> None:
    """Negative control: without forks the samples write over each other, and the test above would say so."""
    target = CountingTarget(strict=False)
    params = SamplingParams(temperature=1.0, max_tokens=20, seed=4)

    def texts() -> set[Tokens]:
        with Engine(target).samples(PROMPT, replace(params), n=3) as samples:
            for _ in samples:
                pass
        return {result.tokens for result in samples.results}

    right = {Engine(target).generate(PROMPT, replace(params, sample_index=i)).tokens for i in range(3)}
    assert texts() == right

    def share(cache: TableCache, capacity: int) -> TableCache:
        cache.capacity = 3 * capacity
        return cache

    with patch.object(TableCache, "fork", share):
        assert texts() != right


@pytest.mark.parametrize("strict", [True, False])
def test_the_prompt_is_read_once_and_forwards_are_shared_where_rows_are_exact(strict: bool) -> None:
    target = CountingTarget(strict=strict)
    with Engine(target).samples(PROMPT, SamplingParams(max_tokens=5, temperature=1.0, seed=0), n=3) as samples:
        assert len(list(samples)) == 15
    assert target.num_read == len(PROMPT)
    assert target.shares == ([3] * 4 if strict else [1] * 12)


def test_a_sample_ends_alone_and_the_others_go_on() -> None:
    engine = Engine(TableTarget(vocab_size=97, context_length=128))
    with engine.samples(PROMPT, SamplingParams(max_tokens=12, temperature=1.0, seed=0), n=3) as samples:
        for index, event in samples:
            if index == 1 and event.round == 2:
                samples.cancel(1)
    reasons = [result.finish_reason for result in samples.results]
    assert reasons == ["length", "cancelled", "length"]
    assert len(samples.results[1].tokens) == 4
    assert [len(result.tokens) for result in samples.results] == [12, 4, 12]


def test_prompt_logprobs_are_those_of_one_request_even_where_nothing_is_emitted() -> None:
    engine = Engine(target_of("qwen3", torch.float32))
    params = SamplingParams(max_tokens=3, prompt_logprobs=2)
    alone = engine.generate(PROMPT, params).prompt_logprobs
    assert alone is not None
    assert len(alone) == len(PROMPT)
    with engine.samples(PROMPT, params, n=2) as samples:
        list(samples)
    assert [result.prompt_logprobs for result in samples.results] == [alone, alone]
    none_emitted = engine.generate(PROMPT, replace(params, max_tokens=0))
    assert none_emitted.prompt_logprobs == alone
    assert none_emitted.tokens == ()


class StartsTwice(Guesser):
    """Cannot serve a third sequence."""

    started = 0

    def start(self, target: TableTarget) -> Guesser:
        self.started += 1
        if self.started == 3:
            raise MemoryError("no room")
        return super().start(target)


def test_drafters_that_started_are_closed_where_another_cannot() -> None:
    guesser = StartsTwice(lambda context: [])
    with pytest.raises(MemoryError):
        Engine(TableTarget(), guesser).samples((1, 2), n=3)
    assert guesser.closed == 2


@pytest.mark.parametrize("n", [0, -1, True, 1.5])
def test_a_number_of_samples_that_is_none_is_refused(n: int) -> None:
    with pytest.raises(OptionError, match="n is"):
        Engine(TableTarget()).samples((1,), n=n)


def test_results_wait_for_the_end_and_drafters_are_closed() -> None:
    guesser = Guesser(lambda context: [[0, 0]])
    engine = Engine(TableTarget(), guesser)
    with engine.samples((1, 2), SamplingParams(max_tokens=6), n=2) as samples:
        next(samples)
        with pytest.raises(RequestError, match="still open"):
            _ = samples.results
    assert guesser.closed == 2
    with engine.samples((1, 2), SamplingParams(max_tokens=0), n=3) as none:
        assert list(none) == []
    assert guesser.closed == 5
    assert [result.finish_reason for result in none.results] == ["length"] * 3
    assert [result.finish_reason for result in samples.results] == ["cancelled", "cancelled"]
    assert [len(result.tokens) for result in samples.results] == [1, 0]
