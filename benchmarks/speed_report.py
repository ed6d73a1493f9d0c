"""The sections of ``docs/benchmarks.md`` that hold figures beside their aims, misses and their reasons included.

``results/reasons.json`` says why an aim was missed and what was tried, by ``file.measurement``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from benchmarks.common import RESULTS
from benchmarks.figures import Figure
from benchmarks.markdown import circumstances, table

TITLES = {
    "decode": (
        "Beside other engines",
        "Each engine in a process of its own on the same weights, greedy, fresh random prompts; decoding alone, from "
        "the first token to the last, except under prefill. `14m` and `0.5b` (the shape of Qwen2.5-0.5B) have random "
        "weights: speed does not depend on them. OpenVINO keeps keys and values in the dtype named, not quantised.",
        ("plain", "speculative", "verification", "prefill", "memory"),
    ),
    "kernels": (
        "Beside and beyond the forwards",
        "Ours alone: an empty call of the kernels, products of theirs and of torch's by turns, several sequences at "
        "once, a drafted token of a 1m draft model, a round without its forward, "
        "noise and processors of a vocabulary of 151,936 at T = 0.8 with top-p 0.9, and long contexts.",
        ("calls", "beside", "sequences", "draft", "outside", "noise", "context"),
    ),
    "hybrid": (
        "Hybrids of delta layers and attention",
        "Beside `transformers`, whose delta rule is its reference form here, each in a process of its own on the same "
        "random weights. `small` has the sizes of the bundled hybrid, `0.8b` those of a Qwen3.5 of 0.8 billion "
        "parameters (18 delta layers of 16 heads of 128, 6 attention layers, a vocabulary of 248,320).",
        ("plain", "verification"),
    ),
    "rollback": (
        "Undoing a round of a hybrid",
        "A round leaves the states before it as they are and records a tape; what is accepted of it is replayed. `4b` "
        "has the sizes of a Qwen3.5 of four billion parameters (24 delta layers, 16 key and 32 value heads of 128) and "
        "a small vocabulary; its layers of a kind share random weights.",
        ("memory", "commit"),
    ),
}


def sections(results: Path = RESULTS) -> list[str]:
    """A section for each result file there is."""
    path = results / "reasons.json"
    reasons = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found = []
    for name, (title, note, order) in TITLES.items():
        path = results / f"{name}.json"
        if path.exists():
            parts = json.loads(path.read_text(encoding="utf-8"))
            body = [
                part(f"{name}.{measurement}", parts[measurement], reasons)
                for measurement in order
                if measurement in parts
            ]
            found.append("\n".join([f"## {title}\n", note + "\n", *body]))
    return found


def part(key: str, measured: Mapping[str, object], reasons: Mapping[str, str]) -> str:
    """One measurement: its circumstances, its figures, and the reasons of its misses."""
    raw = measured["figures"]
    assert isinstance(raw, list)
    figures = [Figure.read(one) for one in raw]
    lines = [f"### {key.partition('.')[2].capitalize()}\n", circumstances(measured)]
    lines.append(table(("measured", "median", "lowest to highest", "aim"), [row(figure) for figure in figures]))
    missed = sum(figure.met is False for figure in figures)
    if missed:
        reason = reasons.get(key, "the reason is not known yet.")
        lines.append(f"{missed} of {sum(figure.met is not None for figure in figures)} aims missed: {reason}\n")
    left_out = measured.get("left_out")
    if isinstance(left_out, list) and left_out:
        lines.append(f"Not installed, so left out: {', '.join(left_out)}.\n")
    return "\n".join(lines)


def row(figure: Figure) -> tuple[str, str, str, str]:
    """A figure in words."""
    middle = f"{shown(figure.median)} {figure.unit}"
    verdict = "" if figure.aim is None else f"{figure.aim}: {'met' if figure.met else '**missed**'}"
    return figure.case, middle, f"{shown(figure.low)} to {shown(figure.high)}", verdict


def shown(value: float) -> str:
    """A number with three significant digits, or all before the point."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
