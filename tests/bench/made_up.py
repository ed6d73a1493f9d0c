"""Measurements with made-up numbers."""

from __future__ import annotations

from collections.abc import Sequence

from surefoot.bench.answers import Answer, Comparison, Skipped
from surefoot.bench.measurement import Measurement, Setup
from surefoot.bench.questions import Question
from surefoot.control.cost import CostCurve, CostPoint
from surefoot.provenance import Provenance
from surefoot.stats import Seconds, Stats
from surefoot.types import Origin, Tokens

NUM_DRAFT = 4


def stats_of(accepted: Sequence[int], seconds: float) -> Stats:
    """The account of rounds of four drafts with so many accepted, a tenth of a second of each second in ``draft``."""
    histogram = [list(accepted).count(i) for i in range(max(accepted, default=0) + 1)] if accepted else []
    return Stats(
        rounds=len(accepted),
        drafted=NUM_DRAFT * len(accepted),
        accepted=sum(accepted),
        drafted_by_position=(len(accepted),) * NUM_DRAFT,
        accepted_by_position=tuple(sum(count > place for count in accepted) for place in range(NUM_DRAFT)),
        accepted_histogram=tuple(histogram),
        fallbacks=0,
        strict=True,
        seconds=Seconds(draft=0.1 * seconds, score=0.9 * seconds),
    )


def answer_of(
    arm: str,
    seconds: float,
    *,
    accepted: Sequence[int] = (0, 1, 4),
    tokens: Tokens = tuple(range(11)),
    text: str = "text",
    first: float = 0.5,
) -> Answer:
    origins: list[Origin] = ["plain", "draft", "correction", "bonus"]
    return Answer(
        arm=arm,
        place=0,
        tokens=tokens,
        pieces=tuple((text, origin) for origin in origins),
        finish_reason="length",
        first_token_seconds=first,
        decode_seconds=seconds,
        stats=stats_of(() if len(tokens) < 2 else accepted, seconds),
    )


def comparison_of(
    *answers: Answer, kind: str = "edit", name: str = "a", temperature: float = 0.0, turn: str = "change this"
) -> Comparison:
    return Comparison(
        question=Question(name=name, kind=kind, turns=(turn,)),
        turn=0,
        temperature=temperature,
        repeat=0,
        prompt=(1, 2, 3),
        answers=answers,
    )


def measurement_of(
    comparisons: Sequence[Comparison], *, strict: bool = True, model: str = "tiny", complete: bool = True
) -> Measurement:
    return Measurement(
        setup=Setup(
            model=model,
            drafter="tiny-draft",
            questions="built-in",
            arms=tuple(dict.fromkeys(answer.arm for one in comparisons for answer in one.answers)),
            num_draft=NUM_DRAFT,
            acceptance="match",
            temperatures=tuple(dict.fromkeys(one.temperature for one in comparisons)),
            seed=7,
            max_tokens=11,
            repeats=3,
            chat=False,
            dtype="float32",
            exact="require" if strict else "auto",
            strict=strict,
        ),
        comparisons=tuple(comparisons),
        skipped=(Skipped(question="z", kind="edit", turn=0, prompt_tokens=999, room=10),),
        complete=complete,
        cost=CostCurve(
            context=9,
            points=tuple(CostPoint(rows=n, seconds=1 + n / 4, low=1 + n / 4, high=2 + n / 4) for n in (1, 2, 5)),
        )
        if complete
        else None,
        notes=("a note",),
        provenance=Provenance(
            command=("surefoot", "bench", "tiny"),
            surefoot="1",
            python="3",
            packages={"torch": "2"},
            processor="a processor",
            num_cores=2,
            num_threads=1,
            device="cpu",
            finished="2026-01-01T00:00:00+00:00",
        ),
    )
