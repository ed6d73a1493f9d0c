"""What a request may ask for, times target, drafter and temperature: each cell is exact or the table says so.

Every cell is compared with a reference that shares neither loop nor cache with the engine: it reads the whole text
again for each token and cuts the answer by the plain words of the options. ``python -m tests.matrix`` runs all cells
and writes ``docs/exactness.md``; ``tests/test_matrix.py`` holds both together.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TypeVar

from tests.matrix_pairs import PROMPT, VOCAB, WAYS, drafter_of, target_of, tokenizer
from torch import Tensor

from surefoot import Engine, SamplingParams, SpeculativeOptions
from surefoot.request import Result
from surefoot.sampling import RequestSampler
from surefoot.types import Capture, Tokens

DOCUMENT = Path(__file__).parent.parent / "docs" / "exactness.md"
DRAFTERS = tuple(WAYS)
TEMPERATURES = (0.0, 0.8)
NUM_TOKENS = 28


@dataclass(frozen=True)
class Cell:
    """One request as the engine answered it and as the reference does, and what was drafted for it."""

    ours: object
    expected: object
    results: Sequence[Result]

    @property
    def exact(self) -> bool:
        return self.ours == self.expected and all(result.stats.fallbacks == 0 for result in self.results)

    @property
    def accepted(self) -> int:
        return sum(result.stats.accepted for result in self.results)


@dataclass
class Bench:
    """A pair, and the way a feature asks it."""

    kind: str
    drafter: str
    temperature: float
    eos: Tokens = ()
    results: list[Result] = field(default_factory=list)

    def engine(self) -> Engine:
        return Engine(target_of(self.kind), drafter_of(self.drafter, self.kind), tokenizer(), eos_token_ids=self.eos)

    @property
    def speculative(self) -> SpeculativeOptions:
        return WAYS[self.drafter]

    def params(self, **options: object) -> SamplingParams:
        known: dict[str, object] = {"temperature": self.temperature, "max_tokens": NUM_TOKENS, "seed": 13}
        return SamplingParams(**(known | options))  # type: ignore[arg-type]

    def ask(self, params: SamplingParams, prediction: Tokens | None = None) -> Result:
        result = self.engine().generate(PROMPT, params, speculative=self.speculative, prediction=prediction)
        self.results.append(result)
        return result

    def answer(self) -> Tokens:
        """What plain decoding says without further options."""
        return self.reference(self.params(), ())[0]

    def reference(self, params: SamplingParams, eos: Tokens = ()) -> Account:
        return reference(self.kind, PROMPT, params, eos)

    def cell(self, *variants: SamplingParams) -> Cell:
        ours = [account(self.ask(params)) for params in variants]
        return Cell(ours, [self.reference(params, self.eos) for params in variants], self.results)


@cache
def row_after(kind: str, text: Tokens) -> Tensor:
    """The target's logits after a whole text, read afresh."""
    target = target_of(kind)
    (*_, (_, out)) = target.prefill(text, target.new_cache(len(text)), Capture())
    assert out.logits is not None
    return out.logits[-1].clone()


Item = TypeVar("Item", int, str)
Account = tuple[Tokens, str, str, int | str | None, tuple[object, ...]]


def account(result: Result) -> Account:
    """What the reference gives too; token counts have to agree with the ids."""
    assert result.usage.completion_tokens == len(result.tokens) == len(result.events)
    assert "".join(event.text for event in result.events) == result.text
    scores = tuple(
        event.logprobs and (event.logprobs.rank, [token for token, _ in event.logprobs.top]) for event in result.events
    )
    return result.tokens, result.text, result.finish_reason, result.stop_reason, scores


def reference(kind: str, prompt: Tokens, params: SamplingParams, eos: Tokens) -> Account:
    """The answer by the words of the options, one whole reading of the text per token."""
    ids = {*params.stop_token_ids, *(() if params.ignore_eos else eos)}
    sampler = RequestSampler(params, prompt, seed=params.seed or 0, vocab_size=VOCAB, stop_ids=ids)
    tokens: list[int] = []
    scores: list[object] = []
    reason: str = "length"
    stop: int | str | None = None
    while len(tokens) < params.max_tokens:
        row = row_after(kind, (*prompt, *tokens))
        tokens.append(sampler.draw(row))
        sampler.advance(tokens[-1:])
        scores.append(_score(row, tokens[-1], params.logprobs))
        if len(tokens) <= params.min_tokens:
            continue
        if tokens[-1] in ids:
            reason, stop = "stop", tokens[-1] if tokens[-1] in params.stop_token_ids else None
            return tuple(tokens), _text(tokens[:-1]), reason, stop, tuple(scores)
        known = len(_text(tokens[: params.min_tokens]))  # what ends within the first min_tokens does not count
        found = [
            (place, word)
            for word in params.stop
            if (place := _text(tokens).find(word, max(0, known - len(word) + 1))) >= 0
        ]
        if found:
            place, word = min(found)
            return tuple(tokens), _text(tokens)[:place], "stop", word, tuple(scores)
    return tuple(tokens), _text(tokens), reason, stop, tuple(scores)


def _text(tokens: Sequence[int]) -> str:
    return tokenizer().decode(tokens)


def _score(row: Tensor, token: int, num_top: int | None) -> object:
    if num_top is None:
        return None
    order = sorted(range(len(row)), key=lambda i: (-float(row[i]), i))
    return order.index(token) + 1, order[:num_top]


def _latest(items: Sequence[Item], count: int) -> list[Item]:
    """The ``count`` items that come up for the first time last."""
    return list(dict.fromkeys(items))[-count:]


Feature = Callable[[Bench], Cell]
FEATURES: dict[str, Feature] = {}


def feature(name: str) -> Callable[[Feature], Feature]:
    def register(build: Feature) -> Feature:
        FEATURES[name] = build
        return build

    return register


@feature("stop strings")
def _(bench: Bench) -> Cell:
    text = _text(bench.answer())
    words = [word for word in _latest([text[i : i + 2] for i in range(len(text) - 1)], 6) if "\ufffd" not in word]
    return bench.cell(*(bench.params(stop=(word, "never found")) for word in words), bench.params(stop=tuple(words)))


@feature("stop ids")
def _(bench: Bench) -> Cell:
    return bench.cell(*(bench.params(stop_token_ids=(token,)) for token in _latest(bench.answer(), 3)))


@feature("EOS inside a run")
def _(bench: Bench) -> Cell:
    """The EOS is a token that was accepted in the middle of a round."""
    free = bench.ask(bench.params())
    inside = [
        now.token for now, after in zip(free.events[1:], free.events[2:], strict=False) if now.round == after.round
    ]
    bench.eos = tuple(inside[-2:-1]) if inside else (free.tokens[9],)
    return bench.cell(bench.params(), bench.params(ignore_eos=True))


@feature("max_tokens")
def _(bench: Bench) -> Cell:
    return bench.cell(*(bench.params(max_tokens=count) for count in (0, 1, 2, 3, 4, 5, 6, 7, NUM_TOKENS)))


@feature("min_tokens")
def _(bench: Bench) -> Cell:
    bench.eos = bench.answer()[2:4]
    text = _text(bench.answer())
    return bench.cell(bench.params(min_tokens=9), bench.params(min_tokens=9, ignore_eos=True, stop=(text[3],)))


PROCESSORS: dict[str, dict[str, object]] = {
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
    "repetition_penalty": {"repetition_penalty": 1.05},
    "presence_penalty": {"presence_penalty": 0.4},
    "frequency_penalty": {"frequency_penalty": 0.1},
    "logit_bias": {"logit_bias": {60: 1.5, 9: -2.0}},
    "forbidden_tokens": {"forbidden_tokens": (60, 83)},
    "allowed_tokens": {"allowed_tokens": tuple(range(0, VOCAB, 2))},
}
for _name, _options in PROCESSORS.items():
    FEATURES[_name] = lambda bench, options=_options: bench.cell(bench.params(**options))  # type: ignore[misc]


@feature("logprobs")
def _(bench: Bench) -> Cell:
    return bench.cell(bench.params(logprobs=3, top_k=20), bench.params(logprobs=0))


@feature("prompt_logprobs")
def _(bench: Bench) -> Cell:
    scored = bench.ask(bench.params(prompt_logprobs=1)).prompt_logprobs or ()
    ours = [entry and (entry.token, round(math.exp(entry.logprob), 4)) for entry in scored]
    expected: list[object] = [None]
    for i, token in enumerate(PROMPT[1:], 1):
        expected.append((token, round(float(row_after(bench.kind, PROMPT[:i]).double().softmax(0)[token]), 4)))
    return Cell(ours, expected, bench.results)


@feature("n")
def _(bench: Bench) -> Cell:
    with bench.engine().samples(PROMPT, bench.params(), n=3, speculative=bench.speculative) as samples:
        list(samples)
    expected = [bench.reference(replace(bench.params(), sample_index=i)) for i in range(3)]
    return Cell([account(result) for result in samples.results], expected, samples.results)


@feature("prediction")
def _(bench: Bench) -> Cell:
    answer = bench.answer()
    edited = (*answer[:10], 1, 2, *answer[14:])
    predictions = (answer, edited, (7,) * 9)
    ours = [account(bench.ask(bench.params(), prediction)) for prediction in predictions]
    return Cell(ours, [bench.reference(bench.params())] * len(predictions), bench.results)


@feature("conversation reuse")
def _(bench: Bench) -> Cell:
    conversation = bench.engine().conversation()
    prompt, ours, expected = PROMPT, [], []
    for turn, cut in enumerate((None, None, -9, None)):
        params = bench.params(seed=13 + turn)
        result = conversation.generate(prompt, params, speculative=bench.speculative)
        bench.results.append(result)
        ours.append((account(result), result.usage.cached_tokens > 0))
        expected.append((reference(bench.kind, prompt, params, ()), turn > 0))
        prompt = (*(*prompt, *result.tokens)[:cut], 8, 60)
    return Cell(ours, expected, bench.results)


@feature("speculation off, per request")
def _(bench: Bench) -> Cell:
    changes: list[dict[str, object]] = [{"num_draft": 0}, {"method": "none"}, {"num_draft": 7}]
    options = [replace(bench.speculative, **change) for change in changes]  # type: ignore[arg-type]
    ours = [account(bench.engine().generate(PROMPT, bench.params(), speculative=choice)) for choice in options]
    bench.ask(bench.params())
    return Cell(ours, [bench.reference(bench.params())] * len(options), bench.results)


def cell(name: str, kind: str, drafter: str, temperature: float) -> Cell:
    """Runs one cell."""
    return FEATURES[name](Bench(kind, drafter, temperature))


def render(verdicts: Callable[[str, str, str, float], str]) -> str:
    """The document, each cell as ``verdicts`` has it."""
    columns = [(drafter, temperature) for drafter in DRAFTERS for temperature in TEMPERATURES]
    head = " | ".join(f"{drafter}, T = {temperature:g}" for drafter, temperature in columns)
    lines = []
    for kind, title in TITLES.items():
        lines += [f"## {title}", "", f"| a request with | {head} |", "|" + " --- |" * (len(columns) + 1)]
        for name in FEATURES:
            lines.append(f"| {name} | " + " | ".join(verdicts(name, kind, *column) for column in columns) + " |")
        lines.append("")
    return INTRODUCTION + "\n".join(lines)


INTRODUCTION = """# What stays exact

Written by `python -m tests.matrix` after running every cell; `make test` runs them again and fails where this page and
the outcome differ. `exact` means: ids, text, finish reason, stop reason, the ranks and tops of logprobs and the token
counts are those of a reference that speculates nothing, keeps no cache and reads the whole text again for each token.
In every cell with a drafter drafts were accepted, and no drafter was dropped.

Targets are random models with row-exact arithmetic in fp32 (`exact="require"`); the draft model is the same one with
its weights shaken, and the DFlash drafter has learnt a few of the target's answers: chains of 4, and trees of 12, at
most 3 side by side.

"""
TITLES = {"dense": "A target with attention alone", "hybrid": "A hybrid of delta layers and attention"}


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    yield lambda text: print(text, end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def verdict(found: Cell, drafter: str) -> str:
    """``exact``, or what is wrong with the cell."""
    if not found.exact:
        return "**differs**"
    return "exact" if drafter == "none" or found.accepted > 0 else "nothing accepted"


def main() -> None:
    """Runs all cells and writes the document."""
    with _progress() as show:

        def run(name: str, kind: str, drafter: str, temperature: float) -> str:
            show(".")
            return verdict(cell(name, kind, drafter, temperature), drafter)

        DOCUMENT.write_text(render(run), encoding="utf-8")


if __name__ == "__main__":
    main()
