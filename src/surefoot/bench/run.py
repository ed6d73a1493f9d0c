"""Runs a measurement: every question, every repeat, all arms interleaved, each answer timed and compared with plain's.

Fair by construction: the arms of one comparison get the same ids, parameters and seed; which arm goes first rotates
with question, turn, temperature and repeat; every arm is warm before anything counts; nothing is kept from one answer
to the next. A later turn's prompt holds plain's answers, so all arms go on being asked the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from surefoot.bench.answers import Answer, Comparison, Skipped
from surefoot.bench.arms import Arm
from surefoot.bench.questions import Question
from surefoot.engine import Engine
from surefoot.errors import TokenizerError
from surefoot.options import SamplingParams
from surefoot.types import Tokens

WARMING_QUESTIONS = 3
WARMING_TOKENS = 16

Clock = Callable[[], float]
"""Seconds since some moment; ``time.perf_counter`` outside tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is run.

    Attributes:
        arms: plain first.
        sampling: one entry per temperature, each with a seed.
        repeats: how often every question is asked.
        raw: whether prompts are text to be continued, and not chat messages.
    """

    arms: tuple[Arm, ...]
    sampling: tuple[SamplingParams, ...]
    repeats: int
    raw: bool


def rotated(arms: Sequence[Arm], turn: int) -> list[Arm]:
    """The arms from another starting point each turn, so that none always follows the same one."""
    start = turn % len(arms)
    return [*arms[start:], *arms[:start]]


def count_answers(questions: Sequence[Question], settings: Settings) -> int:
    """How many answers :func:`measure` gives if nothing is skipped."""
    each = sum(len(question.turns) * sum(arm.answers(question) for arm in settings.arms) for question in questions)
    return each * len(settings.sampling) * settings.repeats


def measure(
    engine: Engine,
    questions: Sequence[Question],
    settings: Settings,
    *,
    clock: Clock = perf_counter,
    on_answer: Callable[[Answer], None] | None = None,
    on_skip: Callable[[Skipped], None] | None = None,
) -> Iterator[Comparison]:
    """Warms every arm, then asks everything and gives each comparison as it is complete.

    Args:
        engine: the pair.
        questions: what to ask.
        settings: how.
        clock: reads the time.
        on_answer: called after each answer that counts.
        on_skip: called for each turn that does not fit, once; the turns after it are not asked either.
    """
    asking = _Asking(engine, settings, clock)
    asking.warm(questions)
    told: set[tuple[str, int]] = set()
    for repeat in range(settings.repeats):
        for index, question in enumerate(questions):
            for heat, sampling in enumerate(settings.sampling):
                answers: list[str] = []
                for turn in range(len(question.turns)):
                    skipped = asking.skipped(question, answers, sampling)
                    if skipped is not None:
                        if on_skip is not None and (question.name, turn) not in told:
                            on_skip(skipped)
                        told.add((question.name, turn))
                        break
                    order = repeat + index + heat + turn
                    compared = asking.compare(question, answers, sampling, order, on_answer)
                    yield replace(compared, repeat=repeat)
                    answers.append(compared.plain.text)


class _Asking:
    """Asks one engine by one clock."""

    def __init__(self, engine: Engine, settings: Settings, clock: Clock) -> None:
        if engine.tokenizer is None:
            raise TokenizerError("the model has no tokenizer, and questions are text; expected a model that has one")
        self._engine = engine
        self._tokenizer = engine.tokenizer
        self._settings = settings
        self._clock = clock

    def warm(self, questions: Sequence[Question]) -> None:
        """A few short answers of every arm that count for nothing."""
        for arm in self._settings.arms:
            own = [question for question in questions if arm.answers(question)]
            for question in own[:WARMING_QUESTIONS]:
                for sampling in self._settings.sampling:
                    short = replace(sampling, max_tokens=min(sampling.max_tokens, WARMING_TOKENS))
                    if self.skipped(question, (), sampling) is None:
                        self._answer(arm, question, self._prompt(question, ()), short, 0)

    def skipped(self, question: Question, answers: Sequence[str], sampling: SamplingParams) -> Skipped | None:
        """Why the turn after ``answers`` is not asked, if so."""
        length = len(self._prompt(question, answers))
        room = self._engine.target.context_length - sampling.max_tokens
        if length <= room:
            return None
        return Skipped(
            question=question.name, kind=question.kind, turn=len(answers), prompt_tokens=length, room=max(room, 0)
        )

    def compare(
        self,
        question: Question,
        answers: Sequence[str],
        sampling: SamplingParams,
        order: int,
        on_answer: Callable[[Answer], None] | None,
    ) -> Comparison:
        """The answers of all arms to the turn after ``answers``."""
        prompt = self._prompt(question, answers)
        arms = [arm for arm in self._settings.arms if arm.answers(question)]
        given: dict[str, Answer] = {}
        for place, arm in enumerate(rotated(arms, order)):
            given[arm.name] = self._answer(arm, question, prompt, sampling, place)
            if on_answer is not None:
                on_answer(given[arm.name])
        return Comparison(
            question=question,
            turn=len(answers),
            temperature=sampling.temperature,
            repeat=0,
            prompt=prompt,
            answers=tuple(given[arm.name] for arm in arms),
        )

    def _prompt(self, question: Question, answers: Sequence[str]) -> Tokens:
        return question.prompt(answers, self._tokenizer, raw=self._settings.raw)

    def _answer(self, arm: Arm, question: Question, prompt: Tokens, sampling: SamplingParams, place: int) -> Answer:
        prediction = question.prediction if arm.predicts else None
        started = first = self._clock()
        stream = self._engine.stream(prompt, sampling, speculative=arm.speculative, prediction=prediction)
        with stream:
            for event in stream:
                if event.round == 0:
                    first = self._clock()
        ended = self._clock()
        result = stream.result
        return Answer(
            arm=arm.name,
            place=place,
            tokens=result.tokens,
            pieces=tuple((event.text, event.origin) for event in result.events),
            finish_reason=result.finish_reason,
            first_token_seconds=first - started,
            decode_seconds=ended - first,
            stats=result.stats,
        )
