"""Log probabilities: of one row, and of a request's tokens however they came to be."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories import make_checkpoint, make_model
from tests.guesses import Guesser, half_right, oracle
from torch import Tensor

from surefoot import Engine, SamplingParams, SpeculativeOptions
from surefoot.drafters.draft_model import DraftModel
from surefoot.drafters.lookup import Lookup
from surefoot.logprobs import LogprobScorer, PromptLogprobs
from surefoot.models.decoder import DecoderModel
from surefoot.protocols import DrafterModel
from surefoot.request import Result
from surefoot.stops import RequestStops
from surefoot.types import TokenLogprobs, Tokens


def score_reference(token: int, logits: Tensor, num_top: int) -> TokenLogprobs:
    """By sorting the whole row."""
    logprobs = torch.log_softmax(logits.double(), dim=0).tolist()
    order = sorted(range(len(logprobs)), key=lambda other: (-float(logits[other]), other))
    return TokenLogprobs(
        token=token,
        logprob=logprobs[token],
        rank=1 + order.index(token),
        top=tuple((other, logprobs[other]) for other in order[:num_top]),
    )


def assert_close(found: TokenLogprobs, expected: TokenLogprobs, tolerance: float = 1e-9) -> None:
    assert (found.token, found.rank) == (expected.token, expected.rank)
    assert [token for token, _ in found.top] == [token for token, _ in expected.top]
    pairs = zip(
        (found.logprob, *dict(found.top).values()), (expected.logprob, *dict(expected.top).values()), strict=True
    )
    for one, other in pairs:
        assert one == other or abs(one - other) <= tolerance


@settings(max_examples=150, deadline=None)
@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_a_row_is_normalised_ranked_and_cut_to_its_likeliest(data: st.DataObject, dtype: torch.dtype) -> None:
    """Few distinct values, so that there are ties; rows far from zero, and impossible tokens."""
    values = st.sampled_from([-math.inf, -3.0, 0.0, 0.5, 0.5, 2.0])
    row = data.draw(st.lists(values, min_size=1, max_size=9).filter(lambda row: max(row) > -math.inf))
    logits = torch.tensor(row, dtype=dtype) + data.draw(st.sampled_from([0, 2000, -2000]))
    token, num_top = data.draw(st.integers(0, len(row) - 1)), data.draw(st.integers(0, len(row) + 2))
    kept = logits.clone()
    assert_close(
        LogprobScorer(num_top=num_top, vocab_size=len(row)).score(token, logits),
        score_reference(token, logits, num_top),
    )
    assert torch.equal(logits, kept), "the row still belongs to the sampler"


def test_all_of_a_vocabulary_sums_to_one_and_padding_is_no_part_of_it() -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(1))
    padded = torch.cat((logits, torch.full((7,), 99.0)))
    scorer = LogprobScorer(num_top=60, vocab_size=50)
    found = scorer.score(3, padded)
    assert found == scorer.score(3, logits)
    assert len(found.top) == 50
    assert abs(sum(math.exp(logprob) for _, logprob in found.top) - 1) < 1e-12
    wide = LogprobScorer(num_top=60, vocab_size=57).score(3, padded)
    assert wide.logprob < found.logprob - 90, "negative control: padding would drown everything"


def test_ties_go_to_the_lowest_id() -> None:
    found = LogprobScorer(num_top=3, vocab_size=6).score(4, torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0, 0.0]))
    assert [token for token, _ in found.top] == [1, 3, 4]
    assert found.rank == 3


@pytest.mark.parametrize("sizes", [(6,), (1,) * 6, (3, 3), (2, 3, 1), (5, 1)])
def test_prompt_tokens_are_scored_by_the_row_before_them_across_chunks(sizes: Sequence[int]) -> None:
    logits = torch.randn(6, 9, generator=torch.Generator().manual_seed(2))
    tokens = (4, 0, 8, 8, 1, 2)
    prompt = PromptLogprobs(LogprobScorer(num_top=2, vocab_size=9))
    done = 0
    for size in sizes:
        chunk = logits[done : done + size].clone()
        prompt.read(tokens[done : done + size], chunk)
        chunk.zero_()  # a target may write over its logits in the next forward
        done += size
    assert prompt.scored[0] is None
    for place in range(1, 6):
        scored = prompt.scored[place]
        assert scored is not None
        assert_close(scored, score_reference(tokens[place], logits[place - 1], 2))


PROMPT = (5, 9, 5, 9, 11, 60, 5, 9, 11, 3, 3, 7)
EVERY_PROCESSOR = {
    "repetition_penalty": 1.3,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.3,
    "logit_bias": {7: 3.0, 9: -50.0},
    "forbidden_tokens": (11, 13),
    "min_tokens": 5,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.01,
}
DRAFTERS = ("none", "lookup", "draft model", "right", "wrong", "tree")


@cache
def checkpoint() -> Path:
    return make_checkpoint(Path(tempfile.mkdtemp(prefix="surefoot-test-")), "llama", seed=5)


@cache
def target(prefill_chunk: int = 5) -> DecoderModel:
    """Row-exact, in fp32; the weights of :func:`checkpoint`."""
    return make_model("llama", torch.float32, seed=5, exact="require", prefill_chunk=prefill_chunk)


def params_of(temperature: float, processors: bool, **more: int) -> SamplingParams:
    given = EVERY_PROCESSOR if processors else {}
    return SamplingParams(temperature=temperature, seed=9, max_tokens=20, logprobs=3, **given, **more)  # type: ignore[arg-type]


@cache
def plain(temperature: float, processors: bool) -> Result:
    return Engine(target(), eos_token_ids=(2,)).generate(PROMPT, params_of(temperature, processors))


def drafter_of(name: str, answer: Sequence[int]) -> DrafterModel | None:
    known = [*answer, *[0] * 8]
    wrong = [(token + 1) % 97 for token in known]
    return {
        "none": None,
        "lookup": Lookup(min_match=1),
        "draft model": DraftModel(make_model("llama", torch.float32, seed=5)),
        "right": Guesser(oracle(known, len(PROMPT))),
        "wrong": Guesser(oracle(wrong, len(PROMPT))),
        "tree": Guesser(half_right(known, len(PROMPT), 97)),
    }[name]


@cache
def teacher_forced(ids: Tokens) -> Tensor:
    """transformers' log probabilities after each of ``ids``, in one forward: fp64 ``[N, V]``."""
    from transformers import LlamaForCausalLM  # slow, and most tests here need none

    model = LlamaForCausalLM.from_pretrained(checkpoint(), dtype=torch.float32)
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), dim=-1)


def agrees(found: TokenLogprobs | None, token: int, law: Tensor, tolerance: float = 1e-4) -> bool:
    """Whether an account of ``token`` is that of ``law [V]``; near-ties may rank either way."""
    assert found is not None
    logprobs = [found.logprob, *(logprob for _, logprob in found.top)]
    ids = [token, *(other for other, _ in found.top)]
    near = all(abs(logprob - float(law[other])) <= tolerance for other, logprob in zip(ids, logprobs, strict=True))
    surely_before = int((law > law[token] + tolerance).sum())
    perhaps_before = int((law >= law[token] - tolerance).sum())
    likeliest = law.topk(len(found.top)).values
    descends = all(
        abs(logprob - float(best)) <= tolerance for logprob, best in zip(logprobs[1:], likeliest, strict=True)
    )
    return found.token == token and near and surely_before < found.rank <= max(perhaps_before, 1) and descends


def all_agree(result: Result) -> bool:
    law = teacher_forced((*PROMPT, *result.tokens))[len(PROMPT) - 1 :]
    return all(agrees(event.logprobs, event.token, law[place]) for place, event in enumerate(result.events))


@pytest.mark.parametrize("processors", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", DRAFTERS)
def test_logprobs_equal_teacher_forced_rescoring(name: str, temperature: float, processors: bool) -> None:
    expected = plain(temperature, processors)
    engine = Engine(target(), drafter_of(name, expected.tokens), eos_token_ids=(2,))
    result = engine.generate(PROMPT, params_of(temperature, processors))
    assert result.tokens == expected.tokens
    assert [event.logprobs for event in result.events] == [event.logprobs for event in expected.events]
    assert all_agree(result)
    assert result.stats.fallbacks == 0
    assert (result.stats.accepted > 0) == (name in ("draft model", "right", "tree")) or name == "lookup"


def test_logprobs_of_another_row_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the law above fails where a drafted token is scored by its neighbour's row."""
    take = RequestStops.take
    monkeypatch.setattr(RequestStops, "take", lambda self, verdict, logits: take(self, verdict, logits.roll(1, 0)))
    engine = Engine(target(), drafter_of("right", plain(0.0, False).tokens), eos_token_ids=(2,))
    result = engine.generate(PROMPT, params_of(0.0, False))
    assert result.tokens == plain(0.0, False).tokens
    assert not all_agree(result)


def test_processed_logits_are_not_the_raw_ones() -> None:
    """Negative control: with processors on, the tokens are not the likeliest by the raw logits that are reported."""
    result = plain(0.0, True)
    assert any(event.logprobs is not None and event.logprobs.rank > 1 for event in result.events)
    assert {event.logprobs.rank for event in plain(0.0, False).events if event.logprobs is not None} == {1}


def test_rejection_sampling_reports_the_targets_own_logprobs() -> None:
    engine = Engine(target(), drafter_of("draft model", ()), eos_token_ids=(2,))
    options = SpeculativeOptions(acceptance="reject")
    result = engine.generate(PROMPT, params_of(0.8, True), speculative=options)
    assert result.stats.accepted > 0
    assert all_agree(result)


def test_nothing_is_scored_that_was_not_asked_for_or_does_not_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[int] = []
    score = LogprobScorer.score

    def counting(self: LogprobScorer, token: int, logits: Tensor) -> TokenLogprobs:
        scored.append(token)
        return score(self, token, logits)

    monkeypatch.setattr(LogprobScorer, "score", counting)
    answer = Engine(target()).generate(PROMPT, SamplingParams(max_tokens=20)).tokens
    assert scored == []
    stop = answer[8]
    engine = Engine(target(), drafter_of("right", answer))
    params = SamplingParams(max_tokens=20, logprobs=0, stop_token_ids=(stop,))
    result = engine.generate(PROMPT, params, speculative=SpeculativeOptions(num_draft=12))
    assert result.tokens == answer[: answer.index(stop) + 1] == tuple(scored)
    assert all(event.logprobs is not None and event.logprobs.top == () for event in result.events)


@pytest.mark.parametrize("name", ["none", "draft model", "lookup"])
@pytest.mark.parametrize("prefill_chunk", [1, 2, 5, 11, 12, 512])
def test_prompt_logprobs_do_not_depend_on_the_chunks(prefill_chunk: int, name: str) -> None:
    engine = Engine(target(prefill_chunk), drafter_of(name, ()))
    params = SamplingParams(max_tokens=3, prompt_logprobs=4)
    result = engine.generate(PROMPT, params)
    assert result.prompt_logprobs == Engine(target()).generate(PROMPT, params).prompt_logprobs
    assert result.prompt_logprobs is not None
    assert len(result.prompt_logprobs) == len(PROMPT)
    assert result.prompt_logprobs[0] is None
    law = teacher_forced(PROMPT)
    places = range(1, len(PROMPT))
    assert all(agrees(result.prompt_logprobs[place], PROMPT[place], law[place - 1]) for place in places)
    assert not any(agrees(result.prompt_logprobs[place], PROMPT[place], law[place]) for place in places), "control"
    assert result.tokens == engine.generate(PROMPT, SamplingParams(max_tokens=3)).tokens


def test_a_prompt_may_be_scored_without_an_answer() -> None:
    params = SamplingParams(max_tokens=0, prompt_logprobs=1)
    result = Engine(target(), Lookup()).generate(PROMPT, params)
    assert result.tokens == ()
    assert result.prompt_logprobs == Engine(target()).generate(PROMPT, replace(params, max_tokens=2)).prompt_logprobs


def test_every_sample_of_a_prompt_has_its_logprobs() -> None:
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=3, prompt_logprobs=1, logprobs=0)
    with Engine(target()).samples(PROMPT, params, n=3) as samples:
        for _ in samples:
            pass
    alone = Engine(target()).generate(PROMPT, params)
    assert [result.prompt_logprobs for result in samples.results] == [alone.prompt_logprobs] * 3
    assert all_agree(samples.results[2])


def test_a_later_turn_scores_its_whole_prompt() -> None:
    conversation = Engine(target()).conversation()
    first = conversation.generate(PROMPT, SamplingParams(max_tokens=3))
    longer = (*PROMPT, *first.tokens, 8)
    params = SamplingParams(max_tokens=2, prompt_logprobs=1)
    assert (
        conversation.generate(longer, params).prompt_logprobs
        == Engine(target()).generate(longer, params).prompt_logprobs
    )
