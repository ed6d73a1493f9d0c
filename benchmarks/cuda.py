"""Plain and speculative decoding of pebble on an accelerator: are the answers the same, and how fast are they.

For each dtype and mode of exactness, with lookup and with the draft model, greedy and sampled: every answer is compared
with plain decoding of the same engine, token by token. Seconds are of whole requests, prefill included.

    python -m benchmarks.cuda --limit 12
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch

import surefoot
from benchmarks.common import evaluation_prompts, timed, write_result
from surefoot.engine import Engine
from surefoot.options import DTypeName, Exactness, SamplingParams, SpeculativeOptions
from surefoot.request import Result

_SEED = 20261120
_DTYPES: tuple[DTypeName, ...] = ("float32", "bfloat16")
_MODES: tuple[Exactness, ...] = ("auto", "require")
_TEMPERATURES = (0.0, 0.8)
_PLAIN = SpeculativeOptions(num_draft=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table."""

    dtype: DTypeName
    exact: Exactness
    drafter: str
    temperature: float


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first place where two answers differ, None where they do not."""
    if tuple(one) == tuple(other):
        return None
    shared = min(len(one), len(other))
    return next((i for i in range(shared) if one[i] != other[i]), shared)


def measure(
    engine: Engine, setting: Setting, prompts: Sequence[tuple[int, ...]], args: argparse.Namespace
) -> dict[str, object]:
    """Answers every prompt plainly and speculatively, in turn, after a warm-up."""
    params = SamplingParams(temperature=setting.temperature, max_tokens=args.max_tokens, ignore_eos=True, seed=_SEED)
    drafting = SpeculativeOptions(num_draft=args.num_draft)
    results: list[Result] = []

    def answer(prompt: tuple[int, ...], options: SpeculativeOptions) -> tuple[float, tuple[int, ...]]:
        def run() -> Sequence[int]:
            results.append(engine.generate(prompt, params, speculative=options))
            return results[-1].tokens

        return timed(run)

    for options in (_PLAIN, drafting):
        answer(prompts[0], options)
    differences, plain_seconds, seconds = [], [], []
    rounds = accepted = fallbacks = 0
    for prompt in prompts:
        plain_took, plain = answer(prompt, _PLAIN)
        took, tokens = answer(prompt, drafting)
        stats = results[-1].stats
        rounds, accepted, fallbacks = rounds + stats.rounds, accepted + stats.accepted, fallbacks + stats.fallbacks
        differences.append(first_difference(plain, tokens))
        plain_seconds.append(plain_took)
        seconds.append(took)
    return {
        "dtype": setting.dtype,
        "exact": setting.exact,
        "strict": results[-1].stats.strict,
        "drafter": setting.drafter,
        "temperature": setting.temperature,
        "first_differences": differences,
        "mean_acceptance_length": 1 + accepted / rounds,
        "fallbacks": fallbacks,
        "plain_tokens_per_second": args.max_tokens / median(plain_seconds),
        "tokens_per_second": args.max_tokens / median(seconds),
        "times_faster": median(plain / ours for plain, ours in zip(plain_seconds, seconds, strict=True)),
    }


def main() -> None:
    """Measures every setting and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit", type=int, default=12)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--num-draft", type=int, default=4)
    parser.add_argument("--target", default="pebble", help="a bundled name or a directory")
    parser.add_argument("--draft-model", default="pebble-draft", help="a bundled name or a directory")
    parser.add_argument("--name", default="cuda", help="of the result file")
    args = parser.parse_args()
    prompts = evaluation_prompts()[:: 40 // args.limit][: args.limit]
    drafters = {"lookup": "lookup", "pebble-draft": args.draft_model}
    rows = []
    for dtype in _DTYPES:
        for exact in _MODES:
            for name, drafter in drafters.items():
                engine = surefoot.load(args.target, drafter, dtype=dtype, device=args.device, exact=exact)
                for temperature in _TEMPERATURES:
                    setting = Setting(dtype=dtype, exact=exact, drafter=name, temperature=temperature)
                    rows.append(measure(engine, setting, prompts, args))
                    print(rows[-1], flush=True)
    device = torch.cuda.get_device_name() if args.device.startswith("cuda") else args.device
    print(f"written to {write_result(args.name, {'options': vars(args), 'rows': rows}, device=device)}")


if __name__ == "__main__":
    main()
