"""Surefoot against ``transformers`` on the same checkpoint and prompts, interleaved in one run.

Plain decoding against ``generate()``, the draft model against ``assistant_model``, lookup against
``prompt_lookup_num_tokens``; greedy, the same number of tokens, the same number of drafts a round. Seconds are of whole
requests, prefill included, and every figure is a ratio of medians taken in this run.

    python -m benchmarks.vs_transformers --limit 20 --repeats 3
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Sequence
from statistics import median

import torch

import surefoot
from benchmarks.common import evaluation_prompts, rotated, spread, timed, write_result
from surefoot.engine import Engine
from surefoot.loading import bundled
from surefoot.options import DTypeName, SamplingParams, SpeculativeOptions

PAIRS = (("plain", "transformers plain"), ("draft model", "transformers assistant"), ("lookup", "transformers lookup"))

Run = Callable[[tuple[int, ...]], Sequence[int]]


def our_runs(dtype: DTypeName, args: argparse.Namespace) -> dict[str, Run]:
    """Our three ways of decoding."""
    params = SamplingParams(max_tokens=args.max_tokens, ignore_eos=True)
    drafting = SpeculativeOptions(num_draft=args.num_draft)

    def runner(engine: Engine, options: SpeculativeOptions) -> Run:
        return lambda prompt: engine.generate(prompt, params, speculative=options).tokens

    return {
        "plain": runner(surefoot.load(args.target, dtype=dtype), SpeculativeOptions(num_draft=0)),
        "draft model": runner(surefoot.load(args.target, args.draft_model, dtype=dtype), drafting),
        "lookup": runner(surefoot.load(args.target, "lookup", dtype=dtype), drafting),
    }


def their_runs(dtype: DTypeName, args: argparse.Namespace) -> dict[str, Run]:
    """The same three in transformers, with a constant number of drafts and no early end."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    target, draft = (
        AutoModelForCausalLM.from_pretrained(bundled().get(name, name), dtype=getattr(torch, dtype)).eval()
        for name in (args.target, args.draft_model)
    )
    for model in (target, draft):
        model.generation_config.eos_token_id = None
        model.generation_config.num_assistant_tokens = args.num_draft
        model.generation_config.num_assistant_tokens_schedule = "constant"
        model.generation_config.assistant_confidence_threshold = 0.0

    def runner(**extra: object) -> Run:
        def run(prompt: tuple[int, ...]) -> Sequence[int]:
            ids = torch.tensor([prompt])
            with torch.inference_mode():
                out = target.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=args.max_tokens, do_sample=False, **extra
                )
            return out[0, len(prompt) :].tolist()

        return run

    return {
        "transformers plain": runner(),
        "transformers assistant": runner(assistant_model=draft),
        "transformers lookup": runner(prompt_lookup_num_tokens=args.num_draft),
    }


def measure(dtype: DTypeName, prompts: Sequence[tuple[int, ...]], args: argparse.Namespace) -> dict[str, object]:
    """Runs everything interleaved; seconds per prompt are medians over the repeats."""
    runs = our_runs(dtype, args) | their_runs(dtype, args)
    names = list(runs)
    for name in names:
        for prompt in prompts[:2]:
            runs[name](prompt)
    seconds: dict[str, list[list[float]]] = {name: [[] for _ in prompts] for name in names}
    tokens: dict[str, list[tuple[int, ...]]] = {name: [() for _ in prompts] for name in names}
    turn = 0
    for _ in range(args.repeats):
        for index, prompt in enumerate(prompts):
            turn += 1
            for name in rotated(names, turn):
                taken, tokens[name][index] = timed(lambda name=name, prompt=prompt: runs[name](prompt))
                seconds[name][index].append(taken)
    medians = {name: [median(taken) for taken in seconds[name]] for name in names}
    per_second = {
        name: spread([len(t) / s for t, s in zip(tokens[name], medians[name], strict=True)]) for name in names
    }
    ratios = {f"{ours} / {theirs}": _ratio(medians[theirs], medians[ours]) for ours, theirs in PAIRS}
    ratios |= {f"{name} / plain": _ratio(medians["plain"], medians[name]) for name in ("draft model", "lookup")}
    return {
        "dtype": dtype,
        "tokens_per_second": per_second,
        "times_faster": ratios,
        "same_tokens_as_our_plain": {name: _share_equal(tokens[name], tokens["plain"]) for name in names},
    }


def _ratio(slow: Sequence[float], fast: Sequence[float]) -> dict[str, float]:
    return spread([a / b for a, b in zip(slow, fast, strict=True)])


def _share_equal(ours: Sequence[tuple[int, ...]], theirs: Sequence[tuple[int, ...]]) -> float:
    return sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours)


def main() -> None:
    """Measures both dtypes and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=20, help="prompts of the evaluation set")
    parser.add_argument("--target", default="pebble", help="a bundled name or a directory")
    parser.add_argument("--draft-model", default="pebble-draft", help="a bundled name or a directory")
    parser.add_argument("--name", default="vs_transformers", help="of the result file")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--num-draft", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")
    prompts = evaluation_prompts(args.limit)
    results = [measure(dtype, prompts, args) for dtype in args.dtypes]
    path = write_result(args.name, {"task": "pebble evaluation set, T = 0", "options": vars(args), "results": results})
    for result in results:
        print(json.dumps({"dtype": result["dtype"], "times_faster": result["times_faster"]}, indent=1))
    print(f"written to {path}")


if __name__ == "__main__":
    main()
