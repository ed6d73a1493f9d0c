"""A pair whose time is counted, not measured: a prefill takes ten seconds, a forward one, everything else none."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import torch
from tests.factories import make_tokenizer
from tests.tables import TableCache, TableTarget
from tokenizers import Tokenizer as Core

from surefoot.bench.answers import Answer, Comparison
from surefoot.bench.arms import arms
from surefoot.bench.questions import Question
from surefoot.bench.run import Settings, measure
from surefoot.chat import ChatTemplate
from surefoot.drafters.lookup import Lookup
from surefoot.engine import Engine
from surefoot.options import SamplingParams, SpeculativeOptions
from surefoot.protocols import DrafterModel
from surefoot.text import Tokenizer
from surefoot.types import Capture, DraftTree, TargetOutput, Tokens

VOCABULARY = 300
PREFILL, FORWARD = 10.0, 1.0

CHARACTERS = frozenset(bytes([code]) for code in range(0x21, 0x7F))

QUESTIONS = (
    Question(name="a", kind="one", turns=("for index in values:\n",), prediction="print(index, value)\n" * 3),
    Question(name="b", kind="one", turns=("class Point:\n",)),
    Question(name="c", kind="two", turns=("The quick brown fox",)),
)


class TimedTarget(TableTarget):
    """Repeats itself, since only the last token counts; ``now`` is its clock, and ``lasting`` what a forward takes."""

    def __init__(self, *, seed: int = 0, context_length: int = 400) -> None:
        super().__init__(VOCABULARY, context_length, seed=seed, order=1)
        codes = [token for token in range(VOCABULARY) if tokenizer().token_bytes(token) in CHARACTERS]
        self.silent = torch.ones(VOCABULARY, dtype=torch.bool).index_fill(0, torch.tensor(codes), False)
        self.now = 0.0
        self.lasting: Callable[[int], float] = lambda rows: FORWARD
        self.corrupt = False

    def row(self, context: Sequence[int]) -> torch.Tensor:
        """One law after each token; only printing characters, so that ids and text say the same."""
        return super().row(context).masked_fill(self.silent, -torch.inf)

    def prefill(
        self, tokens: Sequence[int], cache: TableCache, capture: Capture
    ) -> Iterator[tuple[Tokens, TargetOutput]]:
        self.now += PREFILL
        yield from super().prefill(tokens, cache, capture)

    def score(self, rounds: Sequence[tuple[DraftTree, TableCache]], capture: Capture) -> list[TargetOutput]:
        self.now += self.lasting(sum(len(tree) for tree, _ in rounds))
        outs = super().score(rounds, capture)
        if not self.corrupt:
            return outs
        # A row that was computed beside others comes out otherwise, as no row-exact target's may.
        return [out if len(out.logits) == 1 else TargetOutput(logits=out.logits.roll(1, -1)) for out in outs]


@cache
def tokenizer(template: str | None = None) -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        core = Core.from_file(str(make_tokenizer(Path(folder), VOCABULARY)))
    return Tokenizer(core, chat_template=None if template is None else ChatTemplate({"default": template}, {}))


def engine_of(target: TimedTarget, drafter: DrafterModel | None = None, template: str | None = None) -> Engine:
    return Engine(target, Lookup() if drafter is None else drafter, tokenizer(template))


def settings_of(
    engine: Engine, *, temperatures: Sequence[float] = (0.0,), repeats: int = 1, max_tokens: int = 40, raw: bool = True
) -> Settings:
    return Settings(
        arms=arms(engine, (), SpeculativeOptions(num_draft=4)),
        sampling=tuple(SamplingParams(temperature=heat, max_tokens=max_tokens, seed=7) for heat in temperatures),
        repeats=repeats,
        raw=raw,
    )


def run(
    target: TimedTarget,
    settings: Settings | None = None,
    questions: Sequence[Question] = QUESTIONS,
    *,
    engine: Engine | None = None,
    on_answer: Callable[[Answer], None] | None = None,
) -> list[Comparison]:
    """Measures by the target's own clock."""
    engine = engine_of(target) if engine is None else engine
    settings = settings_of(engine) if settings is None else settings
    return list(measure(engine, questions, settings, clock=lambda: target.now, on_answer=on_answer))
