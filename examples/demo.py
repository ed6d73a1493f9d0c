"""Completes real Python code plainly and speculatively, and shows that the text is the same and what it gained.

``make demo`` runs it with the bundled models, on code they have not been trained on. Two parts, because they ask for
two kinds of arithmetic: that the text is the same is shown row-exactly (``exact="require"``, which is slow); how fast
it is, on the fast path (``exact="auto"``), plain decoding included.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import surefoot
from surefoot import Engine, SamplingParams, SpeculativeOptions, SurefootError
from surefoot.cli.show import Printer
from surefoot.prompts import builtin
from surefoot.request import Result

PLAIN = SpeculativeOptions(num_draft=0)
SPECULATIVE = SpeculativeOptions()


@dataclass(slots=True)
class Total:
    """What one way of decoding did over several prompts."""

    tokens: int = 0
    seconds: float = 0.0
    rounds: int = 0
    accepted: int = 0
    same: int = 0

    def add(self, result: Result, plain: Result) -> None:
        self.tokens += len(result.tokens) - 1  # the first token comes with the prefill
        self.seconds += result.stats.seconds.rounds
        self.rounds += result.stats.rounds
        self.accepted += result.stats.accepted
        self.same += result.tokens == plain.tokens

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


def show_exactness(target: str, draft: str, params: SamplingParams, number: int) -> bool:
    """Streams one completion in colours and compares it with the plain one."""
    engine = surefoot.load(target, draft, exact="require")
    prompt = builtin(engine.tokenizer)[number]
    text = prompt if isinstance(prompt, str) or engine.tokenizer is None else engine.tokenizer.decode(prompt)
    print(f"--- prompt\n{text}\n--- completion, {draft} drafting for {target}")
    printer = Printer(sys.stdout)
    with engine.stream(prompt, params, speculative=SPECULATIVE) as stream:
        for event in stream:
            printer.show(event)
    printer.end()
    result = stream.result
    plain = engine.generate(prompt, params, speculative=PLAIN)
    same = result.tokens == plain.tokens and result.text == plain.text
    drafts = f"{result.stats.accepted} of {result.stats.drafted} drafts accepted in {result.stats.rounds} rounds"
    print(f"---\n{drafts}\nsame text as plain: {'yes' if same else 'NO'} (exact=require, {len(plain.tokens)} tokens)\n")
    return same and result.stats.fallbacks == 0


def measure(engines: dict[str, Engine], prompts: Sequence[str | list[int]], params: SamplingParams) -> dict[str, Total]:
    """Decodes each prompt in every way in turn, so that a busy moment of the machine hits them alike."""
    totals = {"plain": Total(), **{name: Total() for name in engines}}
    for engine in engines.values():  # the first forwards of a process are slow
        engine.generate(prompts[0], params)
    for prompt in prompts:
        plain = next(iter(engines.values())).generate(prompt, params, speculative=PLAIN)
        totals["plain"].add(plain, plain)
        for name, engine in engines.items():
            totals[name].add(engine.generate(prompt, params, speculative=SPECULATIVE), plain)
    return totals


def show_speed(target: str, draft: str, params: SamplingParams, num_prompts: int) -> None:
    """Prints a line per way of decoding."""
    engines = {"lookup": surefoot.load(target, "lookup"), "draft model": surefoot.load(target, draft)}
    prompts = builtin(engines["lookup"].tokenizer)[:num_prompts]
    totals = measure(engines, prompts, params)
    print(f"speed over {len(prompts)} prompts (exact=auto, prefill apart, 4 drafts a round):")
    plain = totals["plain"]
    for name, total in totals.items():
        line = f"  {name:<12} {total.speed:7.1f} tok/s"
        if name != "plain":
            length = 1 + total.accepted / max(total.rounds, 1)
            gain = total.speed / plain.speed if plain.speed else 0.0
            verdict = "faster" if gain > 1 else "SLOWER"
            line += f"  {gain:.2f} times plain ({verdict}), {length:.2f} tokens a round, "
            line += f"same text: {total.same} of {len(prompts)}"
        print(line)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs both parts; 1 if the texts differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="pebble")
    parser.add_argument("--draft", default="pebble-draft")
    parser.add_argument("--prompt", type=int, default=2, help="which of the built-in prompts is shown")
    parser.add_argument("--num-prompts", type=int, default=6, help="how many are measured")
    parser.add_argument("--max-tokens", type=int, default=128)
    options = parser.parse_args(arguments)
    params = SamplingParams(max_tokens=options.max_tokens, ignore_eos=True)
    try:
        same = show_exactness(options.target, options.draft, params, options.prompt)
        show_speed(options.target, options.draft, params, options.num_prompts)
    except SurefootError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
