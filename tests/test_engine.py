"""Requests: what is accepted, what is refused before anything is computed, and what comes back."""

from __future__ import annotations

import pytest
from tests.guesses import Guesser, oracle
from tests.tables import TableTarget

from surefoot import Engine, OptionError, PromptError, RequestError, SamplingParams, SpeculativeOptions, TokenizerError
from surefoot.drafters.lookup import Lookup
from surefoot.opening import Prompt
from surefoot.protocols import DrafterModel

PROMPT = (1, 2, 3, 1, 2)


@pytest.mark.parametrize(
    ("prompt", "error", "reason"),
    [
        ((), PromptError, "no tokens"),
        ((1, 5), PromptError, "id 5.*0 to 4"),
        ((-1,), PromptError, "id -1"),
        ((1,) * 64, PromptError, "64 tokens.*context of 64.*63"),
        ((1, 2.5), PromptError, "2.5 among token ids"),
        ((True, 1), PromptError, "True among token ids"),
        ("text", TokenizerError, "a text prompt.*no tokenizer"),
        ([{"role": "user", "content": "hi"}], TokenizerError, "a chat prompt"),
    ],
)
def test_a_prompt_that_cannot_be_served_is_refused_by_reason(
    prompt: Prompt, error: type[RequestError], reason: str
) -> None:
    target = TableTarget()
    with pytest.raises(error, match=reason):
        Engine(target).generate(prompt)
    assert target.num_forwards == 0


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(logit_bias={5: 1.0}),
        SamplingParams(forbidden_tokens=(5,)),
        SamplingParams(allowed_tokens=(0, 5)),
        SamplingParams(stop_token_ids=(7,)),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(params: SamplingParams) -> None:
    with pytest.raises(OptionError, match="the vocabulary has ids 0 to 4"):
        Engine(TableTarget()).generate(PROMPT, params)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": True},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": 2},
        {"top_k": -1},
        {"top_k": 1.5},
        {"repetition_penalty": 0.0},
        {"presence_penalty": 3},
        {"frequency_penalty": float("inf")},
        {"logit_bias": {1: 1000.0}},
        {"logit_bias": {-1: 1.0}},
        {"allowed_tokens": ()},
        {"max_tokens": -1},
        {"min_tokens": -1},
        {"seed": -1},
        {"seed": 2**63},
        {"stop_token_ids": (-2,)},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="expected"):
        SamplingParams(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"num_draft": -1}, {"num_draft": 65}, {"acceptance": "typical"}, {"k": 3}])
def test_speculative_options_out_of_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises((OptionError, TypeError)):
        SpeculativeOptions(**options)  # type: ignore[arg-type]


def test_a_prediction_in_words_needs_a_tokenizer() -> None:
    with pytest.raises(TokenizerError, match="a prediction"):
        Engine(TableTarget(), Lookup()).generate(PROMPT, prediction="text")
    with pytest.raises(PromptError, match="the prediction holds id 9"):
        Engine(TableTarget(), Lookup()).generate(PROMPT, prediction=(1, 9))


@pytest.mark.parametrize("drafter", [None, Lookup(min_match=2), Guesser(lambda context: [])])
def test_a_prediction_that_holds_the_answer_is_drafted_from(drafter: DrafterModel | None) -> None:
    target = TableTarget(vocab_size=31)
    params = SamplingParams(max_tokens=20)
    plain = Engine(target).generate(PROMPT, params)
    engine = Engine(target, drafter)
    without = engine.generate(PROMPT, params)
    predicted = engine.generate(PROMPT, params, prediction=plain.tokens)
    assert predicted.tokens == without.tokens == plain.tokens
    assert predicted.stats.accepted > without.stats.accepted


@pytest.mark.parametrize("speculative", [SpeculativeOptions(num_draft=0), SpeculativeOptions(method="none")])
def test_speculation_switched_off_leaves_a_prediction_unread(speculative: SpeculativeOptions) -> None:
    target = TableTarget(vocab_size=31)
    plain = Engine(target).generate(PROMPT)
    result = Engine(target, Lookup()).generate(PROMPT, speculative=speculative, prediction=plain.tokens)
    assert result.tokens == plain.tokens
    assert result.stats.drafted == 0


def test_a_request_chooses_how_to_draft() -> None:
    target = TableTarget(vocab_size=31)
    plain = Engine(target).generate(PROMPT)
    guesser = Guesser(oracle(plain.tokens, len(PROMPT)))
    engine = Engine(target, guesser)
    assert set(engine.methods) == {"none", "lookup", guesser.method}
    accepted = {}
    for method in (None, *engine.methods):
        result = engine.generate(PROMPT, speculative=SpeculativeOptions(method=method))
        assert result.tokens == plain.tokens
        accepted[method] = result.stats.accepted
    assert accepted[None] == accepted[guesser.method] > accepted["lookup"]
    assert accepted["none"] == 0


def test_a_method_that_was_not_loaded_is_refused_with_those_that_were() -> None:
    with pytest.raises(OptionError, match=r"method is 'eagle3'.*none, lookup"):
        Engine(TableTarget()).generate(PROMPT, speculative=SpeculativeOptions(method="eagle3"))


def test_no_draft_tokens_decode_plainly() -> None:
    target = TableTarget()
    guesser = Guesser(lambda context: [[0]])
    result = Engine(target, guesser).generate(PROMPT, speculative=SpeculativeOptions(num_draft=0))
    assert result.stats.drafted == 0
    assert guesser.contexts_at_propose == []
    assert {event.origin for event in result.events} == {"plain"}


def test_a_seed_is_drawn_reported_and_reproduces() -> None:
    engine = Engine(TableTarget(vocab_size=31), Lookup(min_match=1))
    first = engine.generate(PROMPT, SamplingParams(temperature=1.0, max_tokens=30))
    again = engine.generate(PROMPT, SamplingParams(temperature=1.0, max_tokens=30, seed=first.seed))
    other = engine.generate(PROMPT, SamplingParams(temperature=1.0, max_tokens=30))
    assert again.tokens == first.tokens
    assert other.tokens != first.tokens
    assert other.seed != first.seed


def test_sample_indices_give_different_samples() -> None:
    engine = Engine(TableTarget(vocab_size=31))
    samples = {
        engine.generate(PROMPT, SamplingParams(temperature=1.0, max_tokens=30, seed=1, sample_index=i)).tokens
        for i in range(4)
    }
    assert len(samples) == 4


def test_streams_may_be_interleaved() -> None:
    target = TableTarget(order=2)
    engine = Engine(target, Lookup(min_match=1))
    params = [SamplingParams(temperature=0.8, max_tokens=20, seed=seed) for seed in range(3)]
    alone = [Engine(target).generate(PROMPT, p).tokens for p in params]
    streams = [engine.stream(PROMPT, p) for p in params]
    for _ in range(20):
        for stream in streams:
            next(stream)
    for stream in streams:
        with pytest.raises(StopIteration):
            next(stream)
    assert [stream.result.tokens for stream in streams] == alone


def test_a_stream_is_the_result_token_by_token() -> None:
    engine = Engine(TableTarget(order=1), Lookup(min_match=1))
    result = engine.generate(PROMPT)
    events = list(engine.stream(PROMPT))
    assert tuple(event.token for event in events) == result.tokens
    assert [event.finish_reason for event in events] == [None] * 58 + ["context"]
    assert result.finish_reason == "context"


def test_an_open_stream_has_no_result_yet() -> None:
    stream = Engine(TableTarget()).stream(PROMPT)
    next(stream)
    with pytest.raises(RequestError, match="still open"):
        _ = stream.result
    stream.close()
    assert len(stream.result.tokens) == 1


def test_rejection_takes_drafts_chosen_without_sampling_as_certain_guesses() -> None:
    target = TableTarget(order=1, scale=1.0)
    options = SpeculativeOptions(acceptance="reject")
    params = SamplingParams(temperature=0.8, max_tokens=40, seed=5)
    result = Engine(target, Lookup(min_match=1)).generate(PROMPT, params, speculative=options)
    assert len(result.tokens) == 40
    assert result.stats.accepted > 0
    assert result.stats.fallbacks == 0
    again = Engine(target, Lookup(min_match=1)).generate(PROMPT, params, speculative=options)
    assert again.tokens == result.tokens


def test_rejection_at_temperature_zero_gives_the_plain_tokens() -> None:
    target = TableTarget()
    plain = Engine(target).generate(PROMPT).tokens
    guesser = Guesser(oracle([*plain, *[0] * 8], len(PROMPT)))
    result = Engine(target, guesser).generate(PROMPT, speculative=SpeculativeOptions(acceptance="reject"))
    assert result.tokens == plain
    assert result.stats.accepted > 0
