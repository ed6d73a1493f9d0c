"""``surefoot generate``: completes one prompt, shows where each token came from, and measures the gain."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from surefoot.cli.flags import LOAD, SAMPLING, SPECULATIVE, Source, command_of
from surefoot.cli.pair import Pair
from surefoot.cli.show import Printer, show_notes, summary, tokens_per_second
from surefoot.errors import OptionError
from surefoot.opening import Prompt
from surefoot.options import LoadOptions, SamplingParams, SpeculativeOptions
from surefoot.request import Result, Stream

MEASURED_BY_DEFAULT = 256
"""Requests of at most this many tokens are run a second time, plainly, unless told otherwise."""
WARMING_TOKENS = 8
DIFFERS = (
    "the plain text differs: this target's rows are not bit-exact beside others; judge with surefoot prove, or use "
    "--exact require"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """What to complete, and how to show it."""

    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="The prompt; else a file or stdin.")
    ] = None
    prompt_file: Annotated[Path | None, typer.Option("--prompt-file", metavar="FILE", help="Reads the prompt.")] = None
    chat: Annotated[bool, typer.Option("--chat", help="The prompt is a user's message; renders the chat template.")] = (
        False
    )
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="A system message, with --chat.")] = (
        None
    )
    prediction: Annotated[
        Path | None,
        typer.Option(
            "--prediction",
            metavar="FILE",
            help="A text the answer will largely repeat, such as the file being edited; drafted from with any method.",
        ),
    ] = None
    measure_plain: Annotated[
        bool | None,
        typer.Option(
            "--measure-plain/--no-measure-plain",
            help=f"Run the request again plainly to compare; by default up to {MEASURED_BY_DEFAULT} tokens.",
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False

    def __post_init__(self) -> None:
        if self.prompt is not None and self.prompt_file is not None:
            raise OptionError("--prompt and --prompt-file were both given; expected one of the two")
        if self.system is not None and not self.chat:
            raise OptionError("--system came without --chat; add --chat, or put the text into the prompt")

    def read(self) -> Prompt:
        """The prompt as the engine takes it."""
        text = self._text()
        if not self.chat:
            return text
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": text}]

    def read_prediction(self) -> str | None:
        """The predicted answer, if one was named."""
        return None if self.prediction is None else read_text(self.prediction, "--prediction")

    def _text(self) -> str:
        if self.prompt is not None:
            return self.prompt
        if self.prompt_file is not None:
            return read_text(self.prompt_file, "--prompt-file")
        if sys.stdin.isatty():
            raise OptionError("found no prompt; expected --prompt TEXT, --prompt-file FILE, or text on stdin")
        return sys.stdin.read()


def read_text(path: Path, flag: str) -> str:
    """A UTF-8 file named by a flag."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{flag} {path}: {error}; expected a readable UTF-8 file") from error


@command_of(Source(record=Pair), Source(record=Input), SAMPLING, SPECULATIVE, LOAD)
def command(
    pair: Pair, given: Input, sampling: SamplingParams, speculative: SpeculativeOptions, options: LoadOptions
) -> int:
    """Completes a prompt, shows where each token came from, and measures the gain.

    Text goes to stdout; the legend and the closing line go to stderr. The draft length is fixed: where drafts are
    rarely right, speculation is slower than plain decoding, and the closing line says so.
    """
    if given.prediction is not None and speculative.num_draft == 0:
        raise OptionError("--prediction came with --num-draft 0, which drafts nothing; expected at least 1")
    prompt, prediction = given.read(), given.read_prediction()
    measuring = _wants_plain(given, pair, sampling, speculative)
    engine = pair.load(options)
    if not given.as_json:
        show_notes(engine.notes)
    if measuring:  # so that neither run pays for warming up
        warm = replace(sampling, max_tokens=min(sampling.max_tokens, WARMING_TOKENS))
        engine.generate(prompt, warm, speculative=speculative, prediction=prediction)
    stream = engine.stream(prompt, sampling, speculative=speculative, prediction=prediction)
    result = _drain(stream) if given.as_json else _print(stream)
    plain = None
    if measuring:
        same = replace(sampling, seed=result.seed)
        plain = engine.generate(prompt, same, speculative=SpeculativeOptions(num_draft=0))
    if given.as_json:
        print(json.dumps(report(pair, engine.notes, result, plain), ensure_ascii=False))
        return 0
    if plain and speculative.acceptance == "match" and plain.tokens != result.tokens:
        print(DIFFERS, file=sys.stderr)
    times = times_plain(result, plain) if plain else None
    print(summary(result, speculative.num_draft, sampling.temperature, times), file=sys.stderr)
    return 0


def _wants_plain(given: Input, pair: Pair, sampling: SamplingParams, speculative: SpeculativeOptions) -> bool:
    if given.measure_plain is not None:
        return given.measure_plain
    speculating = speculative.num_draft > 0 and (pair.drafter != "none" or given.prediction is not None)
    return speculating and sampling.max_tokens <= MEASURED_BY_DEFAULT


def _drain(stream: Stream) -> Result:
    with stream:
        for _ in stream:
            pass
    return stream.result


def _print(stream: Stream) -> Result:
    """Prints the text as it comes; interrupted, the line ends where the text did."""
    printer = Printer(sys.stdout)
    try:
        with stream:
            for event in stream:
                printer.show(event)
    finally:
        printer.end()
    return stream.result


def times_plain(result: Result, plain: Result) -> float | None:
    """How many times as many tokens a second as plain decoding; None where a run had no rounds to time."""
    baseline = tokens_per_second(plain)
    speed = tokens_per_second(result)
    return speed / baseline if baseline and speed else None


def report(pair: Pair, notes: Sequence[str], result: Result, plain: Result | None) -> dict[str, object]:
    """The JSON object of a request."""
    measured = plain and {
        "tokens_per_second": tokens_per_second(plain),
        "times_plain": times_plain(result, plain),
        "same_tokens": plain.tokens == result.tokens,
    }
    return {
        "model": pair.model,
        "drafter": pair.drafter,
        "notes": notes,
        "text": result.text,
        "tokens": result.tokens,
        "origins": [event.origin for event in result.events],
        "finish_reason": result.finish_reason,
        "seed": result.seed,
        "usage": {**asdict(result.usage), "total_tokens": result.usage.total_tokens},
        "stats": {**asdict(result.stats), "mean_acceptance_length": result.stats.mean_acceptance_length},
        "tokens_per_second": tokens_per_second(result),
        "plain": measured,
    }
