"""A worker's side of a measurement: answers requests, a line of JSON each, until its input ends.

It stands alone, because it runs in the environment of the engine that is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a worker loads: a checkpoint, perhaps a draft model, and where converted weights are kept."""

    model: Path
    draft: Path | None
    dtype: str
    threads: int
    num_draft: int
    cache: Path

    def converted(self, suffix: str, model: Path | None = None) -> Path:
        """The place of the model's weights in another format."""
        return self.cache / f"{(model or self.model).name}-{self.dtype}{suffix}"


First = Callable[[int], None]
"""Called once, with how many tokens came first: one, unless the engine hands out several at a time."""


class Runner(Protocol):
    """An engine with its model loaded.

    ``remarks`` say what else a reader should know of it.
    """

    remarks: Mapping[str, str]

    def answer(self, prompt: Sequence[int], max_tokens: int, first: First) -> list[int]:
        """Greedy answer of ``max_tokens`` ids, ended by none; ``first`` is called when the first are known."""
        ...

    def read(self, prompt: Sequence[int]) -> None:
        """Makes ``prompt`` the context of the forwards that follow."""
        ...

    def forward(self, tokens: Sequence[int]) -> None:
        """One forward of a chain after the context: logits of every row."""
        ...

    def undo(self) -> None:
        """Goes back to the context."""
        ...


def serve(make: Callable[[Job], Runner], packages: Sequence[str]) -> None:
    """Loads, says ``ready``, answers. Whatever libraries print goes to standard error."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(answer: dict[str, object]) -> None:
        channel.write(json.dumps(answer) + "\n")
        channel.flush()

    runner = make(_job())
    versions = {package: version(package) for package in packages}
    say({"versions": versions, "remarks": dict(runner.remarks)})
    for line in sys.stdin:
        request = json.loads(line)
        answers = {"generate": _generate, "forwards": _forwards, "memory": _memory}
        say(answers[request.pop("do")](runner, **request))


def peak_bytes() -> int:
    """The most resident memory this process ever had."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(peak) * 1024


def _job() -> Job:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--num-draft", type=int, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    return Job(**vars(parser.parse_args()))


def _generate(runner: Runner, prompt: list[int], max_tokens: int) -> dict[str, object]:
    """Seconds to the first token (or the first few, if they came together) and from there to the last."""
    first: list[tuple[float, int]] = []
    started = perf_counter()
    tokens = runner.answer(prompt, max_tokens, lambda count: first.append((perf_counter(), count)))
    ended = perf_counter()
    ((arrived, num_first),) = first
    if len(tokens) != max_tokens:
        raise ValueError(f"the engine gave {len(tokens)} tokens; expected {max_tokens}")
    return {
        "prefill_seconds": arrived - started,
        "decode_seconds": ended - arrived,
        "num_first": num_first,
        "tokens": tokens,
    }


def _forwards(runner: Runner, prompt: list[int], rows: list[int], repeats: int) -> dict[str, object]:
    """Seconds of forwards of each number of rows, in turn; the first turn is a warm-up."""
    runner.read(prompt)
    seconds: dict[int, list[float]] = {count: [] for count in rows}
    for turn in range(repeats + 1):
        for count in rows:
            started = perf_counter()
            runner.forward(prompt[:count])
            taken = perf_counter() - started
            runner.undo()
            if turn:
                seconds[count].append(taken)
    return {"seconds": seconds}


def _memory(runner: Runner) -> dict[str, object]:
    return {"peak_bytes": peak_bytes()}
