"""Writes the measurements in the documents from ``results/``: no number there that was not measured.

python -m benchmarks.report
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from benchmarks import cuda_report, dflash_report
from benchmarks.common import RESULTS
from benchmarks.markdown import circumstances, table
from benchmarks.speed_report import sections

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
PEBBLE = ROOT / "recipes" / "pebble" / "RESULTS.md"
README = ROOT / "README.md"
_BEGIN, _END = "<!-- engine -->", "<!-- /engine -->"
_SPEEDS = "<!-- drafters -->", "<!-- /drafters -->"


HEAD = """# Measurements

Written by `python -m benchmarks.report` from `benchmarks/results/*.json`; do not edit. The JSON holds each run's
command, versions and hardware. Medians over prompts of medians over repeats; ratios come from one interleaved run;
seconds are of whole requests, prefill included. The machine is a shared one: trust the ratios, not the milliseconds.
"""


def load(name: str) -> dict[str, object]:
    """One result file."""
    document: dict[str, object] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return document


def _spread(values: Mapping[str, float]) -> str:
    return f"{values['median']:.2f} ({values['min']:.2f} to {values['max']:.2f})"


def vs_transformers() -> str:
    """Speed against the same methods of ``transformers``."""
    document = load("vs_transformers")
    parts = ["## Against transformers\n", circumstances(document)]
    results = document["results"]
    assert isinstance(results, list)
    for result in results:
        rows = [(pair, _spread(values)) for pair, values in result["times_faster"].items()]
        parts.append(f"### {result['dtype']}\n")
        parts.append("Times faster, median over prompts (worst to best prompt):\n")
        parts.append(table(("ours / theirs, or ours / our plain", "times"), rows))
        same = result["same_tokens_as_our_plain"]
        rows = [(name, _spread(values), f"{same[name]:.0%}") for name, values in result["tokens_per_second"].items()]
        parts.append(table(("way of decoding", "tokens per second", "prompts with our plain tokens"), rows))
    return "\n".join(parts)


def acceptance_table(document: Mapping[str, object]) -> str:
    """A row for each drafter, temperature, guess and rule."""
    rows = document["rows"]
    assert isinstance(rows, list)
    body = [
        (
            row["drafter"],
            row["temperature"],
            row["draft_sampling"] or "-",
            row["acceptance"],
            f"{row['mean_acceptance_length']:.2f}",
            " ".join(f"{share:.2f}" for share in row["accepted_by_position_per_round"]),
            f"{row['repeated_8_grams']:.1%}",
        )
        for row in rows
    ]
    header = ("drafter", "T", "guess", "acceptance", "tokens per round", "accepted by position", "repeated 8-grams")
    return table(header, body)


def acceptance() -> str:
    """Mean acceptance length on the evaluation set."""
    document = load("acceptance")
    note = (
        "Mean acceptance length counts the target's own token: 1 + accepted / rounds. All 40 prompts of the evaluation "
        "set, 128 tokens each, 4 drafts a round. Text that repeats itself flatters every drafter, so the share of "
        "8-grams that occurred before in the same output stands beside each figure.\n"
    )
    return "\n".join(["## Acceptance on pebble\n", note, circumstances(document), acceptance_table(document)])


def pebble_results() -> str:
    """The recipe's results page with the engine's table in its place."""
    before, _, rest = PEBBLE.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{acceptance_table(load('acceptance'))}{_END}{after}"


def phases() -> str:
    """Where a round's time goes."""
    document = load("phases")
    rows = document["rows"]
    assert isinstance(rows, list)
    names = ("draft", "score", "verify", "commit", "observe")
    body = [
        (row["drafter"], *(f"{row['shares'][name]:.1%}" for name in names), f"{row['outside_forwards']:.1%}")
        for row in rows
    ]
    note = (
        "Shares of all rounds' time, greedy. `draft` holds the draft model's forwards; the last column is all that is "
        "neither the target's forward nor the draft model's.\n"
    )
    header = ("drafter", *names, "outside the forwards")
    return "\n".join(["## Where a round's time goes\n", note, circumstances(document), table(header, body)])


def noise() -> str:
    """What the position noise costs."""
    document = load("noise")
    cases = document["by_vocabulary"]
    assert isinstance(cases, dict)
    body = [(size, cost["whole_row_us"], cost["support_of_50_us"]) for size, cost in cases.items()]
    header = ("vocabulary", "whole row, µs", "support of 50 ids, µs")
    note = "Per position drawn at T > 0. Top-k and top-p leave a small support, and noise is computed for that alone.\n"
    parts = ["## Position noise\n", note, circumstances(document), table(header, body)]
    draws = {size: cost["draw_a_row"] for size, cost in cases.items() if "draw_a_row" in cost}
    if draws:
        parts.append("One token drawn from a row, µs, by how far the row's logits spread:\n")
        spreads = list(next(iter(next(iter(draws.values())).values())))
        drawn = [
            (size, name, *(cost[spread] for spread in spreads))
            for size, kinds in draws.items()
            for name, cost in kinds.items()
        ]
        heads = [spread.removesuffix("_us").replace("_", " ") for spread in spreads]
        parts.append(table(("vocabulary", "draw", *heads), drawn))
    return "\n".join(parts)


def doctor() -> str:
    """How well the doctor predicts; nothing where it was not measured."""
    if not (RESULTS / "doctor.json").exists():
        return ""
    document = load("doctor")
    rows = document["rows"]
    assert isinstance(rows, list)
    body = [
        (row["drafter"], statistic, _spread(found["predicted"]), _spread(found["measured"]), f"{found['error']:+.1%}")
        for row in rows
        for statistic, found in ((name, row[name]) for name in ("together", "median over texts"))
    ]
    note = (
        "Times plain as `surefoot doctor` predicts it from a measured cost curve and acceptance, and as the runner of "
        "`surefoot bench` measures it in the same run on the same prompts; medians over turns (least to most). The aim "
        "is 15 %.\n"
    )
    header = ("drafter", "statistic", "predicted", "measured", "error")
    return "\n".join(["## Doctor's prediction\n", note, circumstances(document), table(header, body)])


def page() -> str:
    """The whole page."""
    accelerator = cuda_report.section(load("cuda"))
    speed = (vs_transformers(), *sections(), doctor())
    drafted = (acceptance(), dflash_report.acceptance())
    parts = (HEAD, dflash_report.proofs(), dflash_report.speeds(), *speed, *drafted, phases(), noise(), accelerator)
    return "\n".join(part for part in parts if part)


def readme() -> str:
    """The README with the table of every drafter on both targets in its place."""
    before, _, rest = README.read_text(encoding="utf-8").partition(_SPEEDS[0])
    _, _, after = rest.partition(_SPEEDS[1])
    return f"{before}{_SPEEDS[0]}\n{dflash_report.speed_table()}{_SPEEDS[1]}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    PEBBLE.write_text(pebble_results(), encoding="utf-8")
    README.write_text(readme(), encoding="utf-8")
