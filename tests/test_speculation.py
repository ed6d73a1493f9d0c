"""Real networks through the whole engine: the text with speculation is the text without, bit for bit.

Random weights in every family, fp32 and bf16, in the row-exact mode; no cache is filled a second time on the way.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tests.guesses import Guesser, half_right
from tests.pairs import FAMILIES, relative_of, target_of

from surefoot import Engine, SamplingParams, SpeculativeOptions
from surefoot.decode import Decoding, advance, prefill
from surefoot.drafters.draft_model import DraftModel
from surefoot.drafters.lookup import Lookup
from surefoot.models.decoder import DecoderModel
from surefoot.protocols import DrafterModel
from surefoot.tree import chain
from surefoot.types import Capture, Verdict

PROMPT = (5, 9, 5, 9, 11, 60, 5, 9, 11, 3, 3, 7)
NUM_TOKENS = 60


def params_at(temperature: float) -> SamplingParams:
    return SamplingParams(temperature=temperature, max_tokens=NUM_TOKENS, seed=11)


@cache
def plain(family: str, dtype: torch.dtype, temperature: float, *, trainable: bool = False) -> tuple[int, ...]:
    target = target_of(family, dtype, trainable=trainable)
    return Engine(target).generate(PROMPT, params_at(temperature)).tokens


def drafter_of(name: str, family: str, dtype: torch.dtype, temperature: float) -> DrafterModel:
    if name == "lookup":
        return Lookup(min_match=1)
    if name == "draft model":
        return DraftModel(relative_of(family, dtype))
    answer = [*plain(family, dtype, temperature), *[0] * 8]
    return Guesser(half_right(answer, len(PROMPT), 97))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["lookup", "draft model", "tree"])
def test_speculative_tokens_are_the_plain_tokens(
    name: str, family: str, dtype: torch.dtype, temperature: float
) -> None:
    engine = Engine(target_of(family, dtype), drafter_of(name, family, dtype, temperature))
    result = engine.generate(PROMPT, params_at(temperature))
    assert result.tokens == plain(family, dtype, temperature)
    assert result.stats.strict
    assert result.stats.fallbacks == 0
    # A random model at T = 0.8 hardly ever repeats itself, so there is little for lookup to be right about.
    assert result.stats.accepted > 0 or (name, temperature) == ("lookup", 0.8)
    assert result.stats.drafted > 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("family", ["mistral", "qwen3"])
def test_speculative_tokens_are_the_plain_tokens_without_the_kernels_too(
    family: str, dtype: torch.dtype, temperature: float
) -> None:
    target = target_of(family, dtype, trainable=True)
    assert target.kernels is None
    answer = plain(family, dtype, temperature, trainable=True)
    for drafter in (DraftModel(relative_of(family, dtype)), Guesser(half_right([*answer, *[0] * 8], len(PROMPT), 97))):
        result = Engine(target, drafter).generate(PROMPT, params_at(temperature))
        assert result.tokens == answer
        assert result.stats.strict
        assert result.stats.fallbacks == 0
        assert result.stats.accepted > 0


def test_a_different_model_gives_different_tokens() -> None:
    """Negative control: the equality above is not that of a model which says the same whatever it reads."""
    texts = {plain(family, torch.float32, 0.8) for family in FAMILIES}
    assert len(texts) == len(FAMILIES)
    other = Engine(relative_of("qwen3", torch.float32)).generate(PROMPT, params_at(0.8)).tokens
    assert other != plain("qwen3", torch.float32, 0.8)


@pytest.mark.parametrize("name", ["draft model", "tree"])
@pytest.mark.parametrize("family", ["mistral", "qwen3"])
def test_state_after_every_round_equals_a_fresh_prefill(family: str, name: str) -> None:
    target = target_of(family, torch.float32)
    engine = Engine(target, drafter_of(name, family, torch.float32, 0.8))
    decoding = engine.stream(PROMPT, params_at(0.8))._request.decoding
    text = [*PROMPT]
    text += prefill(target, PROMPT, [decoding])[0].emitted
    accepted, paths = set(), set()
    while decoding.finish_reason is None:
        (verdict,) = advance(target, [decoding])
        accepted.add(verdict.num_accepted)
        paths.add(verdict.path)
        text += verdict.emitted
        assert decoding.cache.length == len(text) - 1
        assert torch.equal(next_logits(target, decoding), fresh_logits(target, text))
    assert len(accepted) >= 3
    assert name != "tree" or any(path != tuple(range(len(path))) for path in paths)
    decoding.close()


def next_logits(target: DecoderModel, decoding: Decoding) -> torch.Tensor:
    """What the target says after the root, from the state the rounds left; the state stays as it is."""
    (out,) = target.score([(chain([decoding.root]), decoding.cache)], Capture())
    decoding.cache.rollback()
    assert out.logits is not None
    return out.logits[-1]


def fresh_logits(target: DecoderModel, text: list[int]) -> torch.Tensor:
    new = target.new_cache(len(text))
    (*_, (_, out)) = target.prefill(text, new, Capture())
    assert out.logits is not None
    return out.logits[-1]


def test_a_commit_of_the_wrong_path_is_seen_in_the_state() -> None:
    """Negative control: keeping one node too few leaves a state that no fresh prefill gives."""
    target = target_of("qwen3", torch.float32)
    engine = Engine(target, drafter_of("tree", "qwen3", torch.float32, 0.0))
    decoding = engine.stream(PROMPT, params_at(0.0))._request.decoding
    text = [*PROMPT, *prefill(target, PROMPT, [decoding])[0].emitted]
    commit = decoding.cache.commit
    object.__setattr__(decoding.cache, "commit", lambda path: commit(path[: max(1, len(path) - 1)]))
    differed = False
    while decoding.finish_reason is None and not differed:
        verdict: Verdict
        (verdict,) = advance(target, [decoding])
        text += verdict.emitted
        differed = not torch.equal(next_logits(target, decoding), fresh_logits(target, text))
    assert differed


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_model_drafting_for_itself_is_always_right(temperature: float) -> None:
    """An acceptance floor: with exact arithmetic on both sides nothing but the last round's length may be refused."""
    target = target_of("qwen3", torch.float32)
    result = Engine(target, DraftModel(target)).generate(PROMPT, params_at(temperature))
    assert result.tokens == plain("qwen3", torch.float32, temperature)
    assert result.stats.accepted == result.stats.drafted > 0
    assert result.stats.fallbacks == 0


@pytest.mark.parametrize("acceptance", ["match", "reject"])
@pytest.mark.parametrize("sampling", ["shared", "argmax"])
def test_a_related_draft_model_is_often_right(acceptance: str, sampling: str) -> None:
    options = SpeculativeOptions(acceptance=acceptance, draft_sampling=sampling)  # type: ignore[arg-type]
    engine = Engine(target_of("qwen3", torch.float32), DraftModel(relative_of("qwen3", torch.float32)))
    stats = engine.generate(PROMPT, params_at(0.8), speculative=options).stats
    floors = {"shared": 1.5, "argmax": 1.1}
    assert stats.mean_acceptance_length > floors[sampling]
    assert stats.fallbacks == 0
