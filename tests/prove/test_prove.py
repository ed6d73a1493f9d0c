"""What ``prove`` concludes: equal answers, planted defects, planted near-ties, and runs that prove nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from tests.guesses import Guesser
from tests.tables import TableCache, TableTarget
from torch import Tensor

from surefoot import Engine, SamplingParams, SpeculativeOptions
from surefoot.drafters.lookup import Lookup
from surefoot.opening import Prompt
from surefoot.prove import Proof, Settings, prove
from surefoot.request import Result
from surefoot.types import Capture, DraftTree, TargetOutput, Verdict, host_tokens

PROMPTS = ((1, 2, 3, 1, 2), (0, 4, 0, 4))
GREEDY = Settings(sampling=(SamplingParams(max_tokens=24, seed=0),), speculative=SpeculativeOptions())
BOTH = replace(
    GREEDY,
    sampling=(*GREEDY.sampling, *(SamplingParams(temperature=0.8, max_tokens=24, seed=seed) for seed in range(3))),
)
TIE = 1e-6
NUDGE = 1e-5


class LooseTarget(TableTarget):
    """A target that is not row-exact: ``disturb`` changes its rows wherever several are computed at once."""

    strict = False

    def __init__(self, disturb: Callable[[Tensor], Tensor], tied: bool = False) -> None:
        super().__init__(order=1)
        self.disturb = disturb
        self.tied = tied

    def row(self, context: Sequence[int]) -> Tensor:
        row = super().row(context)
        if self.tied:
            first, second = row.topk(2).indices.sort().values.tolist()
            row[first] = row.max()
            row[second] = row[first] - TIE
        return row

    def score(self, rounds: Sequence[tuple[DraftTree, TableCache]], capture: Capture) -> list[TargetOutput]:
        outs = super().score(rounds, capture)
        disturbed = [out.logits if len(out.logits) == 1 else self.disturb(out.logits) for out in outs]
        return [TargetOutput(logits=logits) for logits in disturbed]

    def embed(self, tokens: Tensor) -> Tensor:
        return torch.zeros(*tokens.shape, 2, dtype=torch.float32)


def nudge(logits: Tensor) -> Tensor:
    """Moves every logit by as much as rounding in fp32 might, towards the higher ids."""
    return logits + torch.linspace(0, NUDGE, logits.shape[-1], dtype=logits.dtype)


def lookup_engine(target: TableTarget) -> Engine:
    return Engine(target, Lookup(min_match=1))


def prove_tables(engine: Engine, settings: Settings = GREEDY) -> Proof:
    proof = prove(engine, PROMPTS, settings)
    assert len(proof.cases) == len(PROMPTS) * len(settings.sampling)
    return proof


def test_an_exact_pair_is_identical_at_every_temperature() -> None:
    proof = prove_tables(lookup_engine(TableTarget(order=1)), BOTH)
    assert proof.conclusion == "identical"
    assert proof.count("identical") == len(proof.cases)
    assert all(case.fallbacks == 0 for case in proof.cases)
    assert sum(case.accepted for case in proof.cases) > 0
    assert proof.drift == 0


def test_equal_answers_without_accepted_drafts_prove_nothing() -> None:
    silent = Guesser(lambda context: [])
    assert prove_tables(Engine(TableTarget(), silent)).conclusion == "not speculating"
    wrong = TableTarget()
    always_wrong = Guesser(lambda context: [[(int(wrong.row(context).argmax()) + 1) % 5]])
    proof = prove_tables(Engine(wrong, always_wrong))
    assert sum(case.drafted for case in proof.cases) > 0
    assert proof.conclusion == "not speculating"


def test_one_silent_temperature_is_enough_to_prove_nothing() -> None:
    target = TableTarget()
    greedy_only = Guesser(lambda context: [[int(target.row(context).argmax())]])
    hot = SamplingParams(temperature=20.0, max_tokens=1, seed=0)
    proof = prove_tables(Engine(target, greedy_only), replace(GREEDY, sampling=(*GREEDY.sampling, hot)))
    assert sum(case.accepted for case in proof.cases) > 0
    assert proof.conclusion == "not speculating"


def test_a_dropped_drafter_proves_nothing() -> None:
    target = TableTarget()

    def right_then_broken(context: Sequence[int]) -> list[list[int]]:
        if len(context) > 12:
            raise ValueError("no more")
        return [[int(target.row(context).argmax())]]

    with pytest.warns(RuntimeWarning, match="dropped"):
        proof = prove_tables(Engine(target, Guesser(right_then_broken)))
    assert sum(case.accepted for case in proof.cases) > 0
    assert proof.count("identical") == len(proof.cases)
    assert proof.conclusion == "not speculating"


@pytest.mark.parametrize("settings", [GREEDY, BOTH])
def test_rows_that_are_wrong_beside_others_are_a_divergence(settings: Settings) -> None:
    proof = prove_tables(lookup_engine(LooseTarget(lambda logits: logits.roll(1, -1))), settings)
    assert proof.conclusion == "divergence"
    difference = next(case.difference for case in proof.cases if case.difference)
    assert difference.reproduced
    assert difference.gap is None or difference.gap > difference.threshold


def test_a_verifier_that_accepts_anything_is_a_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    def accept_all(tree: DraftTree, logits: Tensor, sampler: object) -> Verdict:
        path = tuple(range(len(tree)))
        fed = tuple(host_tokens(tree.tokens))
        return Verdict(
            path=path, fed=fed, next_token=int(logits[-1].argmax()), next_origin="bonus", num_drafted=len(path) - 1
        )

    monkeypatch.setattr("surefoot.opening.verify", accept_all)
    monkeypatch.setattr("surefoot.opening.verify_reject", accept_all)
    wrong = Guesser(lambda context: [[0, 0, 0]])
    assert prove_tables(Engine(TableTarget(), wrong)).conclusion == "divergence"


def test_an_answer_that_ends_early_is_a_divergence() -> None:
    class Hasty(Engine):
        def generate(
            self, prompt: Prompt, params: SamplingParams, *, speculative: SpeculativeOptions, **rest: object
        ) -> Result:
            result = super().generate(prompt, params, speculative=speculative)
            return replace(result, tokens=result.tokens[:-1]) if speculative.num_draft else result

    proof = prove_tables(Hasty(TableTarget(order=1), Lookup(min_match=1)))
    assert proof.conclusion == "divergence"
    difference = proof.cases[0].difference
    assert difference is not None
    assert (difference.index, difference.speculative) == (23, None)


def test_a_target_that_does_not_repeat_itself_is_a_divergence() -> None:
    class Fickle(LooseTarget):
        def row(self, context: Sequence[int]) -> Tensor:
            return super().row(context).roll(self.num_forwards // 30)

    proof = prove_tables(lookup_engine(Fickle(nudge, tied=True)))
    assert proof.conclusion == "divergence"
    assert any(case.difference and not case.difference.reproduced for case in proof.cases)


def test_what_rounding_decides_is_a_near_tie() -> None:
    proof = prove_tables(lookup_engine(LooseTarget(nudge, tied=True)))
    assert proof.conclusion == "near-tie"
    assert 0 < proof.drift < 1.01 * NUDGE
    for case in proof.cases:
        assert case.outcome != "divergence"
        if case.difference:
            assert case.difference.gap == pytest.approx(TIE, rel=1e-3)
            assert case.difference.gap <= case.difference.threshold


def test_a_row_exact_target_has_no_near_ties() -> None:
    target = LooseTarget(nudge, tied=True)
    target.strict = True
    assert prove_tables(lookup_engine(target)).conclusion == "divergence"


def test_drift_beyond_rounding_excuses_nothing() -> None:
    target = LooseTarget(lambda logits: logits.roll(1, -1), tied=True)
    proof = prove_tables(lookup_engine(target))
    assert proof.drift > 1
    assert proof.conclusion == "divergence"
    assert max(case.difference.threshold for case in proof.cases if case.difference) < 1e-3


def test_the_report_is_strict_json_and_says_every_outcome() -> None:
    proof = prove_tables(lookup_engine(LooseTarget(lambda logits: logits.roll(1, -1))), BOTH)
    report = json.loads(json.dumps(proof.as_json(), allow_nan=False))
    assert report["conclusion"] == "divergence"
    assert [case["outcome"] for case in report["cases"]] == [case.outcome for case in proof.cases]


def test_cases_are_reported_as_they_are_done() -> None:
    seen = []
    proof = prove(lookup_engine(TableTarget(order=1)), PROMPTS, BOTH, seen.append)
    assert tuple(seen) == proof.cases
