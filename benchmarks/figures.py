"""Measured figures beside their aims, in a JSON file with a part for each measurement, and on the command line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import torch

from benchmarks.common import RESULTS
from surefoot.provenance import Provenance

Unit = Literal["times", "tokens/s", "ms", "µs", "share", "GB", "MB"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What a figure's median is held to: one bound, from below or from above."""

    at_least: float | None = None
    at_most: float | None = None

    def met(self, value: float) -> bool:
        """Whether the value is within the bound."""
        low = float("-inf") if self.at_least is None else self.at_least
        high = float("inf") if self.at_most is None else self.at_most
        return low <= value <= high

    def __str__(self) -> str:
        return f"at least {self.at_least:g}" if self.at_least is not None else f"at most {self.at_most:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of a table: what was measured, the median over the turns with the extremes, and perhaps an aim."""

    case: str
    unit: Unit
    median: float
    low: float
    high: float
    aim: Aim | None = None

    @classmethod
    def of(cls, case: str, unit: Unit, values: Iterable[float], aim: Aim | None = None) -> Figure:
        """The figure of one value per turn."""
        found = list(values)
        return cls(case=case, unit=unit, median=median(found), low=min(found), high=max(found), aim=aim)

    @classmethod
    def read(cls, raw: Mapping[str, object]) -> Figure:
        """From its JSON."""
        aim = raw["aim"]
        fields = {name: value for name, value in raw.items() if name != "aim"}
        return cls(**fields, aim=Aim(**aim) if isinstance(aim, Mapping) else None)  # type: ignore[arg-type]  # JSON

    @property
    def met(self) -> bool | None:
        """Whether the aim is reached; None without one."""
        return None if self.aim is None else self.aim.met(self.median)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a measurement gives: its figures, the versions of the engines beside ours, and which were left out."""

    figures: tuple[Figure, ...]
    versions: Mapping[str, str]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How much to measure, of what."""

    cache: Path
    models: tuple[str, ...]
    dtypes: tuple[str, ...]
    threads: int
    turns: int
    num_draft: int
    quick: bool

    def tokens(self, model: str) -> int:
        """Tokens of an answer."""
        return 8 if self.quick else 48 if model == "0.5b" else 96

    @property
    def warm_ups(self) -> int:
        """Turns that do not count."""
        return 1 if self.quick else 2

    @property
    def prompt_tokens(self) -> int:
        """Tokens of a prompt."""
        return 32 if self.quick else 192


Measurement = Callable[[Options], Findings]


def prompts(count: int, length: int, vocab_size: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Fresh random prompts, no two alike, without the special ids at the vocabulary's beginning."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(16, vocab_size, (count, length), generator=generator)
    return [tuple(row) for row in drawn.tolist()]


def save(path: Path, measured: Mapping[str, Findings]) -> None:
    """Puts each measurement with its circumstances into the file; those not measured now stay as they are."""
    document = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    run = Provenance.collect().as_json()
    document |= {name: {"provenance": run, **asdict(findings)} for name, findings in measured.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def run(
    name: str,
    description: str | None,
    measurements: Mapping[str, Measurement],
    models: Sequence[str] = ("pebble", "14m", "0.5b"),
) -> None:
    """The command line of a benchmark: measures what ``--only`` names, prints figures and aims, saves."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(measurements), default=list(measurements))
    parser.add_argument("--models", nargs="+", default=list(models))
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    cache = Path.home() / ".cache" / "surefoot-benchmarks"
    parser.add_argument("--cache", type=Path, default=cache, help="a folder for generated and converted models")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=None, help="prompts, or repeats: 7, or 1 when quick")
    parser.add_argument("--num-draft", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="as little as shows that all works; not for publishing")
    parser.add_argument("--out", type=Path, default=None, help="of the JSON; when quick, a file in the cache folder")
    args = parser.parse_args()
    options = Options(
        cache=args.cache.resolve(),
        models=tuple(args.models),
        dtypes=tuple(args.dtypes),
        threads=args.threads,
        turns=args.turns or (1 if args.quick else 7),
        num_draft=args.num_draft,
        quick=args.quick,
    )
    out = args.out or (options.cache / f"{name}-quick.json" if args.quick else RESULTS / f"{name}.json")
    torch.set_num_threads(options.threads)
    for measured in args.only:
        print(f"== {measured}", flush=True)
        findings = measurements[measured](options)
        show(findings.figures)
        for engine in findings.left_out:
            print(f"left out: {engine} is not installed; run make peers")
        save(out, {measured: findings})
    print(f"written to {out}")


def show(figures: Sequence[Figure]) -> None:
    """Prints a line for each figure."""
    for figure in figures:
        verdict = "" if figure.aim is None else f"   aim: {figure.aim}, {'met' if figure.met else 'MISSED'}"
        print(f"{figure.case:64} {figure.median:10.3f} {figure.unit}{verdict}", flush=True)
