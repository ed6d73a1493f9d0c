"""Predicts the speedup of a pair: a cost curve, a drafter's cost and acceptance, each measured apart.

Two measurements on the same texts: forwards of 1 to k + 1 rows, interleaved with drafts (``control/cost.py``); and
answers with and without speculation, whose counts give acceptance and whose clock gives what rounds cost beside their
forwards and drafts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from time import perf_counter

from torch import Tensor

from surefoot.control.cost import Clock, RoundCosts, measure_cost, wait_for
from surefoot.control.drafting import DraftTimer
from surefoot.control.forecast import Acceptance, Forecast, break_even, expected_speedup
from surefoot.engine import Engine
from surefoot.options import SamplingParams, SpeculativeOptions
from surefoot.protocols import Cache, DrafterModel, Target
from surefoot.request import Result
from surefoot.types import Capture, DraftTree, TargetOutput, Tokens

WARMING_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A forecast, and what it was made from.

    Attributes:
        num_draft: tokens drafted a round.
        costs: measured seconds.
        acceptance: how drafts fared.
        forecast: what the two come to, all texts together.
        by_text: the predicted speedup of each text, with its own acceptance.
        num_prompts, num_tokens: texts and tokens acceptance was measured on; it depends on the text.
        fallbacks: drafters that failed and were dropped meanwhile.
        observed: times plain of the very answers acceptance was counted on, each timed once, the median: a cross-check.
    """

    num_draft: int
    costs: RoundCosts
    acceptance: Acceptance
    forecast: Forecast
    by_text: tuple[float, ...]
    num_prompts: int
    num_tokens: int
    fallbacks: int
    observed: float

    @property
    def break_even(self) -> float | None:
        """The acceptance rate from which full rounds pay; None where they never do."""
        return break_even(self.costs, self.num_draft)

    def as_json(self) -> dict[str, object]:
        """Every part, with the ratios that follow from them."""
        return {
            **asdict(self),
            "speedup": self.forecast.speedup,
            "tokens_per_round": self.acceptance.tokens_per_round,
            "acceptance_by_position": self.acceptance.rates,
            "break_even_acceptance": self.break_even,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One answer, and the seconds from its first token to its end."""

    prompt: Tokens
    result: Result
    seconds: float

    @property
    def overhead(self) -> float:
        """Seconds a round took beside the target's forward and the draft."""
        stats = self.result.stats
        return (self.seconds - stats.seconds.score - stats.seconds.draft) / stats.rounds


class Awaited:
    """A target that returns from ``score`` when the logits are there, so that a device's seconds count as its own."""

    def __init__(self, target: Target) -> None:
        self._target = target

    @property
    def vocab_size(self) -> int:
        """The target's."""
        return self._target.vocab_size

    @property
    def context_length(self) -> int:
        """The target's."""
        return self._target.context_length

    @property
    def strict(self) -> bool:
        """The target's."""
        return self._target.strict

    def new_cache(self, length: int, *, spare: int = 0) -> Cache:
        """The target's."""
        return self._target.new_cache(length, spare=spare)

    def serves(self, cache: Cache, length: int) -> bool:
        """The target's."""
        return self._target.serves(cache, length)

    def prefill(self, tokens: Sequence[int], cache: Cache, capture: Capture) -> Iterator[tuple[Tokens, TargetOutput]]:
        """The target's."""
        return self._target.prefill(tokens, cache, capture)

    def score(self, rounds: Sequence[tuple[DraftTree, Cache]], capture: Capture) -> list[TargetOutput]:
        """The target's, waited for."""
        outs = self._target.score(rounds, capture)
        wait_for(outs[-1])
        return outs

    def embed(self, tokens: Tensor) -> Tensor:
        """The target's."""
        return self._target.embed(tokens)

    def unembed(self, hidden: Tensor) -> Tensor:
        """The target's."""
        return self._target.unembed(hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a prediction is measured with: prompts, how they are answered, how often a forward is timed."""

    prompts: tuple[Tokens, ...]
    params: SamplingParams
    speculative: SpeculativeOptions
    repeats: int = 9
    budget: float = 60.0
    """Seconds after which no further prompt is begun."""


def predict(engine: Engine, trial: Trial, *, clock: Clock = perf_counter) -> Prediction | None:
    """The predicted speedup of ``engine``'s pair on the trial's prompts; None where no answer has a round to count.

    Raises:
        SurefootError: a prompt cannot be served, or the drafter fails while it is timed.
    """
    assert engine.drafter is not None
    awaited = Engine(Awaited(engine.target), engine.drafter, eos_token_ids=engine.eos_token_ids)
    pairs = _answers(awaited, trial, clock)
    if not pairs:
        return None
    costs = replace(
        _costs(engine.target, engine.drafter, pairs, trial, clock),
        overhead=median(speculative.overhead for _, speculative in pairs),
        plain_overhead=median(plain.overhead for plain, _ in pairs),
    )
    acceptance = Acceptance.of([speculative.result.stats for _, speculative in pairs])
    num_tokens = sum(len(speculative.result.tokens) - 1 for _, speculative in pairs)
    by_text = (
        expected_speedup(costs, Acceptance.of([one.result.stats]), len(one.result.tokens) - 1) for _, one in pairs
    )
    return Prediction(
        num_draft=trial.speculative.num_draft,
        costs=costs,
        acceptance=acceptance,
        forecast=expected_speedup(costs, acceptance, round(num_tokens / len(pairs))),
        by_text=tuple(forecast.speedup for forecast in by_text),
        num_prompts=len(pairs),
        num_tokens=num_tokens,
        fallbacks=sum(speculative.result.stats.fallbacks for _, speculative in pairs),
        observed=median(plain.seconds / speculative.seconds for plain, speculative in pairs),
    )


def _answers(engine: Engine, trial: Trial, clock: Clock) -> list[tuple[Run, Run]]:
    """Plain and speculative answers in turn, warm, of those prompts whose answers have rounds."""
    plainly = replace(trial.speculative, num_draft=0)
    warm = replace(trial.params, max_tokens=min(trial.params.max_tokens, WARMING_TOKENS))
    for options in (plainly, trial.speculative):
        engine.generate(trial.prompts[0], warm, speculative=options)
    began = clock()
    pairs: list[tuple[Run, Run]] = []
    for prompt in trial.prompts:
        plain = _timed(engine, prompt, trial.params, plainly, clock)
        speculative = _timed(engine, prompt, trial.params, trial.speculative, clock)
        if plain.result.stats.rounds and speculative.result.stats.rounds:
            pairs.append((plain, speculative))
        if clock() - began > trial.budget:
            break
    return pairs


def _timed(
    engine: Engine, prompt: Tokens, params: SamplingParams, speculative: SpeculativeOptions, clock: Clock
) -> Run:
    with engine.stream(prompt, params, speculative=speculative) as stream:
        next(stream, None)
        began = clock()
        for _ in stream:
            pass
        seconds = clock() - began
    return Run(prompt=prompt, result=stream.result, seconds=seconds)


def _costs(
    target: Target, drafter: DrafterModel, pairs: Sequence[tuple[Run, Run]], trial: Trial, clock: Clock
) -> RoundCosts:
    """Costs in the middle of the median answer, on the text of the longest one."""
    texts = [(*plain.prompt, *plain.result.tokens) for plain, _ in pairs]
    middle = median(len(plain.prompt) + len(plain.result.tokens) / 2 for plain, _ in pairs)
    most = trial.speculative.num_draft + 1
    tokens = max(texts, key=len)[: max(2, min(int(middle), target.context_length - most))]
    timer = DraftTimer(drafter, target, tokens, clock=clock)
    try:
        curve = measure_cost(target, tokens, range(1, most + 1), repeats=trial.repeats, clock=clock, before=timer)
        return RoundCosts(target=curve, draft=timer.cost())
    finally:
        timer.close()
