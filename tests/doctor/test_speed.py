"""The predicted speedup against the very thing it predicts, on a machine whose every second is made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.guesses import Guesser
from tests.tables import TableTarget

from surefoot.control.cost import Clock
from surefoot.doctor.speed import Prediction, Trial, predict
from surefoot.engine import Engine
from surefoot.options import SamplingParams, SpeculativeOptions
from surefoot.protocols import Cache, Sampler, Stops
from surefoot.stops import RequestStops
from surefoot.types import Capture, DraftTree, Plan, TargetOutput, Verdict

PROMPTS = ((1, 2, 3), (4, 0, 2, 2, 1), (3, 3))
PARAMS = SamplingParams(max_tokens=20)
NUM_DRAFT = 3
TRIAL = Trial(
    prompts=PROMPTS,
    params=PARAMS,
    speculative=SpeculativeOptions(num_draft=NUM_DRAFT),
    repeats=3,
    budget=float("inf"),
)


class MadeUpClock:
    """Goes on only when something works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Working(TableTarget):
    """A target whose forwards take 2 s, and 0.25 s more for each row after the first."""

    def __init__(self, clock: MadeUpClock) -> None:
        super().__init__()
        self.clock = clock

    def score(self, rounds: Sequence[tuple[DraftTree, Cache]], capture: Capture) -> list[TargetOutput]:
        self.clock.now += 2.0 + 0.25 * sum(len(tree) - 1 for tree, _ in rounds)
        return super().score(rounds, capture)


class Guessing(Guesser):
    """A drafter that takes 0.125 s, and 0.25 s a token, and is right, wrong or silent by the length of the text."""

    def __init__(self, clock: MadeUpClock, target: TableTarget, *, silent: bool) -> None:
        super().__init__(self.answer)
        self.clock, self.target, self.silent = clock, target, silent

    def answer(self, context: Sequence[int]) -> list[list[int]]:
        if self.silent and len(context) % 4 == 0:
            return []
        guessed = list(context)
        for _ in range(NUM_DRAFT):
            right = int(self.target.row(guessed).argmax())
            guessed.append((right + 1) % 5 if len(guessed) % 5 == 0 else right)
        return [guessed[len(context) :]]

    def propose(self, root: int, plan: Plan, sampler: Sampler) -> DraftTree:
        self.clock.now += 0.125 + 0.25 * plan.num_nodes
        return super().propose(root, plan, sampler)


def measured(engine: Engine, clock: Clock) -> float:
    """Times plain: all prompts, from each first token to the end."""
    seconds = []
    for num_draft in (0, NUM_DRAFT):
        spent = 0.0
        for prompt in PROMPTS:
            with engine.stream(prompt, PARAMS, speculative=SpeculativeOptions(num_draft=num_draft)) as stream:
                next(stream)
                started = clock()
                for _ in stream:
                    pass
                spent += clock() - started
        seconds.append(spent)
    return seconds[0] / seconds[1]


def both(monkeypatch: pytest.MonkeyPatch, *, silent: bool = False, rest: float = 0.0) -> tuple[Prediction, float]:
    """The prediction and the measurement of one machine, whose rounds take ``rest`` beside forwards and drafts."""
    clock = MadeUpClock()
    target = Working(clock)
    engine = Engine(target, Guessing(clock, target, silent=silent))
    monkeypatch.setattr("surefoot.decode.perf_counter", clock)
    take = RequestStops.take

    def slow(self: Stops, verdict: Verdict, *others: object) -> object:
        clock.now += rest
        return take(self, verdict, *others)

    monkeypatch.setattr(RequestStops, "take", slow)
    prediction = predict(engine, TRIAL, clock=clock)
    assert prediction is not None
    return prediction, measured(engine, clock)


def test_where_nothing_is_left_to_chance_the_prediction_is_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    prediction, actual = both(monkeypatch)
    assert prediction.forecast.speedup == pytest.approx(actual)
    assert prediction.forecast.speedup > 1.1
    assert prediction.acceptance.tokens_per_round > 2
    assert prediction.fallbacks == 0
    assert [round(point.seconds, 6) for point in prediction.costs.target.points] == [2.0, 2.25, 2.5, 2.75]


def test_a_drafter_that_is_often_silent_pays_for_plain_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    prediction, actual = both(monkeypatch, silent=True)
    shares = prediction.acceptance.shares
    assert 0.1 < shares[0] < 0.9
    # What a drafter that says nothing took to say it is not told apart from what it takes to draft.
    assert prediction.forecast.speedup == pytest.approx(actual, rel=0.15)
    full = prediction.costs.target.at(NUM_DRAFT + 1)
    assert prediction.forecast.score < full - 0.1, "negative control: not every round is a full one"


def test_what_rounds_cost_beside_forwards_and_drafts_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    prediction, actual = both(monkeypatch, rest=1.0)
    assert prediction.costs.overhead == pytest.approx(1.0)
    assert prediction.costs.plain_overhead == pytest.approx(1.0)
    assert prediction.forecast.speedup == pytest.approx(actual)
    without, _ = both(monkeypatch)
    assert prediction.forecast.speedup > 1.05 * without.forecast.speedup, "negative control: it made a difference"


def test_no_further_prompt_is_begun_when_the_budget_is_spent() -> None:
    clock = MadeUpClock()
    target = Working(clock)
    engine = Engine(target, Guessing(clock, target, silent=False))
    counts = []
    for budget in (0.0, 1e9):
        prediction = predict(engine, replace(TRIAL, budget=budget), clock=clock)
        assert prediction is not None
        counts.append(prediction.num_prompts)
    assert counts == [1, len(PROMPTS)]


def test_answers_of_one_token_predict_nothing() -> None:
    clock = MadeUpClock()
    target = Working(clock)
    engine = Engine(target, Guessing(clock, target, silent=False))
    assert predict(engine, replace(TRIAL, params=SamplingParams(max_tokens=1)), clock=clock) is None
