"""``reject`` is exact in law: all branches of all choices of the production round are enumerated.

Targets and drafters are context-dependent tables over 3 tokens with exact zeros; sequences are depth + 3 long, so
further rounds follow every kind of commit. The distance to the plain law is total variation, 1e-12 at most in floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from tests.lossless.enumeration import Setting
from tests.lossless.tables import TableDrafter, ZeroTable
from tests.lossless.test_match_pathwise import CacheThatKeepsRejectedNodes
from torch import Tensor

from surefoot.options import SamplingParams
from surefoot.protocols import Sampler, Target
from surefoot.types import DraftTree, Plan, Verdict

V = 3
TOLERANCE = 1e-12
BIASED = 1e-3


def setting(depth: int, length: int, seed: int = 0, **options: object) -> Setting:
    stop_ids = (2,) if options.pop("stop", False) else ()
    params = SamplingParams(**{"temperature": 1.0, **options})  # type: ignore[arg-type]
    table, guess = ZeroTable(V, seed=seed, scale=1.0), ZeroTable(V, seed=seed + 50, scale=1.0)
    return Setting(params, table, TableDrafter(guess), depth, length, stop_ids)


@pytest.mark.parametrize(
    ("depth", "length", "seed"),
    [(1, 4, 0), (1, 4, 1), (1, 4, 2), (2, 5, 0), (2, 5, 1), (2, 5, 2), (3, 5, 1), (3, 6, 0)],
)
def test_the_law_is_that_of_plain_decoding(depth: int, length: int, seed: int) -> None:
    assert setting(depth, length, seed).distance() < TOLERANCE


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.5},
        {"temperature": 1.7},
        {"top_k": 2},
        {"top_p": 0.8},
        {"min_p": 0.3},
        {"repetition_penalty": 1.3},
        {"presence_penalty": 0.8},
        {"frequency_penalty": 0.6},
        {"logit_bias": {1: 1.0, 2: -1.0}},
        {"forbidden_tokens": (1,)},
        {"allowed_tokens": (0, 2)},
        {"stop": True},
        {"stop": True, "min_tokens": 2},
        {"top_k": 2, "repetition_penalty": 1.5, "stop": True, "min_tokens": 1},
        {"temperature": 0.0},
    ],
    ids=str,
)
def test_the_law_is_that_of_plain_decoding_with_every_processor(options: dict[str, object]) -> None:
    for seed in (3, 4):
        assert setting(2, 4, seed, **options).distance() < TOLERANCE


class CertainDrafter(TableDrafter):
    """Chooses the likeliest token without sampling; a tree where asked."""

    def start(self, target: Target) -> CertainDrafter:
        return CertainDrafter(self.table, branches=self.branches)

    def guess(self, row: Tensor, drafted: Sequence[int], sampler: Sampler) -> tuple[int, None]:
        return int(row.argmax()), None


@pytest.mark.parametrize("branches", [False, True], ids=["chain", "tree"])
def test_the_law_is_that_of_plain_decoding_with_drafts_chosen_without_sampling(branches: bool) -> None:
    for seed in range(3):
        usual = setting(2, 5, seed, repetition_penalty=1.3)
        assert replace(usual, drafter=CertainDrafter(usual.drafter.table, branches=branches)).distance() < TOLERANCE


class StoppingDrafter(TableDrafter):
    """Ends a chain after a token it was unsure of, which stays: exact, as only later positions depend on it."""

    drops = False

    def start(self, target: Target) -> StoppingDrafter:
        return type(self)(self.table)

    def propose(self, root: int, plan: Plan, sampler: Sampler) -> DraftTree:
        tree = super().propose(root, plan, sampler)
        assert tree.q is not None or len(tree) == 1
        for node in range(1, len(tree)):
            if tree.q is not None and tree.q[node - 1, tree.tokens[node]] < 0.4:
                size = node if self.drops else node + 1
                laws = tree.q[: size - 1] if size > 1 else None
                return DraftTree(tokens=tree.tokens[:size], parents=tree.parents[:size], q=laws)
        return tree


def test_a_chain_may_end_after_an_unsure_token() -> None:
    for seed in range(3):
        usual = setting(2, 5, seed)
        assert replace(usual, drafter=StoppingDrafter(usual.drafter.table)).distance() < TOLERANCE


# Negative controls. The reference below is rejection sampling spelled out; a defect is one changed line of it.


def reference(tree: DraftTree, logits: Tensor, sampler: Sampler, defect: str = "") -> Verdict:
    tokens, last = tree.tokens.tolist(), len(tree) - 1
    laws = [] if tree.q is None else list(tree.q)
    p = [sampler.law(logits[node], tokens[1 : node + 1]) for node in range(len(tree))]
    if defect == "rows one too late":
        p = [*p[1:], p[-1]]
    if defect == "history without the path":
        p = [sampler.law(logits[node]) for node in range(len(tree))]
    for node in range(1, len(tree)):
        q, before, token = laws[node - 1], p[node - 1], tokens[node]
        ratio = before[token] / q[token]
        if defect == "ratio turned over":
            ratio = 1 / ratio if ratio > 0 else ratio
        if defect == "threshold" and before[token] > 0.3:
            ratio = torch.tensor(1.0)
        if sampler.choices.bernoulli(min(1.0, float(ratio)), node, "accept"):
            continue
        lacking = (before - q).clamp(min=0)
        if defect == "residual is p":
            lacking = before
        if defect == "only the rejected token removed":
            lacking = before.clone()
            lacking[token] = 0
        if defect == "residual is |p - q|":
            lacking = (before - q).abs()
        correction = sampler.choices.categorical(lacking / lacking.sum(), node, "residual")
        kept = node + 1 if defect == "rejected token kept" else node
        return verdict(tree, tokens[:kept], correction)
    bonus = p[last]
    if defect == "bonus from the draft" and laws:
        bonus = laws[-1]
    if defect == "bonus from the row before" and last:
        bonus = p[last - 1]
    return verdict(tree, tokens, sampler.choices.categorical(bonus, last, "bonus"))


def verdict(tree: DraftTree, fed: list[int], token: int) -> Verdict:
    path = tuple(range(len(fed)))
    return Verdict(path=path, fed=tuple(fed), next_token=token, next_origin="bonus", num_drafted=len(tree) - 1)


def test_the_reference_without_a_defect_is_exact() -> None:
    for seed in range(2):
        assert replace(setting(2, 4, seed, repetition_penalty=1.5), verify=reference).distance() < TOLERANCE


@pytest.mark.parametrize(
    "defect",
    [
        "rows one too late",
        "history without the path",
        "ratio turned over",
        "threshold",
        "residual is p",
        "only the rejected token removed",
        "residual is |p - q|",
        "rejected token kept",
        "bonus from the draft",
        "bonus from the row before",
    ],
)
def test_a_broken_verifier_is_seen(defect: str) -> None:
    def broken(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Verdict:
        return reference(tree, logits, sampler, defect)

    distances = [replace(setting(2, 4, s, repetition_penalty=1.5), verify=broken).distance() for s in range(2)]
    assert max(distances) > BIASED


class DroppingDrafter(StoppingDrafter):
    """Takes back a token because of its own value."""

    drops = True


class RawLawDrafter(TableDrafter):
    """Samples from the processed law and reports the raw one."""

    def start(self, target: Target) -> RawLawDrafter:
        return RawLawDrafter(self.table)

    def guess(self, row: Tensor, drafted: Sequence[int], sampler: Sampler) -> tuple[int, Tensor | None]:
        token, _ = super().guess(row, drafted, sampler)
        return token, row.softmax(-1)


class ArgmaxAsSampledDrafter(TableDrafter):
    """Guesses the argmax and reports the law as if it had sampled."""

    def start(self, target: Target) -> ArgmaxAsSampledDrafter:
        return ArgmaxAsSampledDrafter(self.table)

    def guess(self, row: Tensor, drafted: Sequence[int], sampler: Sampler) -> tuple[int, Tensor | None]:
        law = sampler.law(row, drafted)
        return int(law.argmax()), law


@pytest.mark.parametrize("drafter_type", [DroppingDrafter, RawLawDrafter, ArgmaxAsSampledDrafter])
def test_a_drafter_whose_q_is_not_its_law_is_seen(drafter_type: type[TableDrafter]) -> None:
    usual = setting(2, 4, seed=0, top_k=2)
    assert usual.distance() < TOLERANCE
    assert replace(usual, drafter=drafter_type(usual.drafter.table)).distance() > BIASED


def test_a_cache_that_keeps_rejected_tokens_is_seen() -> None:
    assert replace(setting(2, 4, seed=0), cache_type=CacheThatKeepsRejectedNodes).distance() > BIASED
