"""Proves on a user's own pair that speculation changes no token, and says what it means where it does.

Every prompt is decoded plainly and speculatively by the same engine and compared. Where two answers part, the plain one
is fed again up to that place (``rescoring.py``). A gap of at most twice the drift, since both logits may move, is a
near-tie: rounding decided, and nothing was decided wrongly. Drift counts only as far as rounding can explain it. A
target known to be row-exact has none, so there no difference is excused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from surefoot.engine import Engine
from surefoot.opening import Prompt
from surefoot.options import SamplingParams, SpeculativeOptions
from surefoot.request import Result
from surefoot.rescoring import Rescoring, smallest_rise
from surefoot.sampling import RequestSampler
from surefoot.types import Tokens

Outcome = Literal["identical", "near-tie", "divergence"]
Conclusion = Literal["identical", "near-tie", "divergence", "not speculating"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How each prompt is decoded: once per entry of ``sampling``, plainly and with ``speculative``."""

    sampling: tuple[SamplingParams, ...]
    speculative: SpeculativeOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where two answers part.

    Attributes:
        index: the first emitted token that differs.
        plain, speculative: the two tokens; None where an answer had ended.
        gap: by how much the speculative token lost, in logits; None where plain decoding cannot draw it at all.
        threshold: the largest gap that rounding explains here.
        reproduced: whether plain decoding, fed again, drew its own token again.
    """

    index: int
    plain: int | None
    speculative: int | None
    gap: float | None
    threshold: float
    reproduced: bool

    @property
    def outcome(self) -> Outcome:
        """A near-tie, or a real divergence."""
        excused = self.gap is not None and self.reproduced and self.gap <= self.threshold
        return "near-tie" if excused else "divergence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One prompt under one setting: ``prompt`` counts the prompts from 0."""

    prompt: int
    temperature: float
    seed: int
    num_tokens: int
    rounds: int
    drafted: int
    accepted: int
    fallbacks: int
    difference: Difference | None

    @property
    def outcome(self) -> Outcome:
        """What came of it."""
        return "identical" if self.difference is None else self.difference.outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was run and what came of it.

    Attributes:
        cases: one per prompt and setting.
        strict: whether the target is known to be row-exact.
        drift: how far logits moved with the number of rows, on the first prompt.
    """

    cases: tuple[Case, ...]
    strict: bool
    drift: float

    def count(self, outcome: Outcome) -> int:
        """How many cases came out so."""
        return sum(case.outcome == outcome for case in self.cases)

    @property
    def conclusion(self) -> Conclusion:
        """The worst that was found. Equal answers prove nothing unless drafts were accepted at every temperature."""
        if self.count("divergence"):
            return "divergence"
        accepted: dict[float, int] = {}
        for case in self.cases:
            accepted[case.temperature] = accepted.get(case.temperature, 0) + case.accepted
        if not accepted or min(accepted.values()) == 0 or any(case.fallbacks for case in self.cases):
            return "not speculating"
        return "near-tie" if self.count("near-tie") else "identical"

    def as_json(self) -> dict[str, object]:
        """Everything, with conclusion and outcomes spelled out."""
        cases = [{**asdict(case), "outcome": case.outcome} for case in self.cases]
        return {"conclusion": self.conclusion, "strict": self.strict, "drift": self.drift, "cases": cases}


def prove(
    engine: Engine,
    prompts: Sequence[Prompt],
    settings: Settings,
    on_case: Callable[[Case], None] | None = None,
) -> Proof:
    """Decodes every prompt with and without speculation under every setting and compares.

    Args:
        engine: the pair.
        prompts: text, ids or chats.
        settings: what to decode them with; ``acceptance`` must be ``match``, which alone promises equal tokens.
        on_case: called with each case as it is done.
    """
    assert settings.speculative.acceptance == "match", settings
    cases: list[Case] = []
    drift = 0.0
    for index, prompt in enumerate(prompts):
        tokens = engine.encode(prompt)
        for sampling in settings.sampling:
            plain = engine.generate(tokens, sampling, speculative=replace(settings.speculative, num_draft=0))
            sampling = replace(sampling, seed=plain.seed)
            if not cases:
                drift = _rescoring(engine, tokens, sampling, settings.speculative.num_draft, plain).drift
            result = engine.generate(tokens, sampling, speculative=settings.speculative)
            difference = _difference(engine, tokens, sampling, settings.speculative.num_draft, (plain, result))
            cases.append(_case(index, sampling, result, difference))
            if on_case:
                on_case(cases[-1])
    return Proof(cases=tuple(cases), strict=engine.target.strict, drift=drift)


def _case(index: int, sampling: SamplingParams, result: Result, difference: Difference | None) -> Case:
    return Case(
        prompt=index,
        temperature=sampling.temperature,
        seed=result.seed,
        num_tokens=len(result.tokens),
        rounds=result.stats.rounds,
        drafted=result.stats.drafted,
        accepted=result.stats.accepted,
        fallbacks=result.stats.fallbacks,
        difference=difference,
    )


def _rescoring(engine: Engine, prompt: Tokens, sampling: SamplingParams, num_draft: int, plain: Result) -> Rescoring:
    """The plain answer fed again, in a cache made for what the request could have become."""
    length = min(len(prompt) + sampling.max_tokens, engine.target.context_length)
    return Rescoring.of(engine.target, prompt, plain.tokens[:-1], num_draft, length=length)


def _difference(
    engine: Engine, prompt: Tokens, sampling: SamplingParams, num_draft: int, results: tuple[Result, Result]
) -> Difference | None:
    plain, speculative = results
    if (plain.tokens, plain.text, plain.finish_reason) == (
        speculative.tokens,
        speculative.text,
        speculative.finish_reason,
    ):
        return None
    pairs = zip(plain.tokens, speculative.tokens, strict=False)
    common = min(len(plain.tokens), len(speculative.tokens))
    index = next((place for place, (ours, theirs) in enumerate(pairs) if ours != theirs), common)
    if index == common:  # one is the beginning of the other: no draw decided that
        ended = [result.tokens[index] if index < len(result.tokens) else None for result in results]
        return Difference(index=index, plain=ended[0], speculative=ended[1], gap=None, threshold=0.0, reproduced=False)
    rescoring = _rescoring(engine, prompt, sampling, num_draft, plain)
    row = rescoring.rows[index]
    sampler = RequestSampler(
        sampling,
        prompt,
        seed=plain.seed,
        vocab_size=engine.target.vocab_size,
        stop_ids={*sampling.stop_token_ids, *(() if sampling.ignore_eos else engine.eos_token_ids)},
    )
    sampler.advance(plain.tokens[:index])
    lost = speculative.tokens[index]
    gap = smallest_rise(row, lost, sampler.draw)
    return Difference(
        index=index,
        plain=plain.tokens[index],
        speculative=lost,
        gap=gap,
        threshold=0.0 if engine.target.strict else rescoring.threshold(engine.target, index),
        reproduced=sampler.draw(row) == plain.tokens[index],
    )
