"""How well ``surefoot doctor`` predicts what ``surefoot bench`` measures: in turn, in one run, on the same prompts.

Each turn predicts the speedup as the doctor does, then asks the same questions with the runner of ``bench``; the turns'
medians are compared. Two statistics: all texts together (sums of seconds), and the median over texts, which ``bench``
prints. Both are times plain of greedy answers, from the first token to the last.

    python -m benchmarks.doctor
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median

import torch

import surefoot
from benchmarks.common import spread, write_result
from surefoot.bench.answers import Comparison
from surefoot.bench.arms import arms
from surefoot.bench.questions import Question
from surefoot.bench.results import summarise
from surefoot.bench.run import Settings, measure
from surefoot.doctor.speed import Prediction, Trial, predict
from surefoot.engine import Engine
from surefoot.options import DTypeName, SamplingParams, SpeculativeOptions
from surefoot.prompts import evaluation_set

TOLERANCE = 0.15


def questions(limit: int) -> list[Question]:
    """The first prompts of pebble's evaluation set."""
    texts = [text for _, text in evaluation_set()[:limit]]
    return [Question(name=str(number), kind="evaluation", turns=(text,)) for number, text in enumerate(texts)]


def together(comparisons: Sequence[Comparison]) -> float:
    """Times plain of all texts together: plain's seconds over the other arm's."""
    plain, other = ([one.answers[place].decode_seconds for one in comparisons] for place in (0, 1))
    return sum(plain) / sum(other)


def by_median(comparisons: Sequence[Comparison]) -> float:
    """Times plain as ``bench`` prints it."""
    _, cell = summarise(comparisons)
    assert cell.times_plain is not None
    return cell.times_plain.median


def compare(engine: Engine, method: str, trial: Trial, asked: list[Question], turns: int) -> dict[str, object]:
    """Predicts and measures in turn; which comes first alternates."""
    settings = Settings(arms=arms(engine, [method], trial.speculative), sampling=(trial.params,), repeats=1, raw=True)
    predictions: list[Prediction] = []
    measured: list[list[Comparison]] = []
    for turn in range(turns):
        for predicting in (turn % 2 == 0, turn % 2 == 1):
            if predicting:
                prediction = predict(engine, trial)
                assert prediction is not None
                predictions.append(prediction)
            else:
                measured.append(list(measure(engine, asked, settings)))
    found = {
        "together": difference([one.forecast.speedup for one in predictions], [together(one) for one in measured]),
        "median over texts": difference(
            [median(one.by_text) for one in predictions], [by_median(one) for one in measured]
        ),
    }
    return {
        **found,
        "within_tolerance": all(abs(float(str(one["error"]))) <= TOLERANCE for one in found.values()),
        "same_tokens": all(one.answers[1].tokens == one.plain.tokens for turn in measured for one in turn),
        "fallbacks": sum(prediction.fallbacks for prediction in predictions),
        "predictions": [prediction.as_json() for prediction in predictions],
    }


def difference(predicted: Sequence[float], actual: Sequence[float]) -> dict[str, object]:
    """Both in a few numbers, and by how much the medians differ."""
    error = median(predicted) / median(actual) - 1
    return {"predicted": spread(predicted), "measured": spread(actual), "error": error}


def main() -> None:
    """Compares for lookup and the draft model, in one run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=12, help="prompts of pebble's evaluation set")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--num-draft", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--target", default="pebble", help="a bundled name or a directory")
    parser.add_argument("--draft-model", default="pebble-draft", help="a bundled name or a directory")
    parser.add_argument("--name", default="doctor", help="of the result file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dtype: DTypeName = args.dtype
    asked = questions(args.limit)
    rows = []
    for method, drafter in (("lookup", "lookup"), ("draft", args.draft_model)):
        engine = surefoot.load(args.target, drafter, dtype=dtype, device=args.device)
        assert engine.tokenizer is not None
        trial = Trial(
            prompts=tuple(question.prompt((), engine.tokenizer, raw=True) for question in asked),
            params=SamplingParams(max_tokens=args.max_tokens, ignore_eos=True, seed=0),
            speculative=SpeculativeOptions(num_draft=args.num_draft),
            budget=float("inf"),
        )
        row = compare(engine, method, trial, asked, args.turns)
        rows.append({"drafter": drafter, **row})
        print(f"{drafter}: {'within' if row['within_tolerance'] else 'OUTSIDE'} {TOLERANCE:.0%}")
        for statistic in ("together", "median over texts"):
            print(f"  {statistic}: {row[statistic]}")
    print(f"written to {write_result(args.name, {'options': vars(args), 'tolerance': TOLERANCE, 'rows': rows})}")


if __name__ == "__main__":
    main()
