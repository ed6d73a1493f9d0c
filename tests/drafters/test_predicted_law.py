"""A prediction beside a sampling drafter is exact in law under rejection, certain and sampled drafts in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.lossless.tables import PROMPT, TableDrafter
from tests.lossless.test_reject_law import BIASED, TOLERANCE, setting
from tests.tables import TableTarget

from surefoot.drafters.predicted import PredictedDrafter
from surefoot.protocols import Drafter, Sampler, Target
from surefoot.tree import chain
from surefoot.types import Capture, DraftTree, Plan, TargetOutput, Tokens


class Merged:
    """A prediction over a table drafter, which is put into a state by giving it a context."""

    capture = Capture()

    def __init__(self, table: TableTarget, prediction: Tokens) -> None:
        self.table = table
        self.prediction = prediction
        self.kinds: set[str] = set()
        self.context = []

    @property
    def context(self) -> list[int]:
        return self._context

    @context.setter
    def context(self, tokens: Sequence[int]) -> None:
        self._context: list[int] = []
        self.merged = self.made()
        self.observe(tokens[: len(PROMPT)], TargetOutput(logits=None), None)
        self.observe(tokens[len(PROMPT) :], TargetOutput(logits=None), range(len(tokens) - len(PROMPT)))

    def made(self) -> Drafter:
        return PredictedDrafter(self.prediction, TableDrafter(self.table))  # type: ignore[arg-type]

    def start(self, target: Target) -> Merged:
        self.context = []
        return self

    def observe(self, tokens: Sequence[int], out: TargetOutput, path: Sequence[int] | None) -> None:
        self._context += tokens
        self.merged.observe(tokens, out, path)

    def propose(self, root: int, plan: Plan, sampler: Sampler) -> DraftTree:
        tree = self.merged.propose(root, plan, sampler)
        if len(tree) > 1:
            self.kinds.add("sampled" if tree.q is not None else "certain")
        return tree

    def close(self) -> None:
        pass


@pytest.mark.parametrize("prediction", [(0, 1, 2, 0, 1), (2, 2, 1, 0), (1, 0, 0, 2, 1, 1)])
def test_the_law_is_that_of_plain_decoding(prediction: Tokens) -> None:
    for seed in range(2):
        usual = setting(2, 5, seed, repetition_penalty=1.3)
        drafter = Merged(usual.drafter.table, prediction)
        assert replace(usual, drafter=drafter).distance() < TOLERANCE  # type: ignore[arg-type]
        assert drafter.kinds == {"certain", "sampled"}


class Peeking(PredictedDrafter):
    """Prefers the prediction where the other drafter's sample is another one."""

    def propose(self, root: int, plan: Plan, sampler: Sampler) -> DraftTree:
        tree = self._inner.propose(root, plan, sampler)
        if len(tree) == 1 or tree.tokens[1] == 1:
            return tree
        return chain((root, 1))


class PeekingMerged(Merged):
    def made(self) -> Drafter:
        return Peeking(self.prediction, TableDrafter(self.table))  # type: ignore[arg-type]


def test_a_choice_that_looks_at_the_other_drafters_sample_is_seen() -> None:
    """Negative control."""
    usual = setting(2, 4, seed=0)
    drafter = PeekingMerged(usual.drafter.table, (1, 1))
    assert replace(usual, drafter=drafter).distance() > BIASED  # type: ignore[arg-type]
