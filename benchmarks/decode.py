"""Surefoot beside its peers: whole requests and whole forwards on the same weights, each engine in its own process.

Arms take turns on fresh random prompts, greedy; every figure is a median over the turns of one run. Decoding is timed
from the first token to the last, prefill up to the first. Models are made here, and converted, in the folder
``--cache``; ``make peers`` installs the other engines.

    python -m benchmarks.decode --only plain --models 14m
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from benchmarks.checkpoints import DRAFTS, Kind, checkpoint
from benchmarks.figures import Aim, Figure, Findings, Options, prompts, run
from benchmarks.peers.client import Answer, Arm, Peer, Setup, in_turn, running
from surefoot.loading.files import read_json_object

OURS = "surefoot"
CONTEXT = 256
ROWS = (1, 2, 3, 4, 6, 8, 12, 16)

PLAIN_AIMS = {
    ("14m", "bfloat16"): Aim(at_least=6),
    ("14m", "float32"): Aim(at_least=3.5),
    ("0.5b", "bfloat16"): Aim(at_least=2),
    ("0.5b", "float32"): Aim(at_least=2),
}
"""Plain decoding against ``transformers``."""

BEST_AIMS = {
    ("14m", "bfloat16"): Aim(at_least=1.2),
    ("14m", "float32"): Aim(at_least=1.2),
    ("0.5b", "bfloat16"): Aim(at_least=1),
}
"""Plain decoding against the faster of llama.cpp and OpenVINO."""

ROW_AIMS = {
    ("0.5b", "bfloat16"): {4: Aim(at_most=1.1), 8: Aim(at_most=1.2), 16: Aim(at_most=1.9)},
    ("0.5b", "float32"): {8: Aim(at_most=1.4)},
    ("14m", "bfloat16"): {8: Aim(at_most=2.2)},
    ("14m", "float32"): {8: Aim(at_most=2.2)},
}
"""A forward of several rows against one of a single row."""

EIGHT_ROW_AIMS = {"openvino": Aim(at_least=1.2), "llama_cpp": Aim(at_least=2)}
"""Forwards of 8 rows against the peers', 0.5b in bf16."""


def plain(options: Options) -> Findings:
    """Plain decoding against every peer."""
    found = Collection()
    for model, dtype in product(options.models, options.dtypes):
        path = checkpoint(model, "random", options.cache)
        arms = found.installed({name: Arm(engine=name, model=path) for name in (OURS, *PEERS)})
        answers = found.answers(arms, options, model, dtype)
        label = f"{model} {dtype}"
        figures = [rate(f"{label}: {name}", answers[name]) for name in arms]
        if "transformers" in arms:
            figures.append(faster(label, answers, OURS, "transformers", PLAIN_AIMS.get((model, dtype))))
        rivals = [name for name in ("llama_cpp", "openvino") if name in arms]
        if rivals:
            best = max(rivals, key=lambda name: rate(name, answers[name]).median)
            figures.append(faster(label, answers, OURS, best, BEST_AIMS.get((model, dtype))))
        figures += [same_tokens(label, answers, name) for name in arms if name != OURS]
        found.figures += figures
    return found.findings()


def speculative(options: Options) -> Findings:
    """A draft model that is always right and one that is never, against OpenVINO with the same draft models."""
    found = Collection()
    for model, dtype in product([name for name in options.models if name in DRAFTS], options.dtypes):
        path = checkpoint(model, "repeats", options.cache)
        drafts: dict[str, Kind] = {"perfect": "repeats", "useless": "misses"}
        arms = {f"{OURS} plain": Arm(engine=OURS, model=path)}
        for engine, (name, kind) in product((OURS, "openvino"), drafts.items()):
            draft = checkpoint(DRAFTS[model], kind, options.cache)
            arms[f"{engine} {name}"] = Arm(engine=engine, model=path, draft=draft)
        arms = found.installed(arms)
        answers = found.answers(arms, options, model, dtype)
        label = f"{model} {dtype}"
        found.figures += [rate(f"{label}: {name}", answers[name]) for name in arms]
        for name in drafts:
            found.figures.append(faster(label, answers, f"{OURS} {name}", f"{OURS} plain"))
            if f"openvino {name}" in arms:
                found.figures.append(faster(label, answers, f"{OURS} {name}", f"openvino {name}", Aim(at_least=1.2)))
    return found.findings()


def prefill(options: Options) -> Findings:
    """Seconds to the first token of a prompt of 512, against the same engine on torch's kernels."""
    found = Collection()
    length = 64 if options.quick else 512
    for model, dtype in product([name for name in options.models if name != "pebble"], options.dtypes):
        path = checkpoint(model, "random", options.cache)
        arms = {OURS: Arm(engine=OURS, model=path)}
        arms["torch"] = Arm(engine=OURS, model=path, environment={"SUREFOOT_NATIVE": "0"})
        answers = found.answers(arms, options, model, dtype, length=length, max_tokens=2)
        label = f"{model} {dtype}, {length} tokens"
        for name, given in answers.items():
            found.figures.append(Figure.of(f"{label}: {name}", "ms", [1e3 * one.prefill_seconds for one in given]))
        aim = Aim(at_least=0.8) if (model, dtype) == ("0.5b", "bfloat16") else None
        ratios = [
            theirs.prefill_seconds / ours.prefill_seconds
            for ours, theirs in zip(answers[OURS], answers["torch"], strict=True)
        ]
        found.figures.append(Figure.of(f"{label}: {OURS} / torch", "times", ratios, aim))
    return found.findings()


def verification(options: Options) -> Findings:
    """Whole forwards of 1 to 16 rows after a context of 256, logits of every row, against the peers'."""
    found = Collection()
    rows = (1, 8) if options.quick else ROWS
    for model, dtype in product(options.models, options.dtypes):
        path = checkpoint(model, "random", options.cache)
        arms = found.installed({name: Arm(engine=name, model=path) for name in (OURS, *PEERS)})
        context = prompts(1, 32 if options.quick else CONTEXT, vocabulary(path))[0]
        seconds: dict[str, list[dict[int, float]]] = {name: [] for name in arms}
        with running(arms, found.setup(options, dtype)) as peers:
            found.note(peers)
            for turn in range(options.turns + 1):
                for name, peer in in_turn(peers, turn):
                    taken = peer.forwards(context, rows, 1 if options.quick else 3)
                    if turn:  # the first one warms up
                        seconds[name].append(taken)
        label = f"{model} {dtype}"
        for name, count in product(arms, rows):
            found.figures.append(
                Figure.of(f"{label}, {count} rows: {name}", "ms", [1e3 * taken[count] for taken in seconds[name]])
            )
        aims = ROW_AIMS.get((model, dtype), {})
        for count in rows[1:]:
            growth = [taken[count] / taken[1] for taken in seconds[OURS]]
            found.figures.append(Figure.of(f"{label}: {count} rows / 1 row", "times", growth, aims.get(count)))
        for name in arms:
            if name != OURS:
                ratios = [theirs[8] / ours[8] for ours, theirs in zip(seconds[OURS], seconds[name], strict=True)]
                aim = EIGHT_ROW_AIMS.get(name) if (model, dtype) == ("0.5b", "bfloat16") else None
                found.figures.append(Figure.of(f"{label}, 8 rows: {OURS} / {name}", "times", ratios, aim))
    return found.findings()


def memory(options: Options) -> Findings:
    """Peak resident memory above an interpreter that has imported torch, beside the weights and the KV."""
    found = Collection()
    base = bare_peak()
    for model, dtype in product([name for name in options.models if name != "pebble"], options.dtypes):
        path = checkpoint(model, "random", options.cache)
        with running({OURS: Arm(engine=OURS, model=path)}, found.setup(options, dtype)) as peers:
            found.note(peers)
            for prompt in prompts(1 + options.turns, options.prompt_tokens, vocabulary(path)):
                peers[OURS].generate(prompt, options.tokens(model))
            peak = peers[OURS].peak_bytes() - base
        width = 2 if dtype == "bfloat16" else 4
        weights = (path / "model.safetensors").stat().st_size * width // 2
        tokens = options.prompt_tokens + options.tokens(model)
        needed = weights + tokens * kv_bytes(path, width)
        aim = Aim(at_most=1.15) if model == "0.5b" else None
        label = f"{model} {dtype}"
        found.figures.append(Figure.of(f"{label}: peak above torch's", "GB", [peak / 1e9]))
        found.figures.append(Figure.of(f"{label}: weights and KV", "GB", [needed / 1e9]))
        found.figures.append(Figure.of(f"{label}: peak / weights and KV", "times", [peak / needed], aim))
    return found.findings()


PEERS = ("transformers", "llama_cpp", "openvino")
MEASUREMENTS = {
    "plain": plain,
    "speculative": speculative,
    "prefill": prefill,
    "verification": verification,
    "memory": memory,
}


class Collection:
    """Figures as they come, with the versions of the engines and those that are missing."""

    def __init__(self) -> None:
        self.figures: list[Figure] = []
        self._versions: dict[str, str] = {}
        self._left_out: set[str] = set()

    def installed(self, arms: Mapping[str, Arm]) -> dict[str, Arm]:
        """The arms that can be run; the engines of the others are noted."""
        self._left_out |= {arm.engine for arm in arms.values() if not arm.installed}
        return {name: arm for name, arm in arms.items() if arm.installed}

    def setup(self, options: Options, dtype: str) -> Setup:
        """What all arms share."""
        return Setup(cache=options.cache, dtype=dtype, threads=options.threads, num_draft=options.num_draft)

    def note(self, peers: Mapping[str, Peer]) -> None:
        """Remembers what ran."""
        for peer in peers.values():
            self._versions |= peer.versions

    def answers(
        self,
        arms: Mapping[str, Arm],
        options: Options,
        model: str,
        dtype: str,
        *,
        length: int | None = None,
        max_tokens: int | None = None,
    ) -> dict[str, list[Answer]]:
        """One answer of each arm per turn, all arms of a turn on the same prompt, after warming up."""
        path = next(iter(arms.values())).model
        answers: dict[str, list[Answer]] = {name: [] for name in arms}
        chosen = prompts(options.warm_ups + options.turns, length or options.prompt_tokens, vocabulary(path))
        with running(arms, self.setup(options, dtype)) as peers:
            self.note(peers)
            for turn, prompt in enumerate(chosen):
                for name, peer in in_turn(peers, turn):
                    answer = peer.generate(prompt, max_tokens or options.tokens(model))
                    if turn >= options.warm_ups:
                        answers[name].append(answer)
        return answers

    def findings(self) -> Findings:
        """All of it."""
        return Findings(figures=tuple(self.figures), versions=self._versions, left_out=tuple(sorted(self._left_out)))


def rate(case: str, answers: Sequence[Answer]) -> Figure:
    """Decode-only tokens per second."""
    return Figure.of(case, "tokens/s", [answer.tokens_per_second for answer in answers])


def faster(
    label: str, answers: Mapping[str, Sequence[Answer]], ours: str, theirs: str, aim: Aim | None = None
) -> Figure:
    """How many times faster one arm decodes than another, turn by turn."""
    pairs = zip(answers[ours], answers[theirs], strict=True)
    return Figure.of(
        f"{label}: {ours} / {theirs}", "times", [a.tokens_per_second / b.tokens_per_second for a, b in pairs], aim
    )


def same_tokens(label: str, answers: Mapping[str, Sequence[Answer]], name: str) -> Figure:
    """The share of answers with our tokens: in fp32 nearly all, or the weights were converted wrongly."""
    pairs = list(zip(answers[OURS], answers[name], strict=True))
    share = sum(ours.tokens == theirs.tokens for ours, theirs in pairs) / len(pairs)
    return Figure.of(f"{label}: answers of {name} with our tokens", "share", [share])


def vocabulary(path: Path) -> int:
    """The vocabulary's size by a checkpoint's config."""
    return int(str(read_json_object(path / "config.json")["vocab_size"]))


def kv_bytes(path: Path, width: int) -> int:
    """Bytes of keys and values per token, ``width`` bytes a number."""
    raw = read_json_object(path / "config.json")
    hidden, heads, kv_heads, layers = (
        int(str(raw[key])) for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers")
    )
    return 2 * layers * kv_heads * (hidden // heads) * width


def bare_peak() -> int:
    """Peak resident bytes of an interpreter that has only imported torch."""
    script = "import torch, pathlib; print(pathlib.Path('/proc/self/status').read_text())"
    lines = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    (peak,) = (line.split()[1] for line in lines.splitlines() if line.startswith("VmHWM:"))
    return int(peak) * 1024


if __name__ == "__main__":
    run("decode", __doc__, MEASUREMENTS)
