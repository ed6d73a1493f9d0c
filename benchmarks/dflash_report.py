"""What the pages show of drafters beside each other: proofs, tokens per round of DFlash, and speeds of every pair."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common import RESULTS
from benchmarks.markdown import circumstances, table

ARMS = {"lookup": "lookup", "draft": "draft model", "dflash": "DFlash chain", "dflash-tree": "DFlash tree"}


def read(name: str, results: Path) -> dict[str, object] | None:
    """A result file, or None where that has not been measured."""
    path = results / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def proofs(results: Path = RESULTS) -> str:
    """What ``surefoot prove`` said of the bundled pairs."""
    rows = []
    for path in sorted(results.glob("prove_*.json")):
        proof = json.loads(path.read_text(encoding="utf-8"))
        cases = proof["cases"]
        for temperature in sorted({case["temperature"] for case in cases}):
            chosen = [case for case in cases if case["temperature"] == temperature]
            same = sum(case["outcome"] == "identical" for case in chosen)
            tokens, accepted, rounds, fallbacks = (
                sum(case[key] for case in chosen) for key in ("num_tokens", "accepted", "rounds", "fallbacks")
            )
            found = (f"{same} of {len(chosen)}", tokens, accepted, f"{1 + accepted / max(rounds, 1):.2f}", fallbacks)
            rows.append((proof["model"], proof["drafter"], proof["dtype"], temperature, *found))
    note = (
        '`surefoot prove TARGET --drafter DRAFTER --json`, `--dtype` float32 or bfloat16, `exact="require"`, each '
        "prompt of the evaluation set; 4 drafts a round, 7 by DFlash; 128 tokens on pebble without DFlash, else 200.\n"
    )
    header = ("target", "drafter", "dtype", "T", "identical answers", "tokens", "drafts accepted")
    return "\n".join(["## Proofs\n", note, table((*header, "tokens per round", "fallbacks"), rows)])


def acceptance(results: Path = RESULTS) -> str:
    """Tokens per round of the DFlash drafters, by target; nothing where it was not measured."""
    document = read("dflash", results)
    if document is None:
        return ""
    rows = document["rows"]
    assert isinstance(rows, list)
    reasons = read("reasons", results) or {}
    note = (
        "Mean acceptance length, 1 + accepted / rounds, on the 40 prompts of the evaluation set, 128 tokens each. By "
        "position: the share of rounds in which at least so many drafts were accepted.\n"
    )
    parts = ["## Acceptance of DFlash\n", note, circumstances(document)]
    for target in dict.fromkeys(row["target"] for row in rows):
        own = [row for row in rows if row["target"] == target]
        parts.append(f"### {own[0]['drafter']} on {target}\n")
        header = ("T", "drafted", "tokens per round", "accepted by position", "repeated 8-grams", "aim")
        parts.append(table(header, [_row(row) for row in own]))
        if any(row["aim"] is not None and row["mean_acceptance_length"] < row["aim"] for row in own):
            why = reasons.get(f"dflash.{target}", "the reason is not known yet.")
            parts.append(f"The aim is missed: {why}\n")
    return "\n".join(parts)


def _row(row: Mapping[str, object]) -> tuple[str, ...]:
    length, aim, by_position = row["mean_acceptance_length"], row["aim"], row["accepted_by_position_per_round"]
    assert isinstance(length, float)
    assert isinstance(by_position, list)
    depth = max((place for place, share in enumerate(by_position, 1) if share), default=1)
    verdict = ""
    if isinstance(aim, (int, float)):
        verdict = f"at least {aim:g}: " + ("met" if length >= aim else "**missed**")
    shares = " ".join(f"{share:.2f}" for share in by_position[:depth])
    return (
        f"{row['temperature']:g}",
        str(row["way"]),
        f"{length:.2f}",
        shares,
        f"{row['repeated_8_grams']:.1%}",
        verdict,
    )


def speeds(results: Path = RESULTS) -> str:
    """Times plain of every way of drafting on both targets; nothing where it was not measured."""
    document = read("pairs", results)
    if document is None:
        return ""
    return "\n".join(
        ["## Every drafter on both targets\n", _note(document), circumstances(document), speed_table(results)]
    )


def speed_table(results: Path = RESULTS) -> str:
    """A row for each target and drafter, a column for each kind of question; nothing where it was not measured."""
    document = read("pairs", results)
    if document is None:
        return ""
    runs = document["runs"]
    assert isinstance(runs, list)
    kinds = list(dict.fromkeys(cell["kind"] for run in runs for cell in run["cells"]))
    rows = []
    for run in runs:
        for arm, name in ARMS.items():
            cells = {cell["kind"]: cell for cell in run["cells"] if cell["arm"] == arm}
            if cells:
                rows.append((run["model"], name, *(_cell(cells.get(kind)) for kind in kinds)))
    order = list(dict.fromkeys(row[0] for row in rows))
    rows.sort(key=lambda row: (order.index(row[0]), list(ARMS.values()).index(row[1])))
    return table(("target", "drafter", *kinds), rows)


def _cell(cell: Mapping[str, object] | None) -> str:
    if cell is None:
        return ""
    times = cell["times_plain"]
    assert isinstance(times, Mapping)
    return f"{times['median']:.2f} ({cell['mean_acceptance_length']:.2f})"


def _note(document: Mapping[str, object]) -> str:
    runs = document["runs"]
    assert isinstance(runs, list)
    dtypes: Sequence[str] = sorted({run["dtype"] for run in runs})
    same = all(cell["identical"] == cell["answers"] for run in runs for cell in run["cells"])
    texts = "every text is plain's" if same else "**some texts differ from plain's**"
    return (
        f"`surefoot bench` on its built-in questions, greedy, {', '.join(dtypes)}: times plain decoding, median over "
        f"answers, and tokens per round in brackets; 4 drafts a round by lookup and the draft model, 7 by DFlash, as a "
        f"chain or a tree 3 wide; {texts}.\n"
    )
