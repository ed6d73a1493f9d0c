"""What is run, in which order, by which clock, and what is compared with what."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.bench.timed import FORWARD, PREFILL, QUESTIONS, TimedTarget, engine_of, run, settings_of
from tests.guesses import Guesser

import surefoot.bench.run as running
from surefoot.bench.answers import Answer, Comparison, Skipped
from surefoot.bench.arms import arms, offered
from surefoot.bench.questions import Question
from surefoot.bench.run import count_answers, measure
from surefoot.engine import Engine
from surefoot.errors import OptionError, TokenizerError
from surefoot.options import SpeculativeOptions
from surefoot.protocols import Target
from surefoot.types import Verdict


class Slow(Guesser):
    """A drafter whose first sequence takes very long, as a model does whose weights are touched for the first time."""

    method = "draft"

    def __init__(self, target: TimedTarget) -> None:
        super().__init__(lambda context: [[context[-1], context[-1]]])
        self.target = target
        self.cold = True

    def start(self, target: Target) -> Guesser:
        self.target.now += 1000.0 if self.cold else 0.0
        self.cold = False
        return super().start(target)


def test_every_arm_goes_first_equally_often_and_never_always_after_the_same_one() -> None:
    target = TimedTarget()
    engine = engine_of(target, Slow(target))
    order: list[str] = []
    repeats = 4
    settings = settings_of(engine, repeats=repeats, max_tokens=4)
    compared = run(target, settings, QUESTIONS[:1], engine=engine, on_answer=lambda answer: order.append(answer.arm))
    rounds = [tuple(order[i : i + 4]) for i in range(0, len(order), 4)]
    assert {frozenset(one) for one in rounds} == {frozenset({"plain", "lookup", "draft", "prediction"})}
    assert Counter(one[0] for one in rounds) == dict.fromkeys(rounds[0], repeats // 4)
    for arm in rounds[0]:
        assert {one.index(arm) for one in rounds} == {0, 1, 2, 3}, arm
    for one, given in zip(rounds, compared, strict=True):
        assert [answer.arm for answer in sorted(given.answers, key=lambda answer: answer.place)] == list(one)


def test_the_order_turns_between_questions_too() -> None:
    target = TimedTarget()
    order: list[str] = []
    compared = run(target, questions=QUESTIONS[1:], on_answer=lambda answer: order.append(answer.arm))
    assert order == ["plain", "lookup", "lookup", "plain"]
    assert [[answer.arm for answer in one.answers] for one in compared] == [["plain", "lookup"]] * 2, "plain's is first"


def test_rates_are_of_the_rounds_and_the_prefill_stands_apart() -> None:
    for one in run(TimedTarget()):
        for answer in one.answers:
            assert answer.first_token_seconds == PREFILL
            assert answer.decode_seconds == FORWARD * answer.stats.rounds
            assert answer.tokens_per_second == (len(answer.tokens) - 1) / (FORWARD * answer.stats.rounds)
        assert one.plain.tokens_per_second == 1 / FORWARD


def test_no_arm_pays_for_warming_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def slowest() -> float:
        target = TimedTarget()
        compared = run(target, engine=(engine := engine_of(target, Slow(target))), settings=settings_of(engine))
        return max(answer.first_token_seconds for one in compared for answer in one.answers)

    assert slowest() == PREFILL
    monkeypatch.setattr(running, "WARMING_QUESTIONS", 0)
    assert slowest() > 1000, "the control: without warming up somebody pays"


def test_warming_answers_are_short_and_few() -> None:
    target = TimedTarget()
    forwards = []
    settings = settings_of(engine_of(target), max_tokens=200)
    run(target, settings, QUESTIONS[1:2], on_answer=lambda _: forwards.append(target.num_forwards))
    assert forwards[0] < 2 * running.WARMING_TOKENS + 200


def test_tokens_are_the_accepted_ones_and_one_a_round_but_for_the_cut() -> None:
    answers = [answer for one in run(TimedTarget()) for answer in one.answers]
    assert any(answer.stats.accepted for answer in answers)
    for answer in answers:
        stats = answer.stats
        cut = answer.pieces[-1][1] == "draft"
        assert len(answer.tokens) == 1 + stats.accepted + stats.rounds - cut
        assert sum(stats.accepted_histogram) == stats.rounds
        assert sum(i * count for i, count in enumerate(stats.accepted_histogram)) == stats.accepted


def test_equal_answers_have_no_first_difference_at_any_temperature() -> None:
    target = TimedTarget()
    compared = run(target, settings_of(engine_of(target), temperatures=(0.0, 0.8), repeats=2))
    assert {one.temperature for one in compared} == {0.0, 0.8}
    assert all(answer.first_difference(one.plain) is None for one in compared for answer in one.answers)


def test_a_corrupted_row_is_found_where_it_comes_first() -> None:
    target = TimedTarget()
    target.corrupt = True
    found = 0
    for one in run(target):
        for answer in one.answers[1:]:
            index = answer.first_difference(one.plain)
            if index is None:
                assert answer.tokens == one.plain.tokens
                continue
            found += 1
            assert answer.tokens[:index] == one.plain.tokens[:index]
            assert answer.tokens[index : index + 1] != one.plain.tokens[index : index + 1]
    assert found


@pytest.mark.parametrize("lie", ["token", "end", "reason"])
def test_answers_that_differ_in_anything_differ(lie: str) -> None:
    plain = run(TimedTarget(), questions=QUESTIONS[2:])[0].plain
    changes = {
        "token": {"tokens": (*plain.tokens[:5], plain.tokens[5] + 1, *plain.tokens[6:])},
        "end": {"tokens": plain.tokens[:9]},
        "reason": {"finish_reason": "stop"},
    }
    other = Answer(**{**{name: getattr(plain, name) for name in Answer.__slots__}, **changes[lie]})
    assert other.first_difference(plain) == {"token": 5, "end": 9, "reason": len(plain.tokens)}[lie]
    assert plain.first_difference(plain) is None


def test_predictions_go_to_the_questions_that_have_one() -> None:
    target = TimedTarget()
    engine = engine_of(target)
    answer = engine.generate(QUESTIONS[2].turns[0], settings_of(engine).sampling[0]).text
    known = Question(name="known", kind="two", turns=QUESTIONS[2].turns, prediction=answer)
    compared = run(target, questions=(*QUESTIONS, known), engine=engine)
    arms_of = {one.question.name: [given.arm for given in one.answers] for one in compared}
    assert arms_of == {
        "a": ["plain", "lookup", "prediction"],
        "b": ["plain", "lookup"],
        "c": ["plain", "lookup"],
        "known": ["plain", "lookup", "prediction"],
    }
    lookup, predicted = (given.stats for given in compared[-1].answers[1:])
    assert predicted.mean_acceptance_length > max(4.0, lookup.mean_acceptance_length)


def test_later_turns_hold_plains_answers_whoever_is_asked() -> None:
    target = TimedTarget()
    target.corrupt = True  # so that the arms say different things
    asked = Question(name="talk", kind="two", turns=("The quick brown", "fox jumps", "over"))
    engine = engine_of(target)
    compared = run(target, settings_of(engine), [asked], engine=engine)
    assert [one.turn for one in compared] == [0, 1, 2]
    assert any(answer.text != one.plain.text for one in compared for answer in one.answers)
    said = [one.plain.text for one in compared]
    assert engine.tokenizer is not None
    text = f"The quick brown{said[0]}\nfox jumps{said[1]}\nover"
    assert compared[2].prompt == engine.tokenizer.encode(text)


def test_a_turn_that_does_not_fit_is_skipped_loudly_and_once() -> None:
    target = TimedTarget(context_length=120)
    engine = engine_of(target)
    long = Question(name="long", kind="two", turns=("fox " * 60,))
    growing = Question(name="growing", kind="two", turns=("The quick", "brown fox", "jumps"))
    skipped: list[Skipped] = []
    settings = settings_of(engine, repeats=2)
    compared = list(measure(engine, [long, growing], settings, clock=lambda: target.now, on_skip=skipped.append))
    assert [(one.question, one.turn) for one in skipped] == [("long", 0), ("growing", 2)]
    assert [(one.question.name, one.turn, one.repeat) for one in compared] == [
        *[("growing", 0, 0), ("growing", 1, 0)],
        *[("growing", 0, 1), ("growing", 1, 1)],
    ]
    assert all(len(one.prompt) + 40 <= 120 for one in compared)
    assert "skipped two/long, turn 1" in str(skipped[0])
    assert "leaves room for 80" in str(skipped[0])


def test_the_count_of_answers_is_known_before() -> None:
    target = TimedTarget()
    engine = engine_of(target)
    settings = settings_of(engine, temperatures=(0.0, 0.8), repeats=3, max_tokens=3)
    talk = Question(name="talk", kind="two", turns=("The quick brown", "fox jumps"))
    questions = (*QUESTIONS, talk)
    given: list[Answer] = []
    run(target, settings, questions, engine=engine, on_answer=given.append)
    assert len(given) == count_answers(questions, settings) == 3 * 2 * (3 + 2 + 2 + 2 * 2)


def test_an_interrupted_measurement_keeps_whole_comparisons() -> None:
    target = TimedTarget()
    answers: list[Answer] = []

    def stop(answer: Answer) -> None:
        answers.append(answer)
        if len(answers) == 6:
            raise KeyboardInterrupt

    engine = engine_of(target)
    measured = measure(engine, QUESTIONS, settings_of(engine), clock=lambda: target.now, on_answer=stop)
    kept: list[Comparison] = []
    with pytest.raises(KeyboardInterrupt):
        kept.extend(measured)
    assert [len(one.answers) for one in kept] == [3, 2]


def test_arms_are_what_the_pair_offers() -> None:
    target = TimedTarget()
    plain, both = engine_of(target), engine_of(target, Slow(target))
    speculative = SpeculativeOptions(num_draft=3)
    assert offered(plain) == ("lookup", "prediction")
    assert [arm.name for arm in arms(both, (), speculative)] == ["plain", "lookup", "draft", "prediction"]
    assert [arm.name for arm in arms(both, ("draft",), speculative)] == ["plain", "draft"]
    assert [arm.speculative.num_draft for arm in arms(both, (), speculative)] == [0, 3, 3, 3]
    with pytest.raises(OptionError, match="'draft'; expected one of lookup, prediction; a draft model offers draft"):
        arms(plain, ("draft",), speculative)


def test_a_model_without_a_tokenizer_is_refused() -> None:
    target = TimedTarget()
    engine = engine_of(target)
    settings = settings_of(engine)
    with pytest.raises(TokenizerError, match="questions are text"):
        list(measure(Engine(target), QUESTIONS, settings))


def test_a_cut_verdict_is_what_the_law_above_calls_a_cut() -> None:
    whole = Verdict(path=(0, 1, 2), fed=(5, 6, 7), next_token=8, next_origin="bonus", num_drafted=2)
    for count in (1, 2):
        cut = whole.cut(count)
        assert (len(cut.emitted), cut.origins[-1]) == (cut.num_accepted, "draft")
    assert len(whole.emitted) == whole.num_accepted + 1
