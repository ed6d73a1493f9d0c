"""``surefoot explain``: replays one generation round by round."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from surefoot.cli.account import acceptance_length, acceptance_row, duration, time_row
from surefoot.cli.answers import answer_report
from surefoot.cli.flags import LOAD, SAMPLING, SPECULATIVE, Source, command_of
from surefoot.cli.generate import Input
from surefoot.cli.pair import Pair
from surefoot.cli.show import colored, colors_wanted, show_notes
from surefoot.errors import OptionError
from surefoot.explain import Explanation, Node, Round, explain
from surefoot.options import LoadOptions, SamplingParams, SpeculativeOptions

PHASES = ("draft", "score", "verify", "commit", "observe")
_INPUT = Source(record=Input, only=("prompt", "prompt_file", "chat", "system", "prediction", "as_json"))
_RANGE = re.compile(r"(\d*)(:?)(\d*)", re.ASCII)
_STYLE = re.compile("\x1b\\[[0-9;]*m")
_INDENT = " " * 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Which rounds to show."""

    rounds: Annotated[
        str, typer.Option("--rounds", metavar="A:B", help="Rounds A to B, both included; either may be left out.")
    ] = ":"

    def __post_init__(self) -> None:
        match = _RANGE.fullmatch(self.rounds)
        if not match or not self.rounds:
            raise OptionError(
                f"--rounds is {self.rounds!r}; expected A:B with numbers of rounds, A:, :B, or one number"
            )

    def of(self, rounds: Sequence[Round]) -> list[Round]:
        """Those that were asked for."""
        first, _, last = self.rounds.partition(":") if ":" in self.rounds else (self.rounds, ":", self.rounds)
        low, high = int(first or 1), int(last or len(rounds))
        return [one for one in rounds if low <= one.number <= high]


@command_of(Source(record=Pair), _INPUT, Source(record=Extent), SAMPLING, SPECULATIVE, LOAD)
def command(
    pair: Pair,
    given: Input,
    extent: Extent,
    sampling: SamplingParams,
    speculative: SpeculativeOptions,
    options: LoadOptions,
) -> int:
    """Replays one generation round by round: drafted, the target's own tokens, accepted, time by phase.

    Spaces in tokens show as ␣, newlines as \\n. Times are milliseconds; tok/s counts all rounds so far, without the
    prefill.
    """
    if given.prediction is not None and speculative.num_draft == 0:
        raise OptionError("--prediction came with --num-draft 0, which drafts nothing; expected at least 1")
    prompt, prediction = given.read(), given.read_prediction()
    engine = pair.load(options)
    if not given.as_json:
        show_notes(engine.notes)
    explanation = explain(engine, prompt, sampling, speculative=speculative, prediction=prediction)
    rounds = extent.of(explanation.rounds)
    if given.as_json:
        print(json.dumps(report(pair, engine.notes, explanation, rounds), ensure_ascii=False))
        return 0
    shown = [line for one in rounds for line in rows(one)]
    if not rounds and explanation.rounds:
        shown = [f"{_INDENT}none of the {len(explanation.rounds)} rounds is in {extent.rounds}"]
    lines = [beginning(explanation), header(), *shown, ""]
    text = "\n".join([*lines, *summary(explanation, sampling)])
    print(text if colors_wanted(sys.stdout) else _STYLE.sub("", text))
    return 0


def beginning(explanation: Explanation) -> str:
    """What was read before the first round, and the token drawn from it."""
    seconds, usage = explanation.result.stats.seconds, explanation.result.usage
    first = f"; the first token: {explanation.first.text}" if explanation.first else ""
    return f"prefill: {usage.prompt_tokens} tokens in {duration(seconds.prefill)}{first}"


def header() -> str:
    """The names above the columns of :func:`rows`."""
    return f"{'round':>5}  {'accepted':>8}" + "".join(f"{phase:>9}" for phase in PHASES) + f"{'ms':>9}{'tok/s':>9}"


def rows(one: Round) -> list[str]:
    """One round in lines: its numbers, its root, what was drafted, and the target's own tokens."""
    spent = [one.seconds[phase] * 1e3 for phase in PHASES]
    accepted = f"{one.accepted}/{len(one.drafted)}"
    times = "".join(f"{value:>9.2f}" for value in (*spent, sum(spent)))
    own = " ".join(colored(token.text, token.origin) for token in one.own)
    return [
        f"{one.number:>5}  {accepted:>8}{times}{one.tokens_per_second:>9.1f}",
        f"{_INDENT}root     {one.root.text}",
        *_drafted(one),
        f"{_INDENT}own      {own}  ({one.own[-1].origin})",
    ]


def _drafted(one: Round) -> list[str]:
    """A chain in a line, with a bar before what was rejected; a tree with a line per node, children indented."""
    if not one.drafted:
        return [f"{_INDENT}drafted  nothing"]
    if one.is_chain:
        stood = [_node(node) for node in one.drafted if node.accepted]
        fell = [_node(node) for node in one.drafted if not node.accepted]
        return [f"{_INDENT}drafted  {' '.join([*stood, '|', *fell] if fell else stood)}"]
    lines: list[str] = []
    depths = [0]
    children: dict[int, list[int]] = {}
    for number, node in enumerate(one.drafted, start=1):
        depths.append(depths[node.parent] + 1)
        children.setdefault(node.parent, []).append(number)
    waiting = [0]
    while waiting:
        number = waiting.pop()
        if number:
            node = one.drafted[number - 1]
            mark = "+" if node.accepted else "-"
            lines.append(f"{_INDENT}         {'  ' * (depths[number] - 1)}{mark} {_node(node)}")
        waiting += reversed(children.get(number, []))
    return [f"{_INDENT}drafted  + accepted, - rejected", *lines]


def _node(node: Node) -> str:
    return colored(node.text, "draft") if node.accepted else typer.style(node.text, fg="red")


def summary(explanation: Explanation, sampling: SamplingParams) -> list[str]:
    """What all rounds came to."""
    stats, tokens = explanation.result.stats, len(explanation.result.tokens)
    seed = "" if sampling.greedy else f", seed {explanation.result.seed}"
    lines = [
        f"{tokens} tokens in {stats.rounds} rounds, {stats.accepted} of {stats.drafted} drafts accepted, ended by "
        f"{explanation.result.finish_reason}{seed}",
        f"length    {acceptance_length(stats.rounds, stats.accepted)}",
        f"position  {acceptance_row(stats.drafted_by_position, stats.accepted_by_position)}",
        f"time      {time_row(stats.seconds)}",
    ]
    if stats.fallbacks:
        lines.append("the drafter failed and was dropped")
    return lines


def report(pair: Pair, notes: Sequence[str], explanation: Explanation, rounds: Sequence[Round]) -> dict[str, object]:
    """The JSON object of an explanation."""
    return {
        "model": pair.model,
        "drafter": pair.drafter,
        "notes": notes,
        **answer_report(explanation.result),
        "first": None if explanation.first is None else asdict(explanation.first),
        "rounds": [asdict(one) for one in rounds],
    }
