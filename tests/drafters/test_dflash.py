"""DFlash drafters through the whole engine: the text is the plain one, and only verified rows are ever known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from tests.drafters.blockers import LEARNT, PROMPT, TEMPERATURES, learnt, learnt_by, random_network, taps_of
from tests.guesses import Guesser, half_right
from tests.pairs import target_of

from surefoot import Engine, SamplingParams, SpeculativeOptions
from surefoot.drafters.dflash.drafter import DFlash, DFlashDrafter
from surefoot.drafters.dflash.network import DFlashNetwork
from surefoot.drafters.lookup import Lookup
from surefoot.drafters.stacked import Stacked
from surefoot.errors import DrafterError, OptionError, PairError, TargetError
from surefoot.models.decoder import DecoderModel
from surefoot.protocols import Drafter, DrafterModel, Sampler, Target
from surefoot.request import Result
from surefoot.sampling import RequestSampler
from surefoot.stats import RoundRecord
from surefoot.types import Capture, DraftTree, Plan, TargetOutput

FAMILIES = ("qwen3", "qwen3_5")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
BEYOND = 16
"""Tokens after those that are learnt, where drafts are mostly wrong."""
PLAIN = SpeculativeOptions(num_draft=0)
WAYS = {
    "a slot": SpeculativeOptions(num_draft=1),
    "two slots": SpeculativeOptions(num_draft=2),
    "a short block": SpeculativeOptions(),
    "the whole block": SpeculativeOptions(num_draft=7),
    "more than the block": SpeculativeOptions(num_draft=20),
    "a tree": SpeculativeOptions(num_draft=12, tree_width=3),
    "the likeliest": SpeculativeOptions(draft_sampling="argmax"),
}


def params_at(temperature: float, **changes: Any) -> SamplingParams:
    asked = {"temperature": temperature, "max_tokens": LEARNT + BEYOND, "seed": 11, "ignore_eos": True}
    return SamplingParams(**(asked | changes))


@cache
def plain(family: str, dtype: torch.dtype, temperature: float) -> Result:
    return Engine(target_of(family, dtype)).generate(PROMPT, params_at(temperature), speculative=PLAIN)


def drafter_for(family: str, dtype: torch.dtype, **options: Any) -> DFlash:
    return DFlash(learnt_by(target_of(family, dtype)), **options)


class Watched:
    """A drafter beside which its context is compared with the text after every call."""

    method = "watched"

    def __init__(self, inner: DrafterModel) -> None:
        self.inner = inner
        self.lengths: list[int] = []

    def start(self, target: Target) -> WatchedDrafter:
        return WatchedDrafter(self, self.inner.start(target))


class WatchedDrafter:
    def __init__(self, shared: Watched, inner: Drafter) -> None:
        assert isinstance(inner, DFlashDrafter)
        self.shared, self.inner = shared, inner
        self.text: list[int] = []

    @property
    def capture(self) -> Capture:
        return self.inner.capture

    def observe(self, tokens: Sequence[int], out: TargetOutput, path: Sequence[int] | None) -> None:
        self.inner.observe(tokens, out, path)
        self.text += tokens
        self.check()

    def propose(self, root: int, plan: Plan, sampler: Sampler) -> DraftTree:
        tree = self.inner.propose(root, plan, sampler)
        self.check()
        return tree

    def truncate(self, length: int) -> None:
        self.inner.truncate(length)
        del self.text[length:]
        self.check()

    def close(self) -> None:
        self.check()

    def check(self) -> None:
        assert self.inner.num_context == len(self.text)
        self.shared.lengths.append(len(self.text))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_text_is_the_plain_one(family: str, dtype: str, temperature: float, way: str) -> None:
    target = target_of(family, DTYPES[dtype])
    watched = Watched(drafter_for(family, DTYPES[dtype]))
    result = Engine(target, watched).generate(PROMPT, params_at(temperature), speculative=WAYS[way])
    expected = plain(family, DTYPES[dtype], temperature)
    assert result.tokens == expected.tokens
    assert result.stats.strict
    assert result.stats.fallbacks == 0
    assert result.stats.drafted > result.stats.accepted > 0
    assert watched.lengths[-1] == len(PROMPT) + len(result.tokens) - 1  # every committed token but the root


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_what_was_learnt_is_drafted_right(temperature: float) -> None:
    """A floor: of the learnt answer nothing but rounding between one block length and another may be refused."""
    engine = Engine(target_of("qwen3", torch.float32), drafter_for("qwen3", torch.float32))
    params = params_at(temperature, max_tokens=LEARNT)
    for num_draft in (4, 7):
        result = engine.generate(PROMPT, params, speculative=SpeculativeOptions(num_draft=num_draft))
        assert result.stats.accepted >= 0.8 * result.stats.drafted > 0


def acceptance(network: DFlashNetwork, family: str = "qwen3", **options: Any) -> float:
    engine = Engine(target_of(family, torch.float32), DFlash(network, **options))
    result = engine.generate(PROMPT, params_at(0.0, max_tokens=LEARNT), speculative=SpeculativeOptions(num_draft=7))
    assert result.stats.fallbacks == 0
    return result.stats.mean_acceptance_length


class Shifted(DFlashNetwork):
    """Blocks stand elsewhere than they are."""

    def angles(self, positions: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().angles(positions + (3 if len(positions) == self.config.block_size else 0), like)


def with_weights_of(right: DFlashNetwork, network: DFlashNetwork) -> DFlashNetwork:
    network.load_state_dict(right.state_dict())
    return network.requires_grad_(False)


def test_swapped_layers_a_wrong_mask_and_shifted_positions_lower_acceptance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surefoot.drafters.dflash.drafter.available", lambda: None)
    right = learnt_by(target_of("qwen3", torch.float32))
    best = acceptance(right)
    assert best > 5
    for wrong in ({"target_layer_ids": (1, 0)}, {"mask_token_id": 7}):
        assert acceptance(with_weights_of(right, DFlashNetwork(replace(right.config, **wrong)))) < best - 1
    assert acceptance(with_weights_of(right, Shifted(right.config))) < best - 1


def test_a_layer_beside_the_right_one_gives_other_slots() -> None:
    target, right = target_of("qwen3", torch.float32), learnt_by(target_of("qwen3", torch.float32))
    wrong = with_weights_of(right, DFlashNetwork(replace(right.config, target_layer_ids=(1, 1))))
    slots = []
    for network in (right, wrong):
        drafter = DFlash(network).start(target)
        drafter.observe(PROMPT, rows_of(taps_of(target, PROMPT, drafter.capture.layers)), None)
        slots.append(drafter._slots(5, 7))
    assert (slots[0] - slots[1]).abs().max() > 0.1


def test_slots_do_not_depend_on_how_the_context_came() -> None:
    """Chunks and rounds of any length leave the rows that one chunk leaves."""
    target, network = target_of("qwen3", torch.float32), random_network(5)
    taps = taps_of(target, tuple(range(3, 40)), (0, 1))
    plan = Plan(num_nodes=7, depth=7)
    sampler = RequestSampler(SamplingParams(), range(38), seed=0, vocab_size=97)
    whole, parts = DFlash(network).start(target), DFlash(network).start(target)
    whole.observe(range(37), rows_of(taps), None)
    parts.observe(range(20), rows_of(taps[:20]), None)
    path = (0, 2, 3)
    scattered = torch.full((6, taps.shape[1]), 7.0)
    scattered[list(path)] = taps[20:23]
    parts.observe((1, 2, 3), rows_of(scattered), path)
    for start in range(23, 37, 7):
        rows = torch.cat((taps[start : start + 7], torch.randn(2, taps.shape[1])))
        parts.observe(range(7), rows_of(rows), range(7))
    assert parts.num_context == whole.num_context == 37
    assert parts.propose(5, plan, sampler).ids == whole.propose(5, plan, sampler).ids
    whole.observe(range(9), rows_of(taps[:9]), range(9))
    whole.truncate(37)
    assert parts.propose(5, plan, sampler).ids == whole.propose(5, plan, sampler).ids


def rows_of(taps: torch.Tensor) -> TargetOutput:
    return TargetOutput(logits=None, layers=tuple(taps.split(48, -1)))


CUTS: dict[str, dict[str, Any]] = {
    "one token": {"max_tokens": 1},
    "two tokens": {"max_tokens": 2},
    "inside a block": {"max_tokens": 11},
    "a stop inside a block": {},
}


@pytest.mark.parametrize("cut", CUTS)
def test_a_cut_leaves_nothing_unverified(cut: str) -> None:
    target = target_of("qwen3", torch.float32)
    answer = plain("qwen3", torch.float32, 0.0).tokens
    stop = next(token for place, token in enumerate(answer) if place > 6 and token not in answer[:place])
    changes = CUTS[cut] or {"stop_token_ids": (stop,)}
    watched = Watched(drafter_for("qwen3", torch.float32))
    params = params_at(0.0, **changes)
    result = Engine(target, watched).generate(PROMPT, params, speculative=SpeculativeOptions(num_draft=7))
    expected = answer[: answer.index(stop) + 1] if not CUTS[cut] else answer[: params.max_tokens]
    assert result.tokens == expected
    assert watched.lengths[-1] == len(PROMPT) + len(expected) - 1


@pytest.mark.parametrize("prompt", [PROMPT[:1], PROMPT[:2]])
def test_short_prompts(prompt: tuple[int, ...]) -> None:
    target = target_of("qwen3", torch.float32)
    engine = Engine(target, DFlash(random_network(2)))
    params = params_at(0.0, max_tokens=9)
    assert engine.generate(prompt, params).tokens == Engine(target).generate(prompt, params).tokens


def test_a_stream_left_anywhere_goes_on_in_the_next_turn() -> None:
    """The turns of a conversation keep the drafter, cut back to what the prompt shares with the text."""
    target = target_of("qwen3", torch.float32)
    watched = Watched(drafter_for("qwen3", torch.float32))
    conversation = Engine(target, watched).conversation()
    answer = plain("qwen3", torch.float32, 0.0).tokens
    for kept in (0, 3, 17, 5, 30):
        prompt = PROMPT + answer[:kept]
        stream = conversation.stream(prompt, params_at(0.0, max_tokens=LEARNT - kept))
        with stream:
            for place, event in enumerate(stream):
                assert event.token == answer[kept + place]
                if place == kept % 7:
                    break
    result = conversation.generate(PROMPT, params_at(0.0))
    assert result.tokens == answer
    assert result.usage.cached_tokens > 0
    assert result.stats.accepted > 0


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_samples_and_rejection_go_with_it(temperature: float) -> None:
    engine = Engine(target_of("qwen3", torch.float32), drafter_for("qwen3", torch.float32))
    with engine.samples(PROMPT, params_at(temperature), n=2) as samples:
        for _ in samples:
            pass
    assert samples.results[0].tokens == plain("qwen3", torch.float32, temperature).tokens
    for sampling in (None, "argmax"):
        options = SpeculativeOptions(acceptance="reject", draft_sampling=sampling)
        result = engine.generate(PROMPT, params_at(temperature), speculative=options)
        assert result.stats.fallbacks == 0
        assert temperature > 0 or result.tokens == plain("qwen3", torch.float32, 0.0).tokens


@pytest.mark.parametrize("sharpness", [1.0, 3.0])
def test_under_rejection_each_slot_is_drawn_from_the_law_it_names(sharpness: float) -> None:
    target = target_of("qwen3", torch.float32)
    drafter = drafter_for("qwen3", torch.float32, sharpness=sharpness).start(target)
    drafter.observe(PROMPT, rows_of(taps_of(target, PROMPT, (0, 1))), None)
    params, rejecting = params_at(0.8), SpeculativeOptions(acceptance="reject")
    sampler = RequestSampler(params, PROMPT, seed=3, vocab_size=97, speculative=rejecting)
    expected_KV = torch.softmax(drafter._slots(5, 7).double() * sharpness / params.temperature, dim=-1)
    drawn = torch.zeros_like(expected_KV)
    for _ in range(400):
        tree = drafter.propose(5, Plan(num_nodes=7, depth=7), sampler)
        assert tree.q is not None
        torch.testing.assert_close(tree.q, expected_KV, rtol=1e-5, atol=1e-8)
        drawn[torch.arange(7), tree.tokens[1:]] += 1 / 400
        sampler.advance([])  # another round's choices
    distance_K = (drawn - expected_KV).abs().sum(-1) / 2
    assert distance_K.max() < 0.25, "400 draws of 97 tokens at most"
    assert distance_K.max() < (drawn - expected_KV.roll(1, 0)).abs().sum(-1).max() / 4, "another slot's law is far"


def test_a_tree_of_width_one_is_the_chain() -> None:
    target, network = target_of("qwen3", torch.float32), learnt_by(target_of("qwen3", torch.float32))
    drafter = DFlash(network).start(target)
    drafter.observe(PROMPT, rows_of(taps_of(target, PROMPT, (0, 1))), None)
    sampler = RequestSampler(SamplingParams(), PROMPT, seed=0, vocab_size=97)
    slots = drafter._slots(5, 7)
    chain = drafter.propose(5, Plan(num_nodes=7, depth=7), sampler)
    spine = drafter._tree(5, slots, Plan(num_nodes=7, depth=7, width=1))
    assert (spine.ids, spine.parents) == (chain.ids, chain.parents)


def test_a_tree_accepts_more_than_its_chain() -> None:
    """Where the drafter is half right, siblings catch what the chain misses, both of the likeliest tokens."""
    target = target_of("qwen3", torch.float32)
    engine = Engine(target, DFlash(learnt(target, 30)))
    for temperature in TEMPERATURES:
        chain, tree = (
            engine.generate(PROMPT, params_at(temperature, max_tokens=LEARNT), speculative=options)
            for options in (
                SpeculativeOptions(num_draft=7, draft_sampling="argmax"),
                SpeculativeOptions(num_draft=14, tree_width=3),
            )
        )
        assert tree.tokens == chain.tokens
        assert 1.2 < chain.stats.mean_acceptance_length < tree.stats.mean_acceptance_length


def test_lookup_before_it_copies_and_tells_both() -> None:
    target = target_of("qwen3", torch.float32)
    watched = Watched(drafter_for("qwen3", torch.float32))
    answer = plain("qwen3", torch.float32, 0.0).tokens
    prompt = PROMPT + answer[:20] + PROMPT  # lookup finds the beginning again
    params = params_at(0.0, max_tokens=30)
    engine = Engine(target, Stacked(Lookup(min_match=2), watched))
    assert engine.drafter.method == "lookup+watched"
    assert engine.methods == ("none", "lookup", "watched", "lookup+watched")
    result = engine.generate(prompt, params)
    assert result.tokens == Engine(target).generate(prompt, params).tokens
    assert result.stats.fallbacks == 0
    assert result.stats.drafted > 0
    assert watched.lengths[-1] == len(prompt) + len(result.tokens) - 1
    with pytest.raises(OptionError, match="reads token ids"):
        Stacked(watched, Lookup()).start(target)


def test_another_drafters_tree_is_learnt_like_its_own() -> None:
    """Rounds that it did not draft, branches and all, leave the context that plain decoding leaves."""
    target = target_of("qwen3", torch.float32)
    answer = plain("qwen3", torch.float32, 0.0).tokens
    watched = Watched(drafter_for("qwen3", torch.float32))
    guesser = Guesser(half_right([*answer, *[0] * 8], len(PROMPT), 97))
    engine = Engine(target, Stacked(guesser, watched))
    result = engine.generate(PROMPT, params_at(0.0))
    assert result.tokens == answer
    assert result.stats.accepted > 0


def test_a_target_of_another_shape_is_refused() -> None:
    target = target_of("qwen3", torch.float32)
    with pytest.raises(PairError, match="vocabulary of 96"):
        DFlash(random_network(vocab_size=96, dflash_config={"mask_token_id": 1, "target_layer_ids": [0]})).start(target)
    with pytest.raises(PairError, match="32 wide, and the target 48"):
        DFlash(random_network(hidden_size=32)).start(target)
    with pytest.raises(OptionError, match="sharpness"):
        DFlash(random_network(), sharpness=0.0)


def test_rows_that_were_not_asked_for_are_refused() -> None:
    drafter = DFlash(random_network()).start(target_of("qwen3", torch.float32))
    with pytest.raises(DrafterError, match="showed 0 layers; expected 2"):
        drafter.observe((1,), TargetOutput(logits=None), None)
    with pytest.raises(DrafterError, match="for 3 tokens"):
        drafter.observe((1, 2, 3), rows_of(torch.zeros(2, 96)), None)


def test_beyond_its_positions_it_is_dropped_and_the_text_stays() -> None:
    target = target_of("qwen3", torch.float32)
    engine = Engine(target, DFlash(random_network(max_position_embeddings=24)))
    with pytest.warns(RuntimeWarning, match="positions end at 24"):
        result = engine.generate(PROMPT, params_at(0.0))
    assert result.tokens == plain("qwen3", torch.float32, 0.0).tokens
    assert result.stats.fallbacks == 1


@pytest.mark.parametrize("options", [{"whole_block": True}, {"shared_noise": False}, {"sharpness": 3.0}])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_its_options_change_guesses_alone(options: dict[str, Any], temperature: float) -> None:
    target = target_of("qwen3", torch.float32)
    result = Engine(target, drafter_for("qwen3", torch.float32, **options)).generate(PROMPT, params_at(temperature))
    assert result.tokens == plain("qwen3", torch.float32, temperature).tokens
    assert result.stats.accepted > 0


def test_torch_computes_the_same_where_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surefoot.drafters.dflash.drafter.available", lambda: None)
    target: DecoderModel = target_of("qwen3", torch.float32, trainable=True)
    network = learnt_by(target_of("qwen3", torch.float32))
    result = Engine(target, DFlash(network)).generate(PROMPT, params_at(0.0))
    assert result.stats.accepted > LEARNT / 2
    wide = target_of("qwen3", torch.float64, trainable=True)
    double = DFlashNetwork(network.config)
    double.load_state_dict(network.state_dict())
    result = Engine(wide, DFlash(double.double())).generate(PROMPT, params_at(0.0))
    assert result.stats.accepted > LEARNT / 2


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", ["the whole block", "a tree"])
def test_the_models_own_end_inside_a_block_ends_the_answer(family: str, way: str) -> None:
    target = target_of(family, torch.float32)
    answer = plain(family, torch.float32, 0.0).tokens
    ends = [place for place, token in enumerate(answer) if 6 < place < LEARNT and token not in answer[:place]]
    inside = 0
    for end in ends[:6]:
        watched = Watched(drafter_for(family, torch.float32))
        engine = Engine(target, watched, eos_token_ids=(answer[end],))
        rounds: list[RoundRecord] = []
        params = params_at(0.0, ignore_eos=False)
        with engine.stream(PROMPT, params, speculative=WAYS[way], on_round=rounds.append) as stream:
            result = stream.read()
        assert result.tokens == answer[: end + 1]
        assert result.finish_reason == "stop"
        assert result.stats.fallbacks == 0
        assert watched.lengths[-1] == len(PROMPT) + end  # nothing behind it was committed
        inside += len(rounds[-1].verdict.path) < len(rounds[-1].tokens)
    assert inside > 0


class Failing:
    """A target that fails in one round, after its rows were computed and before any was committed."""

    def __init__(self, target: DecoderModel, failing: int) -> None:
        self._target, self._calls, self._failing = target, 0, failing

    def score(self, *given: Any) -> list[TargetOutput]:
        outs = self._target.score(*given)
        self._calls += 1
        if self._calls == self._failing:
            raise RuntimeError("interrupted")
        return outs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", ["the whole block", "a tree"])
def test_a_failure_between_score_and_commit_leaves_drafter_and_text_as_they_were(family: str, way: str) -> None:
    target = target_of(family, torch.float32)
    answer = plain(family, torch.float32, 0.0).tokens
    for failing in (1, 2, 4):
        watched = Watched(drafter_for(family, torch.float32))
        conversation = Engine(Failing(target, failing), watched).conversation()  # type: ignore[arg-type]  # the rest is
        with pytest.raises(TargetError, match="interrupted"):
            conversation.generate(PROMPT, params_at(0.0), speculative=WAYS[way])
        known = watched.lengths[-1]
        assert known <= len(PROMPT) + len(answer)
        result = conversation.generate(PROMPT, params_at(0.0), speculative=WAYS[way])
        assert result.tokens == answer
        assert result.stats.fallbacks == 0
        assert result.stats.accepted > 0


def test_streams_that_take_turns_do_not_see_each_other() -> None:
    engine = Engine(target_of("qwen3_5", torch.float32), drafter_for("qwen3_5", torch.float32))
    streams = [engine.stream(PROMPT, params_at(temperature)) for temperature in TEMPERATURES]
    found: list[list[int]] = [[], []]
    for events in zip(*streams, strict=True):
        for tokens, event in zip(found, events, strict=True):
            tokens.append(event.token)
    for temperature, tokens in zip(TEMPERATURES, found, strict=True):
        assert tuple(tokens) == plain("qwen3_5", torch.float32, temperature).tokens


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("way", ["the whole block", "a tree"])
def test_weights_that_are_no_numbers_are_told_and_cost_no_answer(
    way: str, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernels:
        monkeypatch.setattr("surefoot.drafters.dflash.drafter.available", lambda: None)
    network = random_network(3)
    network.fc.weight.fill_(float("nan"))
    engine = Engine(target_of("qwen3", torch.float32), DFlash(network))
    with pytest.warns(RuntimeWarning, match="slots hold NaN"):
        result = engine.generate(PROMPT, params_at(0.0), speculative=WAYS[way])
    assert result.tokens == plain("qwen3", torch.float32, 0.0).tokens
    assert result.stats.fallbacks == 1
