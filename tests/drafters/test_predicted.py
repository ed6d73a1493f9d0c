"""A predicted answer costs no token of the text, whatever it says, and saves rounds where it is right."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import ceil

import pytest
import torch
from tests.factories import make_model
from tests.guesses import Guesser, Predicted
from tests.tables import TableTarget
from tests.test_speculation import relative_of

from surefoot import Engine, SamplingParams, SpeculativeOptions
from surefoot.drafters.draft_model import DraftModel
from surefoot.drafters.lookup import Lookup
from surefoot.drafters.none import NoDraft, NoDrafts
from surefoot.drafters.predicted import PredictedDrafter
from surefoot.errors import DrafterError
from surefoot.protocols import DrafterModel, Sampler
from surefoot.request import Result
from surefoot.types import Capture, DraftTree, Plan, TargetOutput, Tokens

PROMPT = (1, 2, 3, 1, 2)
NUM_TOKENS = 50
STRANGE = 30
"""A token no answer below holds."""
NOTHING = TargetOutput(logits=None)
INNER = ("none", "lookup", "draft")
at_temperatures = pytest.mark.parametrize("temperature", [0.0, 0.8])


class Target(TableTarget):
    """29 tokens that occur, so that some runs come again, and one that never does."""

    def __init__(self, seed: int = 0, context_length: int = 200) -> None:
        super().__init__(vocab_size=STRANGE + 1, seed=seed, context_length=context_length)

    def row(self, context: Sequence[int]) -> torch.Tensor:
        row = super().row(context)
        row[STRANGE] = -torch.inf
        return row


def inner_of(name: str) -> DrafterModel:
    return {"none": NoDrafts(), "lookup": Lookup(), "draft": DraftModel(Half())}[name]


class Half(Target):
    """The target's rows after contexts of even length, another's after odd ones."""

    def row(self, context: Sequence[int]) -> torch.Tensor:
        return super().row(context) if len(context) % 4 else Target(seed=1).row(context)


def params_at(temperature: float, num_tokens: int = NUM_TOKENS) -> SamplingParams:
    return SamplingParams(temperature=temperature, max_tokens=num_tokens, seed=7)


@cache
def plain(temperature: float, num_tokens: int = NUM_TOKENS) -> Tokens:
    return Engine(Target()).generate(PROMPT, params_at(temperature, num_tokens)).tokens


def predictions(answer: Tokens) -> dict[str, Tokens]:
    other = Engine(Target(seed=5)).generate(PROMPT, params_at(0.8)).tokens
    every_fifth = tuple(STRANGE if i % 5 == 4 else token for i, token in enumerate(answer))
    return {
        "right": answer,
        "longer": (*answer, *other),
        "shorter": answer[: NUM_TOKENS // 2],
        "every fifth wrong": every_fifth,
        "starting late": answer[7:],
        "after a preface": (*other[:5], *answer),
        "in another order": (*answer[25:], *answer[:25]),
        "another answer": other,
        "nothing that occurs": (STRANGE,) * 20,
        "empty": (),
    }


KINDS = tuple(predictions(()))
HELPFUL = KINDS[:7]


def answered(prediction: Tokens, inner: DrafterModel, params: SamplingParams, **options: object) -> Result:
    speculative = SpeculativeOptions(**options)  # type: ignore[arg-type]
    return Engine(Target(), Predicted(prediction, inner)).generate(PROMPT, params, speculative=speculative)


@at_temperatures
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inner", INNER)
def test_the_answer_is_the_plain_one_whatever_was_predicted(inner: str, kind: str, temperature: float) -> None:
    prediction = predictions(plain(temperature))[kind]
    result = answered(prediction, inner_of(inner), params_at(temperature))
    assert result.tokens == plain(temperature)
    assert result.stats.fallbacks == 0
    if kind in HELPFUL:
        assert result.stats.accepted >= 10
    if inner == "draft":
        assert result.stats.accepted > 0


@at_temperatures
def test_the_answer_of_a_real_model_is_the_plain_one(temperature: float) -> None:
    target, params = make_model("qwen3", torch.float64, seed=3), params_at(temperature)
    answer = Engine(target).generate(PROMPT, params).tokens
    edited = tuple((token + i // 9 % 2) % 97 for i, token in enumerate(answer))
    inner = DraftModel(relative_of("qwen3", torch.float64))
    result = Engine(target, Predicted(edited, inner)).generate(PROMPT, params)
    assert result.tokens == answer
    assert result.stats.fallbacks == 0
    assert result.stats.accepted >= 15


@at_temperatures
@pytest.mark.parametrize("num_draft", [1, 4, 8])
def test_a_right_prediction_is_accepted_to_its_last_token(num_draft: int, temperature: float) -> None:
    result = answered(plain(temperature), NoDrafts(), params_at(temperature), num_draft=num_draft)
    assert result.stats.accepted == result.stats.drafted
    assert result.stats.rounds == ceil((NUM_TOKENS - 1) / (num_draft + 1))


EDITS = {
    "three tokens replaced": lambda answer: (*answer[:60], STRANGE, STRANGE, STRANGE, *answer[63:]),
    "three tokens inserted": lambda answer: (*answer[:60], *answer[63:]),
    "three tokens deleted": lambda answer: (*answer[:60], STRANGE, STRANGE, STRANGE, *answer[60:]),
    "a preface": lambda answer: answer[3:],
    "no beginning": lambda answer: (STRANGE, STRANGE, STRANGE, *answer),
}


@at_temperatures
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_costs_a_few_rounds_and_then_the_prediction_is_followed_again(edit: str, temperature: float) -> None:
    """The floor: three tokens written, two to find the place again, one for the round that was cut short."""
    length = 120
    answer = plain(temperature, length)
    result = answered(EDITS[edit](answer), NoDrafts(), params_at(temperature, length), num_draft=8)
    assert result.tokens == answer
    assert result.stats.rounds <= ceil((length - 1) / 9) + 6
    assert result.stats.accepted >= 0.75 * result.stats.drafted


class NeverAgain(PredictedDrafter):
    """Follows the prediction until it fails once, as an index that is moved by one place a token does."""

    def __init__(self, prediction: Tokens) -> None:
        super().__init__(prediction, NoDraft())
        self.prediction = prediction

    def propose(self, root: int, plan: Plan, sampler: Sampler) -> DraftTree:
        done = [*self._answer, root]
        if tuple(done) != self.prediction[: len(done)]:
            return self._inner.propose(root, plan, sampler)
        return super().propose(root, plan, sampler)


def test_the_floor_sees_a_drafter_that_does_not_find_its_place_again() -> None:
    """Negative control."""
    length = 120
    answer = plain(0.0, length)
    prediction = EDITS["three tokens replaced"](answer)

    class Model(NoDrafts):
        def start(self, target: object) -> NeverAgain:  # type: ignore[override]
            return NeverAgain(prediction)

    speculative = SpeculativeOptions(num_draft=8)
    result = Engine(Target(), Model()).generate(PROMPT, params_at(0.0, length), speculative=speculative)
    assert result.tokens == answer
    assert result.stats.rounds > ceil((length - 1) / 9) + 6


def test_where_the_prediction_does_not_help_the_other_drafter_drafts() -> None:
    answer = plain(0.0)
    alone = Engine(Target(), inner_of("draft")).generate(PROMPT, params_at(0.0)).stats
    with_nothing = answered((STRANGE,) * 20, inner_of("draft"), params_at(0.0)).stats
    merged = answered((*answer[:20], *(STRANGE,) * 10), inner_of("draft"), params_at(0.0)).stats
    assert with_nothing.accepted == pytest.approx(alone.accepted, abs=3)
    assert merged.rounds < alone.rounds


@at_temperatures
def test_the_other_drafter_sees_every_round_whoever_drafted(temperature: float) -> None:
    answer = plain(temperature)
    inner = Guesser(lambda context: [[STRANGE]])
    result = answered(predictions(answer)["every fifth wrong"], inner, params_at(temperature))
    assert result.tokens == answer
    assert inner.context == [*PROMPT, *answer[:-1]]
    assert len(inner.contexts_at_propose) == result.stats.rounds
    assert inner.closed == 1


def test_a_draft_model_beside_a_prediction_drafts_what_it_would_alone() -> None:
    """Negative control included: where it did not see what the prediction drafted, it would draft something else."""
    answer = plain(0.0)
    drafter = PredictedDrafter(answer[:20], DraftModel(Half()).start(Target()))
    drafter.observe(PROMPT, NOTHING, None)
    drafter.observe(answer[:25], NOTHING, range(25))
    alone, deaf = (DraftModel(Half()).start(Target()) for _ in range(2))
    alone.observe((*PROMPT, *answer[:25]), NOTHING, None)
    deaf.observe((*PROMPT, *answer[20:25]), NOTHING, None)
    plan, sampler = Plan(num_nodes=4, depth=4), Argmax()
    drafts = [each.propose(answer[25], plan, sampler).tokens.tolist() for each in (drafter, alone, deaf)]  # type: ignore[arg-type]
    assert drafts[0] == drafts[1] != drafts[2]


class Argmax:
    def draft(self, logits: torch.Tensor, prefix: Sequence[int], *, shared_noise: bool) -> tuple[int, None]:
        return int(logits.argmax()), None


def test_what_the_other_drafter_wants_to_see_is_shown_to_it() -> None:
    class Seeing(Guesser):
        capture = Capture(final=True)

    inner = Seeing(lambda context: [])
    drafter = Predicted((1, 2), inner).start(Target())
    assert drafter.capture == Capture(final=True)
    drafter.close()
    assert inner.closed == 1


@pytest.mark.parametrize("fails_in", ["propose", "observe"])
def test_a_failure_of_the_other_drafter_costs_the_drafts_and_no_token(fails_in: str) -> None:
    class Failing(Guesser):
        def observe(self, tokens: Sequence[int], out: TargetOutput, path: Sequence[int] | None) -> None:
            super().observe(tokens, out, path)
            if fails_in == "observe" and len(self.context) > 20:
                raise DrafterError("the other one is ill")

        def propose(self, root: int, plan: Plan, sampler: Sampler) -> DraftTree:
            if fails_in == "propose" and len(self.context) > 20:
                raise DrafterError("the other one is ill")
            return super().propose(root, plan, sampler)

    with pytest.warns(RuntimeWarning, match="DrafterError: the other one is ill"):
        result = answered(plain(0.8), Failing(lambda context: []), params_at(0.8))
    assert result.tokens == plain(0.8)
    assert result.stats.fallbacks == 1
    assert result.stats.accepted > 0


@pytest.mark.parametrize("count", [0, 1, 3, 8])
def test_it_drafts_no_more_than_the_plan_allows_and_ends_with_the_prediction(count: int) -> None:
    for length in range(7):
        drafter = PredictedDrafter(tuple(range(1, 8)), NoDraft())
        drafter.observe(range(1, length + 1), NOTHING, range(length))
        tree = drafter.propose(length + 1, Plan(num_nodes=count, depth=count), Argmax())  # type: ignore[arg-type]
        assert tree.tokens.tolist() == list(range(length + 1, min(length + 1 + count, 7) + 1))
        assert tree.q is None


def test_the_prompt_is_no_part_of_the_answer() -> None:
    """A prompt that quotes the prediction does not move the place: the answer still begins at its start."""
    drafter = PredictedDrafter((5, 6, 7, 8), NoDraft())
    drafter.observe((1, 5, 6, 7), NOTHING, None)
    assert drafter.propose(5, Plan(num_nodes=2, depth=2), Argmax()).tokens.tolist() == [5, 6, 7]  # type: ignore[arg-type]


def test_a_drafter_that_has_observed_a_conversation_can_be_wrapped_and_taken_back() -> None:
    inner = Guesser(lambda context: [])
    inner.observe(range(10), NOTHING, None)
    drafter = PredictedDrafter((5, 6, 7, 8), inner, num_observed=10)
    drafter.observe((1, 2), NOTHING, None)
    drafter.observe((5, 6), NOTHING, (0, 1))
    for length, drafts in ((14, [8]), (13, [7, 8]), (12, [7, 8]), (4, [7, 8])):
        drafter.truncate(length)
        assert len(inner.context) == length
        root = 7 if length == 14 else 6
        tokens = drafter.propose(root, Plan(num_nodes=2, depth=2), Argmax()).tokens.tolist()  # type: ignore[arg-type]
        assert tokens[1:] == (drafts if length > 12 else [5, 6])
