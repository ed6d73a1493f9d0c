"""The draft model as drafter: whatever the rounds were, it drafts what it would say to the text read from scratch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from tests.factories import make_model
from tests.guesses import Guesser, half_right
from tests.tables import TableCache, TableTarget
from torch import Tensor

from surefoot import Engine, SamplingParams, SpeculativeOptions
from surefoot.decode import Decoding, prefill
from surefoot.drafters.draft_model import DraftModel, DraftModelDrafter
from surefoot.errors import DrafterError
from surefoot.sampling import RequestSampler
from surefoot.tree import chain, path_to
from surefoot.types import Capture, DraftTree, Plan, TargetOutput, Verdict

PROMPT = (1, 2, 3, 1, 2)
NO_OUTPUT = TargetOutput(logits=None)
TEMPERATURES = [0.0, 0.8]
at_temperatures = pytest.mark.parametrize("temperature", TEMPERATURES)


class Relative(TableTarget):
    """A table that mostly agrees with the ``TableTarget`` of the same seed; keeps the caches it made."""

    def __init__(self, *, blur: float = 0.6, **options: int) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.blur = TableTarget(self.vocab_size, seed=self.seed + 1, scale=blur, order=self.order)
        self.caches: list[TableCache] = []

    def row(self, context: Sequence[int]) -> Tensor:
        return super().row(context) + self.blur.row(context)

    def new_cache(self, capacity: int) -> TableCache:
        self.caches.append(super().new_cache(capacity))
        return self.caches[-1]


class Turns:
    """A policy that drafts on some turns alone."""

    def __init__(self, drafts_on: Callable[[int], bool], num_draft: int = 4) -> None:
        self.drafts_on = drafts_on
        self.num_draft = num_draft
        self.turn = 0

    def plan(self, remaining: int) -> Plan:
        self.turn += 1
        count = min(self.num_draft, remaining - 1) if self.drafts_on(self.turn) else 0
        return Plan(num_nodes=count, depth=count)

    def update(self, verdict: Verdict, seconds: float) -> None:
        pass


def params_at(temperature: float, max_tokens: int = 40) -> SamplingParams:
    return SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=7)


def decoding_of(
    target: TableTarget, draft: TableTarget, params: SamplingParams, speculative: SpeculativeOptions | None = None
) -> Decoding:
    engine = Engine(target, DraftModel(draft))
    return engine.stream(PROMPT, params, speculative=speculative or SpeculativeOptions())._request.decoding


def drafts_from_scratch(
    draft: TableTarget, context: Sequence[int], count: int, sampler: RequestSampler
) -> tuple[list[int], list[Tensor | None]]:
    """What the draft model says after ``context``, each row computed from all tokens; and the laws."""
    drafted: list[int] = []
    laws: list[Tensor | None] = []
    for _ in range(count):
        token, law = sampler.draft(draft.row([*context, *drafted]), drafted, shared_noise=True)
        drafted.append(token)
        laws.append(law)
    return drafted, laws


def check_state(decoding: Decoding, draft: Relative, text: Sequence[int]) -> None:
    """Between rounds the draft model's cache holds a prefix of what was committed, and nothing tentative."""
    drafter = decoding.drafter
    assert isinstance(drafter, DraftModelDrafter)
    assert [*drafter._context, decoding.root] == list(text)
    for kept in draft.caches[-1:]:
        assert kept.open_tokens == []
        assert kept.tokens == list(text[: kept.length])


def play(decoding: Decoding, target: TableTarget, draft: Relative, plain: Sequence[int]) -> list[Verdict]:
    """Decodes to the end; checks every proposal against one from scratch, and the state after every round."""
    text = [*PROMPT, *prefill(target, PROMPT, [decoding])[0].emitted]
    verdicts = []
    while decoding.finish_reason is None:
        tree = decoding.draft()
        expected, laws = drafts_from_scratch(draft, text, len(tree) - 1, decoding.sampler)  # type: ignore[arg-type]
        assert tree.tokens.tolist() == [text[-1], *expected]
        expected_laws = [law for law in laws if law is not None]
        assert (tree.q is not None) == bool(expected_laws)
        if tree.q is not None:
            assert torch.equal(tree.q, torch.stack(expected_laws))
        (out,) = target.score([(tree, decoding.cache)], Capture())  # type: ignore[list-item]
        verdicts.append(decoding.absorb(tree, out))
        text += verdicts[-1].emitted
        check_state(decoding, draft, text)
    assert decoding.tally.fallbacks == 0
    if plain:
        assert text == [*PROMPT, *plain]
    return verdicts


@at_temperatures
@pytest.mark.parametrize("num_draft", [1, 2, 4, 7])
def test_drafts_and_state_are_those_of_the_text_from_scratch(num_draft: int, temperature: float) -> None:
    target, draft, params = TableTarget(), Relative(), params_at(temperature)
    plain = Engine(target).generate(PROMPT, params).tokens
    decoding = decoding_of(target, draft, params, SpeculativeOptions(num_draft=num_draft))
    verdicts = play(decoding, target, draft, plain)
    kinds = {(verdict.num_accepted > 0, verdict.num_accepted == verdict.num_drafted > 0) for verdict in verdicts}
    assert kinds >= {(False, False), (True, True)}, "rounds with no draft accepted and with all of them"
    assert num_draft == 1 or (True, False) in kinds, "rounds with part accepted"


def test_under_rejection_the_laws_are_those_the_drafts_were_sampled_from() -> None:
    target, draft = TableTarget(), Relative()
    decoding = decoding_of(target, draft, params_at(0.8), SpeculativeOptions(acceptance="reject"))
    verdicts = play(decoding, target, draft, ())
    assert sum(verdict.num_accepted for verdict in verdicts) > len(verdicts) / 2
    assert {verdict.next_origin for verdict in verdicts} >= {"bonus", "correction"}


def test_the_comparison_sees_a_token_that_was_not_fed() -> None:
    """Negative control: a drafter that is not told the last accepted draft proposes for another text."""
    target, draft, params = TableTarget(), Relative(), params_at(0.0)
    plain = Engine(target).generate(PROMPT, params).tokens
    decoding = decoding_of(target, draft, params)
    drafter = decoding.drafter
    assert isinstance(drafter, DraftModelDrafter)

    class Forgetful(DraftModelDrafter):
        def observe(self, tokens: Sequence[int], out: TargetOutput, path: Sequence[int] | None) -> None:
            super().observe(tokens[:-1] if path is not None and len(path) > 2 else tokens, out, path)

    decoding.drafter = Forgetful(DraftModel(draft))
    with pytest.raises(AssertionError):
        play(decoding, target, draft, plain)


@at_temperatures
@pytest.mark.parametrize("every", [2, 5, 23])
def test_it_catches_up_after_rounds_without_drafts(every: int, temperature: float) -> None:
    """23 rounds is past the number of tokens fed together with the root."""
    target, draft, params = TableTarget(), Relative(), params_at(temperature, max_tokens=58)
    plain = Engine(target).generate(PROMPT, params).tokens
    decoding = decoding_of(target, draft, params)
    decoding.policy = Turns(lambda turn: turn % every == 1)
    verdicts = play(decoding, target, draft, plain)
    assert sum(verdict.num_drafted > 0 for verdict in verdicts) >= 2
    assert sum(verdict.num_accepted for verdict in verdicts) > 0


@at_temperatures
@pytest.mark.parametrize("proposes_too", [True, False], ids=["after its own proposal", "instead of its own"])
def test_another_drafters_tree_is_learnt_like_ones_own(proposes_too: bool, temperature: float) -> None:
    target, draft, params = TableTarget(), Relative(), params_at(temperature, max_tokens=50)
    plain = Engine(target).generate(PROMPT, params).tokens
    decoding = decoding_of(target, draft, params)
    other = Guesser(half_right([*plain, *[0] * 8], len(PROMPT), target.vocab_size))
    text = [*PROMPT, *prefill(target, PROMPT, [decoding])[0].emitted]
    num_own = 0
    while decoding.finish_reason is None:
        plan = decoding.policy.plan(decoding.stops.remaining)
        tree = chain((decoding.root,))
        foreign = len(text) % 3 > 0
        if proposes_too or not foreign:
            tree = decoding.draft()
            expected, _ = drafts_from_scratch(draft, text, len(tree) - 1, decoding.sampler)  # type: ignore[arg-type]
            assert tree.tokens.tolist() == [text[-1], *expected]
            num_own += 1
        if foreign:
            other.context = text[:-1]
            tree = other.propose(decoding.root, plan, decoding.sampler)
        (out,) = target.score([(tree, decoding.cache)], Capture())  # type: ignore[list-item]
        text += decoding.absorb(tree, out).emitted
        check_state(decoding, draft, text)
    assert text == [*PROMPT, *plain]
    assert num_own > 3


def test_no_confirmed_token_is_computed_again() -> None:
    """Where every draft is right the draft model computes each row once."""

    class Counting(Relative):
        num_rows = 0

        def score(self, rounds: Sequence[tuple[DraftTree, TableCache]], capture: Capture) -> list[TargetOutput]:
            self.num_rows += sum(len(tree) for tree, _ in rounds)
            return super().score(rounds, capture)

    draft = Counting(blur=0.0)
    result = Engine(TableTarget(), DraftModel(draft)).generate(PROMPT, params_at(0.8))
    assert result.stats.accepted == result.stats.drafted > 0
    assert draft.caches[0].length <= draft.num_rows <= len(PROMPT) + len(result.tokens)


@at_temperatures
def test_a_proposal_that_was_never_scored_leaves_nothing(temperature: float) -> None:
    draft = Relative()
    drafter = DraftModel(draft).start(TableTarget())
    drafter.observe(PROMPT[:-1], NO_OUTPUT, None)
    for root, count in ((2, 4), (0, 2), (3, 4), (2, 1)):
        sampler = sampler_of(temperature=temperature)
        tree = drafter.propose(root, Plan(num_nodes=count, depth=count), sampler)
        assert tree.tokens.tolist()[1:] == drafts_from_scratch(draft, [*PROMPT[:-1], root], count, sampler)[0]


def sampler_of(vocab_size: int = 5, temperature: float = 0.0) -> RequestSampler:
    return RequestSampler(params_at(temperature), PROMPT, seed=7, vocab_size=vocab_size)


def test_the_cache_grows_past_its_first_capacity() -> None:
    draft = Relative(order=3, context_length=10_000)
    drafter = DraftModel(draft).start(TableTarget())
    plan = Plan(num_nodes=3, depth=3)
    text = list(PROMPT)
    for _ in range(3):
        drafter.observe(text[len(drafter._context) : -1], NO_OUTPUT, None)
        tree = drafter.propose(text[-1], plan, sampler_of())
        assert tree.tokens.tolist()[1:] == drafts_from_scratch(draft, text, 3, sampler_of())[0]
        drafter.observe((text[-1],), NO_OUTPUT, (0,))
        text += [token % 5 for token in range(draft.caches[-1].capacity)]
    capacities = [kept.capacity for kept in draft.caches]
    assert len(capacities) == 3, "one cache for each length that no longer fitted"
    assert capacities == sorted(set(capacities))


def test_the_cache_is_made_once_where_it_is_large_enough() -> None:
    target, draft = TableTarget(), Relative()
    Engine(target, DraftModel(draft)).generate(PROMPT, params_at(0.8, max_tokens=50))
    assert len(draft.caches) == 1
    assert draft.caches[0].capacity <= draft.context_length


@at_temperatures
def test_beyond_the_draft_models_context_decoding_goes_on_plainly(temperature: float) -> None:
    target, params = TableTarget(), params_at(temperature)
    plain = Engine(target).generate(PROMPT, params).tokens
    draft = Relative(context_length=20)
    with pytest.warns(RuntimeWarning, match=r"DraftModelDrafter failed.*needs \d+ tokens.*which has 20"):
        result = Engine(target, DraftModel(draft)).generate(PROMPT, params)
    assert result.tokens == plain
    assert result.stats.fallbacks == 1
    assert result.stats.accepted > 0
    last = max(event.round for event in result.events if event.origin != "plain")
    assert sum(event.round <= last for event in result.events) >= 20 - len(PROMPT) - 4, "the context was used"


def test_the_whole_of_the_draft_models_context_is_used() -> None:
    """Room for the context, the root and all drafts but the last, which is never fed: 5 + 1 + 3."""
    drafter = DraftModel(Relative(context_length=9)).start(TableTarget())
    drafter.observe(PROMPT, NO_OUTPUT, None)
    assert len(drafter.propose(4, Plan(num_nodes=4, depth=4), sampler_of())) == 5
    with pytest.raises(DrafterError, match="needs 10 tokens"):
        drafter.propose(4, Plan(num_nodes=5, depth=5), sampler_of())


@at_temperatures
@pytest.mark.parametrize("vocab_size", [4, 9], ids=["narrower", "wider"])
@pytest.mark.parametrize("acceptance", ["match", "reject"])
def test_a_draft_vocabulary_of_another_size_only_costs_guesses(
    acceptance: str, vocab_size: int, temperature: float
) -> None:
    target, params = TableTarget(), params_at(temperature)
    plain = Engine(target).generate(PROMPT, params).tokens
    draft = Padded(vocab_size)
    result = Engine(target, DraftModel(draft)).generate(
        PROMPT,
        params,
        speculative=SpeculativeOptions(acceptance=acceptance),  # type: ignore[arg-type]
    )
    assert result.stats.fallbacks == 0
    assert result.stats.accepted > 0
    if acceptance == "match" or temperature == 0:
        assert result.tokens == plain


class Padded(Relative):
    """Rows of another width than the target's 5: cut short, or padded with logits that would win if they counted."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def row(self, context: Sequence[int]) -> Tensor:
        wide = torch.full((self.width,), 50.0, dtype=torch.float64)
        row = super().row(context)[: self.width]
        wide[: len(row)] = row
        return wide


@at_temperatures
def test_a_model_drafting_for_itself_is_always_right(temperature: float) -> None:
    """The floor of acceptance: 100 %, at any temperature, as the noise is shared."""
    target = TableTarget()
    result = Engine(target, DraftModel(target)).generate(PROMPT, params_at(temperature))
    assert result.stats.accepted == result.stats.drafted > 0
    assert result.stats.fallbacks == 0
    assert result.stats.mean_acceptance_length > 4.5


def test_without_shared_noise_a_model_drafting_for_itself_is_not() -> None:
    """Negative control: at a temperature the likeliest token is not the drawn one."""
    target = TableTarget(scale=1.0)
    drafter = DraftModel(target, shared_noise=False)
    stats = Engine(target, drafter).generate(PROMPT, params_at(0.8)).stats
    assert 0 < stats.accepted < 0.8 * stats.drafted
    sharing = SpeculativeOptions(draft_sampling="shared")
    stats = Engine(target, drafter).generate(PROMPT, params_at(0.8), speculative=sharing).stats
    assert stats.accepted == stats.drafted > 0


@pytest.mark.parametrize("bad", [math.nan, -math.inf], ids=["NaN", "nothing possible"])
@pytest.mark.parametrize("acceptance", ["match", "reject"])
@at_temperatures
def test_a_row_that_says_nothing_drops_the_drafter(temperature: float, acceptance: str, bad: float) -> None:
    class Sick(Relative):
        def row(self, context: Sequence[int]) -> Tensor:
            return super().row(context) if len(context) < 16 else torch.full((5,), bad, dtype=torch.float64)

    target, params = TableTarget(), params_at(temperature)
    speculative = SpeculativeOptions(acceptance=acceptance)  # type: ignore[arg-type]
    with pytest.warns(RuntimeWarning, match="DraftModelDrafter failed.*SamplingError"):
        result = Engine(target, DraftModel(Sick())).generate(PROMPT, params, speculative=speculative)
    assert result.stats.fallbacks == 1
    assert result.stats.accepted > 0
    assert len(result.tokens) == 40
    if acceptance == "match" or temperature == 0:
        assert result.tokens == Engine(target).generate(PROMPT, params).tokens


def test_a_closed_drafter_holds_no_cache() -> None:
    drafter = DraftModel(Relative()).start(TableTarget())
    drafter.observe(PROMPT, NO_OUTPUT, None)
    drafter.propose(4, Plan(num_nodes=4, depth=4), sampler_of())
    drafter.close()
    assert drafter._cache is None
    drafter.close()


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_real_draft_model_that_lived_through_rounds_equals_a_fresh_one(family: str) -> None:
    """In fp64, through the production cache: drafts and their laws, after none, part and all were accepted."""
    window = {"sliding_window": 9} if family == "mistral" else {}
    draft = make_model(family, torch.float64, seed=2, prefill_chunk=7, **window)
    shared = DraftModel(draft)
    drafter = shared.start(draft)
    text = [5, 9, 5, 9, 11, 60, 5, 9, 11, 3, 3]
    drafter.observe(text[:-1], NO_OUTPUT, None)
    plan = Plan(num_nodes=4, depth=4)
    speculative = SpeculativeOptions(acceptance="reject")
    for turn in range(24):
        sampler = RequestSampler(params_at(0.8), text, seed=turn, vocab_size=97, speculative=speculative)
        tree = drafter.propose(text[-1], plan, sampler)
        fresh = shared.start(draft)
        fresh.observe(text[:-1], NO_OUTPUT, None)
        again = fresh.propose(text[-1], plan, sampler)
        assert torch.equal(tree.tokens, again.tokens)
        assert tree.q is not None
        assert again.q is not None
        torch.testing.assert_close(tree.q, again.q, atol=1e-10, rtol=0)
        accept = turn % 5
        fed = tree.tokens.tolist()[: accept + 1]
        drafter.observe(fed, NO_OUTPUT, range(accept + 1))
        text += [*fed[1:], (turn * 7) % 97]


def test_a_proposal_of_a_real_model_that_was_never_scored_leaves_nothing() -> None:
    shared = DraftModel(make_model("llama", torch.float64, seed=2))
    drafter = shared.start(shared.model)
    text = [5, 9, 5, 9, 11]
    drafter.observe(text, NO_OUTPUT, None)
    for root, count in ((60, 4), (3, 2), (60, 4)):
        plan = Plan(num_nodes=count, depth=count)
        sampler = RequestSampler(params_at(0.8), [*text, root], seed=1, vocab_size=97)
        fresh = shared.start(shared.model)
        fresh.observe(text, NO_OUTPUT, None)
        expected = fresh.propose(root, plan, sampler).tokens
        assert torch.equal(drafter.propose(root, plan, sampler).tokens, expected)


def test_a_foreign_branching_tree_of_real_models_is_learnt() -> None:
    """The committed path of somebody else's tree, after an own proposal that partly agrees with it."""
    draft = make_model("qwen2", torch.float64, seed=2)
    shared = DraftModel(draft)
    drafter = shared.start(draft)
    text = [5, 9, 5, 9, 11]
    drafter.observe(text[:-1], NO_OUTPUT, None)
    plan = Plan(num_nodes=4, depth=4)
    for turn in range(12):
        sampler = RequestSampler(params_at(0.8), text, seed=turn, vocab_size=97)
        own = drafter.propose(text[-1], plan, sampler).tokens.tolist()
        agreed = turn % 4
        tokens = torch.tensor([*own[: agreed + 1], 90, (own[agreed + 1] + 1) % 97, 17])
        parents = (*range(-1, agreed), agreed, agreed, agreed + 2)
        foreign = DraftTree(tokens=tokens, parents=parents)
        path = path_to(parents, agreed + 3)
        fed = [int(foreign.tokens[node]) for node in path]
        drafter.observe(fed, NO_OUTPUT, path)
        text += [*fed[1:], (turn * 5) % 97]
        fresh = shared.start(draft)
        fresh.observe(text[:-1], NO_OUTPUT, None)
        now = RequestSampler(params_at(0.8), text, seed=99, vocab_size=97)
        assert torch.equal(drafter.propose(text[-1], plan, now).tokens, fresh.propose(text[-1], plan, now).tokens)
