"""Where a round's time goes on pebble, greedy: the forwards of target and draft model, and everything outside them.

python -m benchmarks.phases
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median
from time import perf_counter

import torch

import surefoot
from benchmarks.common import evaluation_prompts, write_result
from surefoot.drafters.draft_model import DraftModel
from surefoot.engine import Engine
from surefoot.options import DTypeName, SamplingParams, SpeculativeOptions
from surefoot.protocols import Cache, Target
from surefoot.types import Capture, DraftTree, TargetOutput


class TimedScore:
    """A target that adds up the seconds of its ``score`` and ``prefill``."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.seconds = 0.0

    def __getattr__(self, name: str) -> object:
        return getattr(self._target, name)

    def score(self, rounds: Sequence[tuple[DraftTree, Cache]], capture: Capture) -> list[TargetOutput]:
        """The target's score, timed."""
        started = perf_counter()
        outs = self._target.score(rounds, capture)
        self.seconds += perf_counter() - started
        return outs

    def prefill(self, *args: object) -> object:
        """The target's prefill, timed; read to its end at once."""
        started = perf_counter()
        chunks = list(self._target.prefill(*args))
        self.seconds += perf_counter() - started
        return iter(chunks)


def measure(
    name: str, engine: Engine, draft: TimedScore | None, prompts: Sequence[tuple[int, ...]]
) -> dict[str, object]:
    """Shares of all rounds' time, the median over the prompts."""
    params = SamplingParams(max_tokens=128, ignore_eos=True)
    options = SpeculativeOptions(num_draft=0 if name == "plain" else 4)
    shares: dict[str, list[float]] = {}
    outside: list[float] = []
    for prompt in prompts:
        if draft is not None:
            draft.seconds = 0.0
        result = engine.generate(prompt, params, speculative=options)
        seconds = result.stats.seconds
        forwards = seconds.score + (draft.seconds if draft is not None else 0.0)
        outside.append(1 - forwards / seconds.rounds)
        for phase in ("draft", "score", "verify", "commit", "observe"):
            shares.setdefault(phase, []).append(getattr(seconds, phase) / seconds.rounds)
    return {
        "drafter": name,
        "outside_forwards": median(outside),
        "shares": {phase: median(values) for phase, values in shares.items()},
    }


def main() -> None:
    """Measures plain, lookup and draft model in one dtype."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=10)
    parser.add_argument("--target", default="pebble", help="a bundled name or a directory")
    parser.add_argument("--draft-model", default="pebble-draft", help="a bundled name or a directory")
    parser.add_argument("--name", default="phases", help="of the result file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dtype: DTypeName = args.dtype
    prompts = evaluation_prompts(args.limit)
    pair = surefoot.load(args.target, args.draft_model, dtype=dtype)
    assert isinstance(pair.drafter, DraftModel)
    timed = TimedScore(pair.drafter.model)
    drafting = Engine(pair.target, DraftModel(timed))  # type: ignore[arg-type]  # a proxy
    plain = surefoot.load(args.target, dtype=dtype)
    lookup = surefoot.load(args.target, "lookup", dtype=dtype)
    rows = []
    for name, engine, draft in (("plain", plain, None), ("lookup", lookup, None), ("draft model", drafting, timed)):
        measure(name, engine, draft, prompts[:2])
        rows.append(measure(name, engine, draft, prompts))
        print(rows[-1])
    print(f"written to {write_result(args.name, {'options': vars(args), 'rows': rows})}")


if __name__ == "__main__":
    main()
