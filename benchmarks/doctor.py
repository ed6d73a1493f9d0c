"""How well ``surefoot doctor`` predicts: predictions and measurements in turn, in one run, on the same prompts.

Each turn predicts the speedup as the doctor does, then times the same prompts plainly and speculatively; the turns'
medians are compared. Both are times plain of greedy answers, from the first token to the last.

    python -m benchmarks.doctor
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch

import surefoot
from benchmarks.common import evaluation_prompts, spread, write_result
from surefoot.doctor.speed import Prediction, Trial, predict
from surefoot.engine import Engine
from surefoot.options import DTypeName, SamplingParams, SpeculativeOptions
from surefoot.stats import Stats
from surefoot.types import Tokens

TOLERANCE = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One answer: seconds from its first token to its last, its tokens, and its account."""

    seconds: float
    tokens: Tokens
    stats: Stats


def answer(engine: Engine, prompt: Tokens, trial: Trial, num_draft: int) -> Timed:
    """Answers as a user's program would."""
    with engine.stream(prompt, trial.params, speculative=SpeculativeOptions(num_draft=num_draft)) as stream:
        next(stream)
        started = perf_counter()
        for _ in stream:
            pass
        seconds = perf_counter() - started
    return Timed(seconds=seconds, tokens=stream.result.tokens, stats=stream.result.stats)


def times_plain(engine: Engine, trial: Trial) -> dict[str, object]:
    """All prompts, plain and speculative in turn: the ratio of the sums, and what rounds took by phase."""
    num_draft = trial.speculative.num_draft
    pairs = [(answer(engine, prompt, trial, 0), answer(engine, prompt, trial, num_draft)) for prompt in trial.prompts]
    plain, speculative = ([pair[side] for pair in pairs] for side in (0, 1))
    return {
        "times_plain": sum(one.seconds for one in plain) / sum(one.seconds for one in speculative),
        "same_tokens": all(left.tokens == right.tokens for left, right in pairs),
        "plain_round": per_round(plain),
        "speculative_round": per_round(speculative),
    }


def per_round(answers: list[Timed]) -> dict[str, float]:
    """Mean seconds of a round, by phase."""
    rounds = sum(one.stats.rounds for one in answers)
    phases = {
        phase: sum(getattr(one.stats.seconds, phase) for one in answers) / rounds
        for phase in ("draft", "score", "verify", "commit", "observe")
    }
    return {**phases, "all": sum(one.seconds for one in answers) / rounds}


def compare(engine: Engine, trial: Trial, turns: int) -> dict[str, object]:
    """Predicts and measures in turn; which comes first alternates."""
    predictions: list[Prediction] = []
    measured: list[dict[str, object]] = []
    for turn in range(turns):
        for predicting in (turn % 2 == 0, turn % 2 == 1):
            if predicting:
                prediction = predict(engine, trial)
                assert prediction is not None
                predictions.append(prediction)
            else:
                measured.append(times_plain(engine, trial))
    predicted = [prediction.forecast.speedup for prediction in predictions]
    actual = [float(str(one["times_plain"])) for one in measured]
    error = median(predicted) / median(actual) - 1
    return {
        "predicted": spread(predicted),
        "measured": spread(actual),
        "error": error,
        "within_tolerance": abs(error) <= TOLERANCE,
        "fallbacks": sum(prediction.fallbacks for prediction in predictions),
        "predictions": [prediction.as_json() for prediction in predictions],
        "measurements": measured,
    }


def main() -> None:
    """Compares for lookup and the draft model, in one run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=8, help="prompts of pebble's evaluation set")
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
    trial = Trial(
        prompts=tuple(evaluation_prompts(args.limit)),
        params=SamplingParams(max_tokens=args.max_tokens, ignore_eos=True),
        speculative=SpeculativeOptions(num_draft=args.num_draft),
        budget=float("inf"),
    )
    rows = []
    for drafter in ("lookup", args.draft_model):
        row = compare(surefoot.load(args.target, drafter, dtype=dtype, device=args.device), trial, args.turns)
        rows.append({"drafter": drafter, **row})
        print(
            f"{drafter:14} predicted {row['predicted']}  measured {row['measured']}  error {row['error']:+.1%}  "
            f"{'within' if row['within_tolerance'] else 'OUTSIDE'} {TOLERANCE:.0%}"
        )
    print(f"written to {write_result(args.name, {'options': vars(args), 'tolerance': TOLERANCE, 'rows': rows})}")


if __name__ == "__main__":
    main()
