"""The measuring side: starts a worker for each arm of a comparison and asks all of them in turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import sleep
from typing import Any

from benchmarks.common import rotated

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".peers"
_PAUSE = 0.05
"""Seconds between arms, for the threads of the last one to go to sleep."""

INTERPRETERS = {
    "surefoot": Path(sys.executable),
    "transformers": Path(sys.executable),
    "llama_cpp": ENVIRONMENTS / "llama-cpp" / "bin" / "python",
    "openvino": ENVIRONMENTS / "openvino" / "bin" / "python",
}


class PeerError(RuntimeError):
    """A worker could not be started, or ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What all arms of a comparison share."""

    cache: Path
    dtype: str
    threads: int
    num_draft: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way of decoding: an engine, its model, perhaps a draft model."""

    engine: str
    model: Path
    draft: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def installed(self) -> bool:
        """Whether its environment was made, to the end: ``make peers`` leaves a mark there then."""
        interpreter = INTERPRETERS[self.engine]
        return ENVIRONMENTS not in interpreter.parents or (interpreter.parents[1] / ".installed").exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One greedy answer: seconds to its first tokens (mostly one), from there to its last, and its tokens."""

    prefill_seconds: float
    decode_seconds: float
    num_first: int
    tokens: tuple[int, ...]

    @property
    def tokens_per_second(self) -> float:
        """Of decoding alone."""
        return (len(self.tokens) - self.num_first) / self.decode_seconds


class Peer:
    """A running worker of the arm called ``name``; what it prints lies in the cache folder."""

    def __init__(self, name: str, arm: Arm, setup: Setup) -> None:
        script = HERE / f"with_{arm.engine}.py"
        command = [str(INTERPRETERS[arm.engine]), str(script), "--model", str(arm.model), "--dtype", setup.dtype]
        command += ["--threads", str(setup.threads), "--num-draft", str(setup.num_draft), "--cache", str(setup.cache)]
        if arm.draft is not None:
            command += ["--draft", str(arm.draft)]
        threads = {"OMP_NUM_THREADS": str(setup.threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        self._log = (setup.cache / f"{name.replace(' ', '-')}.log").open("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **threads, **arm.environment},
            text=True,
        )
        self._name = name
        self.versions: Mapping[str, str] = {}

    def wait(self) -> None:
        """Returns once its model is loaded."""
        ready = self._read()
        self.versions = ready["versions"] | {f"{self._name} {key}": word for key, word in ready["remarks"].items()}

    def generate(self, prompt: Sequence[int], max_tokens: int) -> Answer:
        """One answer."""
        answer = self._ask(do="generate", prompt=list(prompt), max_tokens=max_tokens)
        return Answer(**answer | {"tokens": tuple(answer["tokens"])})

    def forwards(self, prompt: Sequence[int], rows: Sequence[int], repeats: int) -> dict[int, float]:
        """Median seconds of a forward by its number of rows, after ``prompt``."""
        seconds = self._ask(do="forwards", prompt=list(prompt), rows=list(rows), repeats=repeats)["seconds"]
        return {int(count): median(taken) for count, taken in seconds.items()}

    def peak_bytes(self) -> int:
        """The most resident memory the worker ever had."""
        peak: int = self._ask(do="memory")["peak_bytes"]
        return peak

    def close(self) -> None:
        """Ends the worker."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def _ask(self, **request: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            tail = self._log.read()[-2000:]
            raise PeerError(f"the worker of {self._name} ended where an answer was expected. It said:\n{tail}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def running(arms: Mapping[str, Arm], setup: Setup) -> Iterator[dict[str, Peer]]:
    """A worker per arm, loaded one after the other, ended together."""
    setup.cache.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        peers = {}
        for name, arm in arms.items():
            peers[name] = Peer(name, arm, setup)
            stack.callback(peers[name].close)
            peers[name].wait()
        yield peers


def in_turn(peers: Mapping[str, Peer], turn: int) -> Iterator[tuple[str, Peer]]:
    """Every worker once, beginning with another one each turn, each after a pause."""
    for name in rotated(list(peers), turn):
        sleep(_PAUSE)
        yield name, peers[name]
