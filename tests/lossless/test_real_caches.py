"""The second layer: tiny fp64 networks through the real caches and drafters, no token ever computed twice.

The reference computes every row from scratch, in a new cache, and draws it with a new sampler. A wrong cache row, mask
or position shows as another token.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.factories import make_model
from tests.guesses import Guesser

from surefoot import Engine, SamplingParams, SpeculativeOptions
from surefoot.cache.base import OpenNodes, Transaction
from surefoot.cache.kv import KVCache
from surefoot.drafters.draft_model import DraftModel
from surefoot.drafters.lookup import Lookup
from surefoot.models.decoder import DecoderModel
from surefoot.protocols import DrafterModel, Target
from surefoot.request import Result
from surefoot.sampling import RequestSampler
from surefoot.types import Capture

V = 29
SIZE = {"vocab_size": V, "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 8}
PROMPT = (5, 9, 5, 9, 11, 20, 5, 9, 11, 3)
EOS = 2
Options = dict[str, object]

FAMILIES: dict[str, Options] = {"qwen3": {}, "mistral": {"sliding_window": 8}}
SAMPLING: list[Options] = [
    {},
    {"repetition_penalty": 1.2},
    {"presence_penalty": 0.7},
    {"frequency_penalty": -0.6},
    {"logit_bias": {3: 1.5, 11: -2.0}},
    {"forbidden_tokens": (5, 9)},
    {"allowed_tokens": tuple(range(0, V, 2))},
    {"logit_bias": {EOS: 2.0}, "min_tokens": 9},
    {"stop_token_ids": (3, 7, 11), "min_tokens": 6, "repetition_penalty": 0.8},
]
TRUNCATIONS: list[Options] = [{"top_k": 4}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 9, "top_p": 0.9, "min_p": 0.05}]


@cache
def target_of(family: str) -> DecoderModel:
    """The target; mistral's window is shorter than its texts."""
    return make_model(family, torch.float64, seed=3, prefill_chunk=4, **SIZE, **FAMILIES[family])


@cache
def relative_of(family: str) -> DecoderModel:
    """The target with its weights shaken, so that it often, not always, agrees."""
    model = make_model(family, torch.float64, seed=3, **SIZE, **FAMILIES[family])
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.add_(0.2 * parameter.abs().mean() * noise)
    model.prepare(exact="auto", prefill_chunk=512)
    return model


def from_scratch(family: str, params: SamplingParams) -> tuple[int, ...]:
    """Decoding by definition."""
    model, emitted = target_of(family), list[int]()
    stop_ids = {EOS, *params.stop_token_ids}
    while len(emitted) < params.max_tokens:
        text = [*PROMPT, *emitted]
        (*_, (_, out)) = model.prefill(text, model.new_cache(len(text)), Capture())
        assert out.logits is not None
        assert params.seed is not None
        sampler = RequestSampler(params, PROMPT, seed=params.seed, vocab_size=V, stop_ids=stop_ids)
        sampler.advance(emitted)
        emitted.append(sampler.draw(out.logits[-1]))
        if emitted[-1] in stop_ids:
            break
    return tuple(emitted)


def drafter_of(name: str, family: str, answer: Sequence[int]) -> DrafterModel | None:
    if name == "draft model":
        return DraftModel(relative_of(family))
    if name == "tree":
        return Guesser(lambda context: branching(answer, context))
    return Lookup(min_match=1) if name == "lookup" else None


def branching(answer: Sequence[int], context: Sequence[int]) -> list[list[int]]:
    """A wrong child first, so that no path is a prefix of the nodes; then right for 0 to 3 tokens, then wrong."""
    right = [*answer[len(context) - len(PROMPT) :], *[0] * 4][:3]
    wrong = [(token + 1) % V for token in right]
    count = zlib.crc32(bytes(context)) % 4
    return [wrong[:1], right[:count] + wrong[count:]]


DRAFTERS = ("none", "lookup", "draft model", "tree")


def params_of(options: Options, seed: int) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 18, "seed": seed, **options})  # type: ignore[arg-type]


def run(target: Target, name: str, family: str, params: SamplingParams, answer: Sequence[int]) -> Result:
    engine = Engine(target, drafter_of(name, family, answer), eos_token_ids=(EOS,))
    return engine.generate(PROMPT, params, speculative=SpeculativeOptions(num_draft=4))


def assert_lossless(family: str, options: Options) -> None:
    """Every drafter gives the tokens of decoding from scratch, and something is accepted."""
    accepted = dict.fromkeys(DRAFTERS, 0)
    for seed in range(2 if options["temperature"] else 1):
        params = params_of(options, seed)
        expected = from_scratch(family, params)
        for name in DRAFTERS:
            result = run(target_of(family), name, family, params, expected)
            assert result.tokens == expected, (name, options, seed)
            assert result.finish_reason == ("stop" if expected[-1] in {EOS, *params.stop_token_ids} else "length")
            assert result.usage.completion_tokens == len(expected)
            assert result.stats.fallbacks == 0
            accepted[name] += result.stats.accepted
    assert accepted["none"] == 0
    assert accepted["tree"] > 0
    assert accepted["draft model"] > 0


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("options", SAMPLING, ids=str)
def test_tokens_are_those_of_decoding_from_scratch(family: str, temperature: float, options: Options) -> None:
    assert_lossless(family, {"temperature": temperature, **options})


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("options", [{}, *TRUNCATIONS], ids=str)
def test_truncated_draws_are_those_of_decoding_from_scratch(family: str, options: Options) -> None:
    assert_lossless(family, {"temperature": 1.0, **options})


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("place", [3, 6, 8, 11])
def test_a_stop_id_ends_every_request_at_its_first_place(family: str, place: int) -> None:
    """The stop id is a token that plain decoding really emits."""
    free = params_of({"temperature": 0.8, "logit_bias": {EOS: -100.0}}, seed=5)
    params = replace(free, stop_token_ids=(from_scratch(family, free)[place],))
    expected = from_scratch(family, params)
    assert len(expected) <= place + 1
    for name in DRAFTERS:
        result = run(target_of(family), name, family, params, expected)
        assert (result.tokens, result.finish_reason) == (expected, "stop")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("max_tokens", [1, 2, 4, 5, 6])
def test_limits_around_the_draft_length_cut_where_plain_decoding_ends(family: str, max_tokens: int) -> None:
    params = params_of({"temperature": 0.8, "max_tokens": max_tokens}, seed=4)
    expected = from_scratch(family, params)
    for name in DRAFTERS:
        assert run(target_of(family), name, family, params, expected).tokens == expected


def test_lookup_accepts_on_text_that_repeats() -> None:
    params = params_of({"max_tokens": 60, "logit_bias": {5: 2.0, 9: 2.0, EOS: -100.0}}, seed=0)
    expected = from_scratch("qwen3", params)
    result = run(target_of("qwen3"), "lookup", "qwen3", params, expected)
    assert result.tokens == expected
    assert result.stats.accepted > 10
    assert result.stats.fallbacks == 0


# Negative controls: the real cache with one defect.


class ForgetsToMoveRows(KVCache):
    """Commits a path that is no prefix as if it were one."""

    def _move(self, nodes: Sequence[int], start: int) -> None:
        pass


class KeepsARejectedNode(KVCache):
    """Leaves the first child of the last accepted node in place."""

    def commit(self, path: Sequence[int]) -> None:
        parents = self.transaction.open.parents
        rejected = [node for node, parent in enumerate(parents) if parent == path[-1]]
        super().commit([*path, *rejected[:1]])


class DropsTheLastNode(KVCache):
    """Forgets the last accepted node."""

    def commit(self, path: Sequence[int]) -> None:
        super().commit(path[: max(1, len(path) - 1)])


class CountsNodesAsPositions(Transaction):
    """Gives a node the position of its index instead of its depth."""

    def extended(self, parents: Sequence[int]) -> OpenNodes:
        nodes = super().extended(parents)
        return nodes._replace(depths=tuple(range(len(nodes.parents))))


class LetsSiblingsSeeEachOther(Transaction):
    """Masks a tree as if it were a chain."""

    def extended(self, parents: Sequence[int]) -> OpenNodes:
        return super().extended(parents)._replace(is_chain=True)


class BrokenTarget:
    """The target with a broken cache, which has room to spare so that nothing but tokens gives the defect away."""

    def __init__(self, model: DecoderModel, defect: type[KVCache] | type[Transaction]) -> None:
        self.model = model
        self.defect = defect

    def __getattr__(self, name: str) -> object:
        return getattr(self.model, name)

    def new_cache(self, length: int, *, spare: int = 0) -> KVCache:
        new = self.model.new_cache(2 * length, spare=2 * spare)
        if issubclass(self.defect, Transaction):
            new.transaction = self.defect(new.capacity)
        else:
            new.__class__ = self.defect
        return new


DEFECTS = [ForgetsToMoveRows, KeepsARejectedNode, DropsTheLastNode, CountsNodesAsPositions, LetsSiblingsSeeEachOther]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_broken_cache_is_seen(family: str, defect: type[KVCache] | type[Transaction]) -> None:
    differing = 0
    for seed in range(3):
        params = params_of({"temperature": 0.8, "logit_bias": {EOS: -100.0}}, seed)
        expected = from_scratch(family, params)
        target = BrokenTarget(target_of(family), defect)
        differing += run(target, "tree", family, params, expected).tokens != expected  # type: ignore[arg-type]
    assert differing > 0
