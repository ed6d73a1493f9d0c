"""``surefoot generate``: completes one prompt, shows where each token came from, and measures the gain."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated

import typer

from surefoot.cli.answers import (
    answer_report,
    plain_report,
    score_lines,
    speller,
    times_plain,
    trace_lines,
    trace_report,
)
from surefoot.cli.flags import LOAD, SAMPLING_NAMES, SPECULATIVE, Source, command_of
from surefoot.cli.pair import Pair
from surefoot.cli.show import Printer, show_notes, summary
from surefoot.engine import Engine
from surefoot.errors import OptionError
from surefoot.opening import Prompt
from surefoot.options import LoadOptions, SamplingParams, SpeculativeOptions
from surefoot.request import Result, Stream
from surefoot.stats import RoundRecord

MEASURED_BY_DEFAULT = 256
"""Requests of at most this many tokens are run a second time, plainly, unless told otherwise."""
WARMING_TOKENS = 8
DIFFERS = (
    "the plain text differs: this target's rows are not bit-exact beside others; judge with surefoot prove, or use "
    "--exact require"
)
_SAMPLING = Source(record=SamplingParams, names=SAMPLING_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """What to complete."""

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
        try:
            return sys.stdin.read()
        except UnicodeDecodeError as error:
            raise OptionError(f"standard input: {error}; expected UTF-8 text") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How many answers, and what is told of them."""

    num_samples: Annotated[
        int, typer.Option("--n", metavar="N", help="Answers; each is the one of its --sample-index alone.")
    ] = 1
    model_sampling: Annotated[
        bool,
        typer.Option(
            "--model-sampling",
            help="Sample as the model's own files recommend, where no flag or setting says otherwise; else greedy.",
        ),
    ] = False
    trace: Annotated[
        bool, typer.Option("--trace", help="Tell each round: drafted, the target's own tokens, accepted.")
    ] = False
    measure_plain: Annotated[
        bool | None,
        typer.Option(
            "--measure-plain/--no-measure-plain",
            help=f"Run the request again plainly to compare; by default up to {MEASURED_BY_DEFAULT} tokens.",
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise OptionError(f"--n is {self.num_samples}; expected at least 1")
        for flag, given in (("--trace", self.trace), ("--measure-plain", self.measure_plain)):
            if given and self.num_samples > 1:
                raise OptionError(f"{flag} came with --n {self.num_samples}; expected one answer to look at")


def read_text(path: Path, flag: str) -> str:
    """A UTF-8 file named by a flag."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{flag} {path}: {error}; expected a readable UTF-8 file") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request, ready to be sent."""

    engine: Engine
    prompt: Prompt
    prediction: str | None
    sampling: SamplingParams
    speculative: SpeculativeOptions

    def warm(self) -> None:
        """Runs the beginning of it, so that no measured run pays for warming up."""
        few = min(self.sampling.max_tokens, WARMING_TOKENS)
        beginning = replace(self.sampling, max_tokens=few, logprobs=None, prompt_logprobs=None)
        self.engine.generate(self.prompt, beginning, speculative=self.speculative, prediction=self.prediction)

    def stream(self, rounds: list[RoundRecord]) -> Stream:
        """The one answer; its rounds are added to ``rounds``."""
        return self.engine.stream(
            self.prompt,
            self.sampling,
            speculative=self.speculative,
            prediction=self.prediction,
            on_round=rounds.append,
        )

    def plainly(self, seed: int) -> Result:
        """The same answer without speculation."""
        same = replace(self.sampling, seed=seed)
        return self.engine.generate(self.prompt, same, speculative=SpeculativeOptions(num_draft=0))

    def samples(self, count: int) -> tuple[Result, ...]:
        """Several answers, read to their end."""
        with self.engine.samples(
            self.prompt, self.sampling, n=count, speculative=self.speculative, prediction=self.prediction
        ) as samples:
            for _ in samples:
                pass
        return samples.results


@command_of(Source(record=Pair), Source(record=Input), Source(record=Output), _SAMPLING, SPECULATIVE, LOAD)
def command(
    pair: Pair,
    given: Input,
    output: Output,
    sampling: SamplingParams,
    speculative: SpeculativeOptions,
    options: LoadOptions,
) -> int:
    """Completes a prompt, shows where each token came from, and measures the gain.

    Text goes to stdout; everything else goes to stderr. The draft length is fixed: where drafts are rarely right,
    speculation is slower than plain decoding, and the closing line says so.
    """
    if given.prediction is not None and speculative.num_draft == 0:
        raise OptionError("--prediction came with --num-draft 0, which drafts nothing; expected at least 1")
    prompt, prediction = given.read(), given.read_prediction()
    engine = pair.load(options)
    if output.model_sampling:
        sampling = model_sampling(engine.sampling_defaults, sampling, pair.origins)
    ask = Ask(engine=engine, prompt=prompt, prediction=prediction, sampling=sampling, speculative=speculative)
    heading: dict[str, object] = {"model": pair.model, "drafter": pair.drafter, "notes": engine.notes}
    if not given.as_json:
        show_notes(engine.notes)
    if output.num_samples > 1:
        return _several(ask, output.num_samples, heading if given.as_json else None)
    measuring = _wants_plain(given, output, pair, ask)
    if measuring:
        ask.warm()
    rounds: list[RoundRecord] = []
    stream = ask.stream(rounds)
    result = stream.read() if given.as_json else _print(stream)
    plain = ask.plainly(result.seed) if measuring else None
    if given.as_json:
        compared = plain and plain_report(result, plain)
        traced = trace_report(rounds) if output.trace else None
        print(json.dumps({**heading, **answer_report(result), "plain": compared, "trace": traced}, ensure_ascii=False))
        return 0
    spell = speller(engine.tokenizer)
    tell([*(trace_lines(rounds, spell) if output.trace else ()), *score_lines(result, spell)])
    if plain and speculative.acceptance == "match" and plain.tokens != result.tokens:
        tell([DIFFERS])
    tell([summary(result, speculative.num_draft, sampling.temperature, times_plain(result, plain) if plain else None)])
    return 0


def _several(ask: Ask, count: int, heading: dict[str, object] | None) -> int:
    """Answers ``count`` times; as JSON under a heading, else as text with a line before each."""
    results = ask.samples(count)
    if heading is not None:
        print(json.dumps({**heading, "samples": [answer_report(result) for result in results]}, ensure_ascii=False))
        return 0
    spell = speller(ask.engine.tokenizer)
    for result in results:
        print(f"--- sample {result.sample_index}\n{result.text}", flush=True)
        tell(score_lines(result, spell))
        tell([summary(result, ask.speculative.num_draft, ask.sampling.temperature, None)])
    return 0


def tell(lines: Iterable[str]) -> None:
    """Prints lines on stderr."""
    for line in lines:
        print(line, file=sys.stderr)


def model_sampling(own: SamplingParams, asked: SamplingParams, origins: Iterable[str]) -> SamplingParams:
    """``asked`` with the model's ``own`` values where they are not the defaults and nobody said otherwise."""
    said, default = set(origins), SamplingParams()
    names = [item.name for item in fields(SamplingParams) if item.name not in said]
    taken = {name: getattr(own, name) for name in names if getattr(own, name) != getattr(default, name)}
    return replace(asked, **taken)


def _wants_plain(given: Input, output: Output, pair: Pair, ask: Ask) -> bool:
    if output.measure_plain is not None:
        return output.measure_plain
    speculating = ask.speculative.num_draft > 0 and (pair.drafter != "none" or given.prediction is not None)
    return speculating and ask.sampling.max_tokens <= MEASURED_BY_DEFAULT


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
