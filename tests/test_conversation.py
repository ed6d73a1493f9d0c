"""A conversation's answers are those of fresh requests, bit for bit, whatever was edited; only what is new is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from unittest.mock import patch

import pytest
import torch
from tests.guesses import Guesser
from tests.pairs import relative_of, target_of
from tests.tables import TableCache, TableTarget

from surefoot import Engine, RequestError, SamplingParams, SpeculativeOptions, TargetError
from surefoot.conversation import Conversation, _num_shared
from surefoot.drafters.draft_model import DraftModel
from surefoot.drafters.lookup import Lookup
from surefoot.drafters.none import NoDrafts
from surefoot.protocols import DrafterModel
from surefoot.types import Capture, TargetOutput, Tokens

PROMPT = (5, 9, 5, 9, 11, 60, 5, 9, 11, 3, 3, 7)
PLAIN = SpeculativeOptions(num_draft=0)
DRAFTERS = ("none", "lookup", "draft model")


def drafter_of(name: str, dtype: torch.dtype) -> DrafterModel:
    if name == "draft model":
        return DraftModel(relative_of("qwen3", dtype))
    return Lookup(min_match=1) if name == "lookup" else NoDrafts()


@dataclass
class Turns:
    """Turns: a second message, its answer again, an edit of the first message, and a prompt that fits no prefix."""

    temperature: float
    texts: tuple[Tokens, ...] = ()

    def play(self, conversation: Conversation, engine: Engine) -> tuple[int, int]:
        """Plays them beside fresh requests; accepted drafts, and prompt tokens that were kept."""
        accepted = kept = 0
        first = self._turn(conversation, engine, PROMPT, 1)
        grown = (*PROMPT, *first.tokens, 4, 4, 8)
        for seed, prompt in ((2, grown), (3, grown), (4, (*PROMPT[:7], 1, 2, 3)), (5, (1, *PROMPT)), (6, grown)):
            result = self._turn(conversation, engine, prompt, seed)
            accepted += result.stats.accepted
            kept += result.usage.cached_tokens
        return accepted, kept

    def _turn(self, conversation, engine, prompt, seed):  # type: ignore[no-untyped-def]
        params = SamplingParams(temperature=self.temperature, max_tokens=25, seed=seed, logprobs=1)
        result = conversation.generate(prompt, params)
        fresh = engine.generate(prompt, params, speculative=PLAIN)
        assert result.tokens == fresh.tokens
        assert [event.logprobs for event in result.events] == [event.logprobs for event in fresh.events]
        assert result.stats.fallbacks == 0
        return result


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_every_turn_is_the_answer_of_a_fresh_request(name: str, dtype: torch.dtype, temperature: float) -> None:
    engine = Engine(target_of("qwen3", dtype), drafter_of(name, dtype))
    conversation = engine.conversation()
    accepted, kept = Turns(temperature).play(conversation, engine)
    assert kept == (len(PROMPT) + 24) + (len(PROMPT) + 27) + 7 + 0 + 0
    # A random model at T = 0.8 hardly ever repeats itself, so there is little for lookup to be right about.
    assert accepted > 0 or name == "none" or (name, temperature) == ("lookup", 0.8)
    conversation.close()


def test_a_prefix_one_token_too_long_is_caught() -> None:
    """Negative control: keeping a token that the prompt does not share changes an answer."""
    engine = Engine(target_of("qwen3", torch.float32), Lookup(min_match=1))

    def one_more(ours: Tokens, theirs: Tokens) -> int:
        return min(_num_shared(ours, theirs) + 1, len(ours), len(theirs))

    with patch("surefoot.conversation._num_shared", one_more), pytest.raises(AssertionError):
        Turns(0.8).play(engine.conversation(), engine)


class Reader(TableTarget):
    """Remembers which prompt tokens were computed."""

    def __init__(self) -> None:
        super().__init__(vocab_size=97, context_length=256)
        self.read: list[Tokens] = []
        self.serving = True

    def prefill(
        self, tokens: Sequence[int], cache: TableCache, capture: Capture
    ) -> Iterator[tuple[Tokens, TargetOutput]]:
        self.read.append(tuple(tokens))
        return super().prefill(tokens, cache, capture)

    def serves(self, cache: TableCache, length: int) -> bool:
        return self.serving


def test_only_new_tokens_are_computed_and_counted() -> None:
    target = Reader()
    conversation = Engine(target).conversation()
    params = SamplingParams(max_tokens=4)
    first = conversation.generate((1, 2, 3), params)
    assert first.usage.cached_tokens == 0
    second = conversation.generate((1, 2, 3, *first.tokens, 7), params)
    # The last token of an answer was drawn and never fed.
    assert target.read == [(1, 2, 3), (first.tokens[-1], 7)]
    assert second.usage.cached_tokens == 3 + 3
    conversation.generate((1, 2, 3, *first.tokens, 7), params)
    assert target.read[-1] == (7,)  # the last row has to be computed again: it draws the first token


def test_rows_of_another_length_are_not_kept() -> None:
    target = Reader()
    conversation = Engine(target).conversation()
    conversation.generate((1, 2, 3), SamplingParams(max_tokens=4))
    target.serving = False
    assert conversation.generate((1, 2, 3, 4), SamplingParams(max_tokens=4)).usage.cached_tokens == 0
    assert target.read[-1] == (1, 2, 3, 4)


def test_prompt_logprobs_need_every_row_again() -> None:
    target = Reader()
    conversation = Engine(target).conversation()
    for _ in range(2):
        result = conversation.generate((1, 2, 3), SamplingParams(max_tokens=4, prompt_logprobs=0))
        assert result.usage.cached_tokens == 0
        assert result.prompt_logprobs is not None
        assert len(result.prompt_logprobs) == 3


def test_a_conversation_outgrows_its_cache_and_keeps_its_tokens() -> None:
    target = Reader()
    engine = Engine(target, Lookup(min_match=1))
    conversation = engine.conversation()
    prompt: Tokens = (1, 2, 3)
    for turn in range(12):
        result = conversation.generate(prompt, SamplingParams(max_tokens=10))
        assert result.tokens == engine.generate(prompt, SamplingParams(max_tokens=10), speculative=PLAIN).tokens
        assert result.usage.cached_tokens == (len(prompt) - 3 if turn else 0)
        prompt = (*prompt, *result.tokens, 5, 6)


class Wants(Guesser):
    """A drafter that wants to see the target's rows, so it cannot begin in the middle."""

    capture = Capture(final=True)


def test_another_drafter_begins_where_it_can() -> None:
    target = Reader()
    guesser = Wants(lambda context: [])
    engine = Engine(target, guesser)
    conversation = engine.conversation()
    params = SamplingParams(max_tokens=4)
    first = conversation.generate((1, 2, 3), params, speculative=PLAIN)
    prompt = (1, 2, 3, *first.tokens, 8)
    switched = conversation.generate(prompt, params)
    assert switched.usage.cached_tokens == 0  # it has seen none of the rows before
    assert tuple(guesser.context[: len(prompt)]) == prompt
    again = conversation.generate((*prompt, *switched.tokens, 8), params)
    assert again.usage.cached_tokens == len(prompt) + 3
    back = conversation.generate(prompt, params, speculative=SpeculativeOptions(method="lookup"))
    assert back.usage.cached_tokens == len(prompt) - 1  # lookup reads ids alone
    assert back.tokens == switched.tokens


def test_a_drafter_that_failed_is_made_anew() -> None:
    calls = 0

    def fail_once(context: Sequence[int]) -> list[list[int]]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ValueError("no")
        return [[1]]

    engine = Engine(Reader(), Guesser(fail_once))
    conversation = engine.conversation()
    with pytest.warns(RuntimeWarning, match="failed and is dropped"):
        first = conversation.generate((1, 2, 3), SamplingParams(max_tokens=6))
    assert first.stats.fallbacks == 1
    second = conversation.generate((1, 2, 3, *first.tokens), SamplingParams(max_tokens=6))
    assert second.stats.fallbacks == 0
    assert second.stats.drafted > 0
    assert second.usage.cached_tokens == 8


def test_a_turn_that_failed_leaves_the_conversation_usable() -> None:
    target = Reader()
    engine = Engine(target, Lookup(min_match=1))
    conversation = engine.conversation()
    target.fail_at = 3
    with pytest.raises(TargetError):
        conversation.generate((1, 2, 3), SamplingParams(max_tokens=9))
    fresh = engine.generate((1, 2, 3), SamplingParams(max_tokens=9))
    assert conversation.generate((1, 2, 3), SamplingParams(max_tokens=9)).tokens == fresh.tokens


def test_one_answer_at_a_time() -> None:
    engine = Engine(Reader())
    conversation = engine.conversation()
    stream = conversation.stream((1, 2, 3), SamplingParams(max_tokens=9))
    next(stream)
    with pytest.raises(RequestError, match="still open"):
        conversation.stream((1, 2, 3))
    stream.close()
    left = stream.result.tokens
    result = conversation.generate((1, 2, 3, *left, 4), SamplingParams(max_tokens=9))
    assert result.tokens == engine.generate((1, 2, 3, *left, 4), SamplingParams(max_tokens=9)).tokens
    conversation.close()
    assert conversation.generate((1, 2, 3)).usage.cached_tokens == 0
