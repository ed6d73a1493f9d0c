"""``surefoot prove``: runs a pair with and without speculation and compares the tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from surefoot.cli.flags import LOAD, SPECULATIVE, Source, command_of
from surefoot.cli.pair import Pair
from surefoot.cli.show import progress_bar, show_notes
from surefoot.errors import OptionError
from surefoot.options import LoadOptions, SamplingParams, SpeculativeOptions
from surefoot.prompts import builtin, read
from surefoot.prove import Case, Conclusion, Difference, Proof, Settings, prove
from surefoot.provenance import Provenance

EXIT_CODES: dict[Conclusion, int] = {"identical": 0, "divergence": 1, "near-tie": 3, "not speculating": 4}
DEFAULT_TEMPERATURES = (0.0, 0.8)

_SAMPLING = Source(
    record=SamplingParams,
    only=(
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "max_tokens",
        "ignore_eos",
    ),
    defaults={"max_tokens": 128},
)
_SPECULATIVE = Source(
    record=SpeculativeOptions, only=("num_draft", "tree_width", "draft_sampling"), names=SPECULATIVE.names
)
_LOAD = Source(record=LoadOptions, only=LOAD.only, defaults={"exact": "require"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much to run."""

    prompts: Annotated[
        Path | None, typer.Option("--prompts", metavar="FILE", help="One per line, JSON in .jsonl; else built-in ones.")
    ] = None
    limit: Annotated[int | None, typer.Option("--limit", help="At most this many prompts.")] = None
    temperature: Annotated[
        tuple[float, ...], typer.Option("--temperature", help="May be repeated; by default 0 and 0.8.")
    ] = ()
    seeds: Annotated[int, typer.Option("--seeds", help="Seeds per temperature above 0: 0, 1, ...")] = 1
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False

    def __post_init__(self) -> None:
        for flag, value in (("--limit", self.limit), ("--seeds", self.seeds)):
            if value is not None and value < 1:
                raise OptionError(f"{flag} is {value}; expected at least 1")

    def settings(self, sampling: SamplingParams, speculative: SpeculativeOptions) -> Settings:
        """Every temperature, those above 0 with every seed."""
        warm = [replace(sampling, temperature=temperature) for temperature in self.temperature or DEFAULT_TEMPERATURES]
        runs = [replace(one, seed=seed) for one in warm for seed in range(1 if one.greedy else self.seeds)]
        return Settings(sampling=tuple(runs), speculative=speculative)


@command_of(Source(record=Pair), Source(record=Extent), _SAMPLING, _SPECULATIVE, _LOAD)
def command(
    pair: Pair, extent: Extent, sampling: SamplingParams, speculative: SpeculativeOptions, options: LoadOptions
) -> int:
    """Runs your own pair with and without speculation and compares the tokens.

    Exit codes: 0 identical; 1 real divergence; 3 near-ties only; 4 nothing was speculated, so nothing is proved.
    """
    if pair.drafter == "none" or speculative.num_draft == 0:
        raise OptionError("found nothing to speculate with; expected lookup or a draft model, and --num-draft above 0")
    settings = extent.settings(sampling, speculative)
    given = None if extent.prompts is None else read(extent.prompts)
    engine = pair.load(options)
    if not extent.as_json:
        show_notes(engine.notes)
    prompts = (builtin(engine.tokenizer) if given is None else given)[: extent.limit]
    with progress_bar() as progress:
        bar = progress.add_task("proving", total=len(prompts) * len(settings.sampling))

        def done(case: Case) -> None:
            progress.advance(bar)
            if not extent.as_json:
                progress.print(_line(case), markup=False, highlight=False, soft_wrap=True)

        proof = prove(engine, prompts, settings, done)
    if extent.as_json:
        named = {"model": pair.model, "drafter": pair.drafter, "notes": engine.notes}
        modes = {"exact": options.exact, "dtype": options.dtype}
        provenance = Provenance.collect(options.device).as_json()
        print(json.dumps({**named, **modes, **proof.as_json(), "provenance": provenance}))
    else:
        print(*summary(proof, options), sep="\n")
    return EXIT_CODES[proof.conclusion]


def _line(case: Case) -> str:
    """What is told of a case on stderr while the proof runs."""
    what = f"{case.num_tokens} tokens  {case.accepted} of {case.drafted} drafts accepted  {case.outcome}"
    return f"prompt {case.prompt}  T={case.temperature:g}  seed {case.seed}  {what}"


def summary(proof: Proof, options: LoadOptions) -> list[str]:
    """What was run, each difference, and the verdict."""
    cases = proof.cases
    rounds = sum(case.rounds for case in cases)
    accepted = sum(case.accepted for case in cases)
    exactness = "row-exact" if proof.strict else f"logits drift by {proof.drift:.2g} with the number of rows"
    lines = [
        f"{len(cases)} answers, {sum(case.num_tokens for case in cases)} tokens, exact={options.exact}, {exactness}",
        f"{accepted} drafts accepted in {rounds} rounds: mean acceptance length {1 + accepted / max(rounds, 1):.2f}",
    ]
    for case in cases:
        if case.difference is not None:
            place = f"prompt {case.prompt}, T={case.temperature:g}, seed {case.seed}"
            lines.append(f"{place}: {_difference(case.difference)}")
    return [*lines, f"verdict: {_VERDICTS[proof.conclusion]}"]


_VERDICTS: dict[Conclusion, str] = {
    "identical": "identical: speculation changed no token",
    "near-tie": "near-ties only: rounding decided between equals; --exact require removes them",
    "divergence": "REAL DIVERGENCE: speculation changed tokens that rounding does not explain; please report this",
    "not speculating": (
        "not speculating: at some temperature no draft was accepted, or the drafter failed, so nothing is proved"
    ),
}


def _difference(difference: Difference) -> str:
    gap = "never drawn plainly" if difference.gap is None else f"gap {difference.gap:.3g}"
    again = "" if difference.reproduced else ", and plain decoding did not draw its own token again"
    return (
        f"token {difference.index} is {difference.plain} plainly and {difference.speculative} speculatively: "
        f"{difference.outcome} ({gap}, rounding explains {difference.threshold:.3g}{again})"
    )
