"""A table is chosen once per request, so speculation changes no token of one that crosses the original context.

The prompt lies within it, prompt and answer together beyond it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from tests.factories import make_checkpoint, make_model
from tests.guesses import Guesser, half_right
from tests.models.routes import random_case
from torch import Tensor

from surefoot import Engine, SamplingParams
from surefoot.cache.base import OpenNodes
from surefoot.cache.kv import KVCache
from surefoot.drafters.draft_model import DraftModel
from surefoot.models import calls, decoder
from surefoot.models.decoder import DecoderModel
from surefoot.models.forward import Span
from surefoot.ops.rope import BLOCK
from surefoot.protocols import DrafterModel
from surefoot.request import Result
from surefoot.rescoring import Rescoring
from surefoot.types import Capture

ORIGINAL = 32
PROMPT = (5, 9, 5, 9, 11, 60, 5, 9, 11, 3, 3, 7)
NUM_TOKENS = 80
SEED = 1
FACTORS = {
    "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4],
    "long_factor": [1.0, 1.3, 2.0, 3.0, 5.0, 8.0],
}
KINDS: dict[str, dict[str, object]] = {
    "dynamic": {
        "family": "llama",
        "rope_scaling": {"rope_type": "dynamic", "factor": 8.0},
        "max_position_embeddings": ORIGINAL,
    },
    "longrope": {
        "family": "phi3",
        "rope_scaling": {"type": "longrope", **FACTORS},
        "max_position_embeddings": 256,
        "original_max_position_embeddings": ORIGINAL,
        "partial_rotary_factor": 0.75,
    },
}
SIZES = {"hidden_size": 64, "num_hidden_layers": 2}


@cache
def target_of(kind: str) -> DecoderModel:
    return make_model(dtype=torch.float32, seed=3, exact="require", prefill_chunk=5, **{**SIZES, **KINDS[kind]})


@cache
def relative_of(kind: str) -> DecoderModel:
    """The target with its weights shaken: a draft model that is often, not always, right."""
    model = make_model(dtype=torch.float32, seed=3, **{**SIZES, **KINDS[kind]})
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * parameter.abs().mean() * torch.randn(parameter.shape, generator=generator))
    model.prepare(exact="auto", prefill_chunk=512)
    return model


def answer(
    kind: str,
    temperature: float,
    drafter: DrafterModel | None = None,
    *,
    num_tokens: int = NUM_TOKENS,
    seed: int = SEED,
) -> Result:
    params = SamplingParams(temperature=temperature, max_tokens=num_tokens, seed=seed)
    return Engine(target_of(kind), drafter).generate(PROMPT, params)


def drafter_of(name: str, kind: str, tokens: tuple[int, ...]) -> DrafterModel:
    if name == "draft model":
        return DraftModel(relative_of(kind))
    return Guesser(half_right([*tokens, *[0] * 8], len(PROMPT), 97))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", ["draft model", "tree"])
@pytest.mark.parametrize("kind", KINDS)
def test_speculation_changes_no_token_across_the_boundary(kind: str, name: str, temperature: float) -> None:
    assert len(PROMPT) < ORIGINAL < len(PROMPT) + NUM_TOKENS
    plain = answer(kind, temperature)
    result = answer(kind, temperature, drafter_of(name, kind, plain.tokens))
    assert result.tokens == plain.tokens
    assert result.stats.strict
    assert result.stats.fallbacks == 0
    assert result.stats.accepted > 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_is_what_transformers_says_of_the_whole_sequence(kind: str, tmp_path: Path) -> None:
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    overrides = {**SIZES, **KINDS[kind]}
    scaling = overrides["rope_scaling"]
    if kind == "longrope":  # transformers asks for it here as well
        overrides["rope_scaling"] = {**scaling, "original_max_position_embeddings": ORIGINAL}
    path = make_checkpoint(tmp_path, seed=3, **overrides)
    network = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    tokens = answer(kind, 0.0).tokens
    with torch.no_grad():
        logits = network(torch.tensor([[*PROMPT, *tokens]])).logits[0]
    assert tuple(logits[len(PROMPT) - 1 : -1].argmax(-1).tolist()) == tokens


def by_rows_seen(cache: KVCache, nodes: OpenNodes, num_new: int, *, is_prefill: bool = False) -> Span:
    """A span whose table follows the rows there are, instead of the length the sequence may have."""
    stop = cache.length + len(nodes.parents)
    cache.rotate_by(cache.owner.new_cache(stop).rope)
    return Span(cache, nodes, num_new, is_prefill)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_chosen_by_the_rows_seen_so_far_would_change_tokens(
    kind: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: drafted rows count as seen, so plain and speculative decoding switch at different tokens."""
    for module in (calls, decoder):
        monkeypatch.setattr(module, "Span", by_rows_seen)
    differed = []
    for seed in (SEED, 0, 3) if temperature else (SEED,):
        plain = answer(kind, temperature, seed=seed)
        result = answer(kind, temperature, drafter_of("tree", kind, plain.tokens), seed=seed)
        assert result.stats.fallbacks == 0
        assert result.stats.accepted > 0
        differed.append(result.tokens != plain.tokens)
    assert any(differed)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_spare_has_no_say(kind: str) -> None:
    model = target_of(kind)
    assert model.new_cache(20, spare=100).rope is model.new_cache(20).rope
    assert model.new_cache(ORIGINAL, spare=1).rope is model.new_cache(1).rope
    assert model.new_cache(ORIGINAL + 1).rope is not model.new_cache(ORIGINAL).rope


@pytest.mark.parametrize("longest", [2**12, 2**17, 2**22])
def test_a_long_context_costs_no_more_until_it_is_used(longest: int) -> None:
    model = make_model("llama", torch.float32, num_hidden_layers=1, max_position_embeddings=longest)
    cache = model.new_cache(10)
    assert len(cache.rope.reserve(0)[0]) <= 4 * BLOCK
    assert len(cache.fork(5 * BLOCK).rope.reserve(0)[0]) == 5 * BLOCK


@pytest.mark.parametrize(
    ("kind", "made_for", "served", "not_served"),
    [
        ("dynamic", 20, (1, 20, ORIGINAL), (ORIGINAL + 1, 100)),
        ("dynamic", 50, (50,), (20, 49, 51)),
        ("longrope", 20, (1, 20, ORIGINAL), (ORIGINAL + 1, 100)),
        ("longrope", 50, (ORIGINAL + 1, 50, 200), (20, ORIGINAL)),
    ],
)
def test_a_cache_serves_sequences_of_its_own_table_and_so_do_its_forks(
    kind: str, made_for: int, served: tuple[int, ...], not_served: tuple[int, ...]
) -> None:
    model = target_of(kind)
    cache = model.new_cache(made_for)
    list(model.prefill(PROMPT, cache, Capture()))
    for one in (cache, cache.fork(200), cache.fork(12).fork(30)):
        assert [model.serves(one, length) for length in served] == [True] * len(served)
        assert [model.serves(one, length) for length in not_served] == [False] * len(not_served)
        assert not relative_of(kind).serves(one, made_for)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_goes_on_with_the_table_of_its_rows(kind: str) -> None:
    model = target_of(kind)
    long = PROMPT * 5
    cache = model.new_cache(len(PROMPT), spare=len(long))
    list(model.prefill(PROMPT, cache, Capture()))
    fork = cache.fork(len(long))
    (expected, found) = (last_row(model, one, long[len(PROMPT) :]) for one in (cache, fork))
    assert torch.equal(found, expected)
    assert not torch.equal(found, last_row(model, model.new_cache(len(long)), long))


def last_row(model: DecoderModel, own: object, tokens: tuple[int, ...]) -> Tensor:
    (*_, (_, out)) = model.prefill(tokens, own, Capture())  # type: ignore[arg-type]
    assert out.logits is not None
    return out.logits[-1]


def score_together(model: DecoderModel, *, one_table: bool) -> bool:
    """Whether sequences with tables of their own get in one call the bits they get alone."""
    cases = [random_case(seed, 97, 6 + seed, 5) for seed in range(4)]
    rounds = []
    for case, length in zip(cases, (20, 45, 20, 60), strict=True):
        own = model.new_cache(length, spare=40)
        list(model.prefill(case.prompt, own, Capture()))
        rounds.append((case.trees()[0], own))
    alone = [model.score([one], Capture())[0].logits for one in rounds]
    for _, own in rounds:
        own.rollback()
        if one_table:
            own.rotate_by(rounds[0][1].rope)
    together = [out.logits for out in model.score(rounds, Capture())]
    return all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_with_different_tables_share_a_call(kind: str) -> None:
    assert score_together(target_of(kind), one_table=False)
    assert not score_together(target_of(kind), one_table=True)


def turns(kind: str, counts: tuple[int, ...], *, together: bool) -> list[tuple[int, ...]]:
    """Answers to turns of one conversation, or of as many requests, each prompt the last one with its answer."""
    engine = Engine(target_of(kind), DraftModel(relative_of(kind)))
    conversation = engine.conversation()
    prompt, answers = PROMPT, []
    for count in counts:
        params = SamplingParams(max_tokens=count)
        result = conversation.generate(prompt, params) if together else engine.generate(prompt, params)
        assert result.stats.fallbacks == 0
        answers.append(result.tokens)
        prompt = (*prompt, *result.tokens, 60, 5)
    conversation.close()
    return answers


@pytest.mark.parametrize("kind", KINDS)
def test_a_conversation_is_read_anew_where_a_turn_needs_another_table(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = (5, 8, 40, 20)
    apart = turns(kind, counts, together=False)
    assert turns(kind, counts, together=True) == apart
    monkeypatch.setattr(DecoderModel, "serves", lambda self, cache, length: True)
    assert turns(kind, counts, together=True) != apart


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_that_ended_early_is_rescored_under_the_requests_table(kind: str) -> None:
    tokens = answer(kind, 0.0).tokens[:10]
    rescored, by_the_answer = (
        Rescoring.of(target_of(kind), PROMPT, tokens[:-1], 3, length=length).rows
        for length in (len(PROMPT) + NUM_TOKENS, len(PROMPT) + len(tokens))
    )
    assert tuple(rescored.argmax(-1).tolist()) == tokens
    assert (rescored - by_the_answer).abs().max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_another_max_tokens_may_mean_another_table(kind: str) -> None:
    """What docs/correctness.md says of a request: its length is part of it."""
    fits = ORIGINAL - len(PROMPT)
    within = [answer(kind, 0.8, num_tokens=count).tokens for count in (fits - 5, fits)]
    assert within[1][: fits - 5] == within[0]
    assert answer(kind, 0.8, num_tokens=NUM_TOKENS).tokens[:fits] != within[1]
