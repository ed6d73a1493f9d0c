"""``match`` with the production sampler: seeded tokens with speculation are those without any state at all.

The reference draws every token with a fresh sampler from a row computed from scratch; the run under test goes through
the production round with chains and trees from drafters that depend on the context. Targets have exact zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.lossless.scripted import ended
from tests.lossless.tables import PROMPT, DepthPolicy, TableDrafter, ZeroTable
from torch import Tensor

from surefoot.decode import Decoding, decode
from surefoot.drafters.none import NoDraft
from surefoot.noise import FloatArray
from surefoot.options import SamplingParams
from surefoot.protocols import Drafter
from surefoot.sampling import RequestSampler
from surefoot.stats import Tally
from surefoot.stops import Limits, NoText, RequestStops
from surefoot.verify import verify

V = 7
STOPS = (5,)

TRUNCATIONS = [{}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.15}, {"top_k": 5, "top_p": 0.9, "min_p": 0.05}]
EDITS = [
    {"repetition_penalty": 1.5},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.8},
    {"logit_bias": {0: 2.0, 3: -4.0}},
    {"forbidden_tokens": (1, 4)},
    {"allowed_tokens": (0, 2, 3, 5, 6)},
    {"min_tokens": 9},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.5, "logit_bias": {5: 1.0}, "min_tokens": 4},
]


def reference(params: SamplingParams, table: ZeroTable, seed: int) -> tuple[int, ...]:
    """Plain decoding by definition: no cache, no round, no sampler that outlives a token."""
    emitted: list[int] = []
    for _ in range(params.max_tokens):
        fresh = RequestSampler(params, PROMPT, seed=seed, vocab_size=V, stop_ids=STOPS)
        fresh.advance(emitted)
        emitted.append(fresh.draw(table.row([*PROMPT, *emitted])))
    return ended(tuple(emitted), STOPS)


def speculate(
    params: SamplingParams, table: ZeroTable, drafter: Drafter, seed: int, sampler_type: type[RequestSampler]
) -> tuple[tuple[int, ...], Tally]:
    """The same request through the production round."""
    stops = RequestStops(Limits(stop_ids=STOPS, max_tokens=params.max_tokens, at_context_end=False), NoText())
    decoding = Decoding(
        cache=table.new_cache(128),
        drafter=drafter,
        sampler=sampler_type(params, PROMPT, seed=seed, vocab_size=V, stop_ids=STOPS),
        stops=stops,
        policy=DepthPolicy(4),
        verify=verify,
        vocab_size=V,
    )
    emitted: list[int] = []
    for verdict in decode(table, PROMPT, decoding):
        emitted += verdict.emitted
    return tuple(emitted), decoding.tally


def differences(options: dict[str, object], sampler_type: type[RequestSampler] = RequestSampler) -> int:
    """How many of 100 runs give other tokens."""
    count = accepted = 0
    for seed in range(20):
        params = SamplingParams(max_tokens=16, **options)  # type: ignore[arg-type]
        table = ZeroTable(V, seed=seed, scale=1.5)
        alike = ZeroTable(V, seed=seed if seed % 2 else 99, scale=2.0)
        expected = reference(params, table, seed)
        shapes = ((True, False), (False, False), (True, True), (False, True))
        guessing = [TableDrafter(alike, shared_noise=shared, branches=branches) for shared, branches in shapes]
        for drafter in (NoDraft(), *guessing):
            emitted, tally = speculate(params, table, drafter, seed, sampler_type)
            count += emitted != expected
            accepted += tally.accepted
            assert tally.fallbacks == 0
    assert accepted > 80, "almost nothing was accepted, so nothing was tested"
    return count


@pytest.mark.parametrize("temperature", [0, 0.8, 1])
@pytest.mark.parametrize("edit", [{}, *EDITS], ids=str)
def test_every_processor_gives_the_tokens_of_plain_decoding(temperature: float, edit: dict[str, object]) -> None:
    assert differences({"temperature": temperature, **edit}) == 0


@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
@pytest.mark.parametrize("edit", [{}, EDITS[-1]], ids=str)
def test_every_truncation_gives_the_tokens_of_plain_decoding(
    truncation: dict[str, object], edit: dict[str, object]
) -> None:
    assert differences({"temperature": 0.9, **truncation, **edit}) == 0


# Negative controls: samplers with one defect each.


class PenaltiesForgetThePath(RequestSampler):
    def _edited(self, logits: Tensor, prefix: Sequence[int]) -> FloatArray:
        return super()._edited(logits, ())


class NoiseForgetsThePath(RequestSampler):
    def _noisy_best(self, logits: Tensor, prefix: Sequence[int]) -> int:
        support = self._support(logits, prefix)
        noise = self._noise.row(self._length)
        return support.token(int((support.logits + noise).argmax()))


class NoiseAdvancesPerCall(RequestSampler):
    calls = 0

    def _noisy_best(self, logits: Tensor, prefix: Sequence[int]) -> int:
        self.calls += 1
        support = self._support(logits, prefix)
        noise = self._noise.row(self._length + len(prefix) + self.calls)
        return support.token(int((support.logits + noise).argmax()))


class HistoryMissesAcceptedDrafts(RequestSampler):
    def advance(self, tokens: Sequence[int]) -> None:
        super().advance(tokens[-1:])
        self._length += len(tokens) - 1
        self._num_emitted += len(tokens) - 1


class GreedyWithoutProcessors(RequestSampler):
    @property
    def greedy_rows(self) -> bool:
        return self._params.greedy


class MinTokensCountsRounds(RequestSampler):
    def advance(self, tokens: Sequence[int]) -> None:
        super().advance(tokens)
        self._num_emitted -= len(tokens) - 1


PENALTY = {"repetition_penalty": 1.5, "frequency_penalty": 0.8}
CONTROLS = [
    (PenaltiesForgetThePath, {"temperature": 1, **PENALTY}),
    (PenaltiesForgetThePath, PENALTY),
    (PenaltiesForgetThePath, {"min_tokens": 9}),
    (NoiseForgetsThePath, {"temperature": 1}),
    (NoiseAdvancesPerCall, {"temperature": 1}),
    (HistoryMissesAcceptedDrafts, {"temperature": 1, **PENALTY}),
    (GreedyWithoutProcessors, {"logit_bias": {0: 4.0}}),
    (MinTokensCountsRounds, {"min_tokens": 9}),
]


@pytest.mark.parametrize(
    ("sampler_type", "options"), CONTROLS, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_a_broken_sampler_is_seen(sampler_type: type[RequestSampler], options: dict[str, object]) -> None:
    assert differences(options, sampler_type) > 0
