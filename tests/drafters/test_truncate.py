"""A drafter taken back to an earlier length proposes what one proposes that never saw more."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories import make_model
from tests.guesses import Predicted
from tests.tables import TableTarget

from surefoot import SamplingParams, SpeculativeOptions
from surefoot.drafters.draft_model import DraftModel
from surefoot.drafters.lookup import Lookup
from surefoot.drafters.none import NoDrafts
from surefoot.drafters.store import AnswerStore
from surefoot.protocols import Drafter, DrafterModel
from surefoot.sampling import RequestSampler
from surefoot.types import Plan, TargetOutput

NOTHING = TargetOutput(logits=None)
VOCAB_SIZE = 5
PREDICTION = (1, 2, 3, 4, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 1, 3, 0, 2, 4)
PLAN = Plan(num_nodes=4, depth=4)


def stored() -> AnswerStore:
    """Long answers, so that matches of any length are found."""
    store, choose = AnswerStore(), random.Random(5)
    for _ in range(4):
        store.add([choose.randrange(VOCAB_SIZE) for _ in range(800)])
    return store


MODELS: dict[str, Callable[[], DrafterModel]] = {
    "none": NoDrafts,
    "lookup": lambda: Lookup(min_match=1),
    "draft": lambda: DraftModel(TableTarget(context_length=10_000, order=6)),
    "lookup with a store": lambda: Lookup(min_match=1, store=stored()),
    "predicted": lambda: Predicted(PREDICTION, Lookup(min_match=1)),
}
Change = Callable[[Drafter, int], None]


def truncate(drafter: Drafter, length: int) -> None:
    drafter.truncate(length)


def proposal(drafter: Drafter, history: list[int]) -> list[int]:
    """What it drafts after ``history``, all but the last of which it has observed."""
    params = SamplingParams(temperature=0.8, seed=3)
    sampler = RequestSampler(params, history, seed=3, vocab_size=VOCAB_SIZE, speculative=SpeculativeOptions())
    tokens: list[int] = drafter.propose(history[-1], PLAN, sampler).tokens.tolist()
    return tokens


class Life:
    """A drafter and the tokens it has observed as chunks of a prompt and as rounds, so that they can be told again."""

    def __init__(self, model: DrafterModel) -> None:
        self.model = model
        self.drafter = model.start(TableTarget())
        self.told: list[tuple[int, bool]] = []

    @property
    def tokens(self) -> list[int]:
        return [token for token, _ in self.told]

    def tell(self, tokens: list[int], is_round: bool) -> None:
        self.drafter.observe(tokens, NOTHING, range(len(tokens)) if is_round else None)
        self.told += [(token, is_round) for token in tokens]

    def round(self, root: int, num_accepted: int) -> None:
        """Proposes, and is told that the first ``num_accepted`` drafts were right."""
        drafted = proposal(self.drafter, [*self.tokens, root])
        self.tell(drafted[: num_accepted + 1], is_round=True)

    def cut(self, length: int, change: Change) -> None:
        change(self.drafter, length)
        del self.told[length:]

    def retold(self) -> Drafter:
        """A fresh drafter that observed the same tokens one by one."""
        fresh = self.model.start(TableTarget())
        for token, is_round in self.told:
            fresh.observe((token,), NOTHING, (0,) if is_round else None)
        return fresh

    def check(self, root: int) -> None:
        history = [*self.tokens, root]
        assert proposal(self.drafter, history) == proposal(self.retold(), history)


def live(model: DrafterModel, seed: int, change: Change = truncate) -> None:
    """Prompts, rounds, proposals that nothing came of, and cuts, in random order."""
    choose = random.Random(seed)
    life = Life(model)
    life.tell([choose.randrange(VOCAB_SIZE) for _ in range(choose.randrange(1, 30))], is_round=False)
    for _ in range(12):
        root = choose.randrange(VOCAB_SIZE)
        match choose.randrange(4):
            case 0:
                life.cut(choose.randrange(len(life.told) + 1), change)
            case 1:
                proposal(life.drafter, [*life.tokens, root])
            case 2:
                life.tell([choose.randrange(VOCAB_SIZE) for _ in range(choose.randrange(25))], is_round=False)
            case _:
                life.round(root, choose.randrange(PLAN.num_nodes + 1))
        life.check(choose.randrange(VOCAB_SIZE))


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_proposals_after_a_cut_are_those_of_a_fresh_drafter(name: str, seed: int) -> None:
    live(MODELS[name](), seed)


def forget_nothing(drafter: Drafter, length: int) -> None:
    pass


def forget_one_too_few(drafter: Drafter, length: int) -> None:
    drafter.truncate(length)
    drafter.observe((0,), NOTHING, None)


@pytest.mark.parametrize("change", [forget_nothing, forget_one_too_few])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "none"])
def test_the_comparison_sees_a_drafter_that_forgets_too_little(name: str, change: Change) -> None:
    """Negative control."""

    def live_often() -> None:
        for seed in range(20):
            live(MODELS[name](), seed, change)

    with pytest.raises(AssertionError):
        live_often()


@pytest.mark.parametrize("name", [name for name in MODELS if name != "none"])
def test_a_cut_to_more_than_was_observed_is_refused(name: str) -> None:
    drafter = MODELS[name]().start(TableTarget())
    drafter.observe((1, 2, 3), NOTHING, None)
    for length in (-1, 4):
        with pytest.raises(AssertionError):
            drafter.truncate(length)
    drafter.truncate(3)


def test_a_real_draft_model_taken_back_equals_a_fresh_one() -> None:
    """Through the production cache, with a round open at the cut."""
    shared = DraftModel(make_model("llama", seed=2, vocab_size=VOCAB_SIZE))
    life = Life(shared)
    life.tell([1, 2, 3, 4, 0, 1, 2, 2, 4] * 3, is_round=False)
    for length in (27, 20, 21, 3, 0):
        life.round(3, 2)
        proposal(life.drafter, [*life.tokens, 4])
        life.cut(length, truncate)
        life.check(1)
        life.tell([4, 1, 4], is_round=False)
        life.check(0)


def test_a_draft_model_keeps_what_it_computed_before_the_cut() -> None:
    life = Life(DraftModel(TableTarget(context_length=10_000)))
    life.tell([1, 2, 3, 4] * 50, is_round=False)
    life.round(1, 0)
    life.cut(190, truncate)
    cache = life.drafter._cache  # type: ignore[attr-defined]
    assert cache.length == 190


def test_each_drafter_says_its_method() -> None:
    assert {make().method for make in MODELS.values()} == {"none", "lookup", "draft", "predicted"}
