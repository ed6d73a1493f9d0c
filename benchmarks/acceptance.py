"""Mean acceptance length on pebble's evaluation set, for every drafter, temperature, guess and acceptance rule.

Not a timing. Beside each figure stands the share of repeated 8-grams in the output: text that loops flatters every
drafter.

    python -m benchmarks.acceptance
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import surefoot
from benchmarks.common import evaluation_prompts, write_result
from surefoot.engine import Engine
from surefoot.options import Acceptance, DraftSampling, DTypeName, SamplingParams, SpeculativeOptions

_SEED = 20261120


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table."""

    drafter: str
    temperature: float
    draft_sampling: DraftSampling | None
    acceptance: Acceptance


SETTINGS = (
    Setting(drafter="lookup", temperature=0.0, draft_sampling=None, acceptance="match"),
    Setting(drafter="lookup", temperature=0.8, draft_sampling=None, acceptance="match"),
    Setting(drafter="pebble-draft", temperature=0.0, draft_sampling=None, acceptance="match"),
    Setting(drafter="pebble-draft", temperature=0.8, draft_sampling="shared", acceptance="match"),
    Setting(drafter="pebble-draft", temperature=0.8, draft_sampling="argmax", acceptance="match"),
    Setting(drafter="pebble-draft", temperature=0.8, draft_sampling=None, acceptance="reject"),
)


def repeated_share(tokens: Sequence[int], size: int = 8) -> float:
    """The share of ``size``-grams that occurred before in the same text."""
    grams = Counter(tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1))
    total = grams.total()
    return (total - len(grams)) / total if total else 0.0


def measure(engine: Engine, setting: Setting, prompts: Sequence[tuple[int, ...]], num_draft: int) -> dict[str, object]:
    """One row: what the setting was, and what it gave."""
    options = SpeculativeOptions(
        num_draft=num_draft, acceptance=setting.acceptance, draft_sampling=setting.draft_sampling
    )
    return {
        "drafter": setting.drafter,
        "temperature": setting.temperature,
        "draft_sampling": setting.draft_sampling,
        "acceptance": setting.acceptance,
        **accepted(engine, setting.temperature, options, prompts),
    }


def accepted(
    engine: Engine, temperature: float, options: SpeculativeOptions, prompts: Sequence[tuple[int, ...]]
) -> dict[str, object]:
    """Answers the whole set; counts are summed over the prompts."""
    rounds = drafted = right = fallbacks = 0
    by_position = [0] * options.num_draft
    repeated = 0.0
    per_prompt = []
    for prompt in prompts:
        params = SamplingParams(temperature=temperature, max_tokens=128, ignore_eos=True, seed=_SEED)
        result = engine.generate(prompt, params, speculative=options)
        rounds += result.stats.rounds
        per_prompt.append((result.stats.rounds, result.stats.accepted))
        drafted += result.stats.drafted
        right += result.stats.accepted
        fallbacks += result.stats.fallbacks
        for position, count in enumerate(result.stats.accepted_by_position):
            by_position[position] += count
        repeated += repeated_share(result.tokens) / len(prompts)
    return {
        "mean_acceptance_length": 1 + right / rounds,
        "accepted_by_position_per_round": [count / rounds for count in by_position],
        "rounds": rounds,
        "drafted": drafted,
        "accepted": right,
        "fallbacks": fallbacks,
        "repeated_8_grams": repeated,
        "rounds_and_accepted_per_prompt": per_prompt,
    }


def main() -> None:
    """Measures every setting and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--num-draft", type=int, default=4)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--target", default="pebble", help="a bundled name or a directory")
    parser.add_argument("--draft-model", default="pebble-draft", help="a bundled name or a directory")
    parser.add_argument("--name", default="acceptance", help="of the result file")
    args = parser.parse_args()
    dtype: DTypeName = args.dtype
    prompts = evaluation_prompts(args.limit)
    drafters = {"lookup": "lookup", "pebble-draft": args.draft_model}
    rows = []
    for setting in SETTINGS:
        engine = surefoot.load(args.target, drafters[setting.drafter], dtype=dtype)
        row = measure(engine, setting, prompts, args.num_draft)
        rows.append(row)
        print(
            f"{setting.drafter:14} T={setting.temperature:<4} {setting.draft_sampling or '-':7} {setting.acceptance:7} "
            f"{row['mean_acceptance_length']:.3f} tokens per round, repeated 8-grams {row['repeated_8_grams']:.3f}"
        )
    print(f"written to {write_result(args.name, {'options': vars(args), 'rows': rows})}")


if __name__ == "__main__":
    main()
