"""``match`` is exact path by path: whatever is drafted, the emitted tokens are the target's draws.

Exhaustive: every tree of up to 5 nodes over 2 tokens and of up to 4 nodes over 3 tokens, duplicates among siblings
included, with every labelling, against every sequence of the draws it can meet; every run goes on for several rounds
with further trees. Everything runs in the production round, ``decode.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch
from tests.lossless.scripted import PRODUCTION, ScriptedDrafter, Variant, cases, run_all
from tests.tables import TableCache
from torch import Tensor

from surefoot.protocols import Sampler
from surefoot.stops import RequestStops
from surefoot.types import DraftTree, FinishReason, TargetOutput, Verdict
from surefoot.verify import verify


def kind(verdict: Verdict) -> str:
    """What a round committed."""
    accepted = len(verdict.path) - 1
    if verdict.num_drafted == 0:
        return "zero drafts"
    if accepted == 0:
        return "none accepted"
    straight = "" if verdict.path == tuple(range(len(verdict.path))) else ", path not a prefix"
    return ("all accepted" if verdict.next_origin == "bonus" else "part accepted") + straight


EVERY_KIND = {
    "zero drafts",
    "none accepted",
    "part accepted",
    "all accepted",
    "part accepted, path not a prefix",
    "all accepted, path not a prefix",
}


@pytest.mark.parametrize("greedy_rows", [True, False], ids=["rows together", "row by row"])
@pytest.mark.parametrize(("vocab_size", "most_nodes"), [(2, 5), (3, 4)])
def test_every_tree_and_every_sequence_of_draws(greedy_rows: bool, vocab_size: int, most_nodes: int) -> None:
    followed: Counter[str] = Counter()
    every = cases(vocab_size, most_nodes, num_draws=most_nodes - 1, greedy_rows=greedy_rows, max_tokens=8)
    for verdicts in run_all(every):
        followed.update(kind(verdict) for verdict in verdicts[1:-1])
    assert set(followed) == EVERY_KIND, "some kind of commit was never followed by a further round"
    assert min(followed.values()) > 100, followed


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 5, 7])
def test_every_tree_with_a_stop_id_and_a_limit(max_tokens: int) -> None:
    finished: Counter[bool] = Counter()
    every = cases(3, 3, num_draws=3, greedy_rows=True, max_tokens=max_tokens, stop_ids=(2,))
    for verdicts in run_all(every):
        finished[verdicts[-1].next_token == 2] += 1
    assert finished[True] > 100 or max_tokens == 1
    assert finished[False] > 10


# Negative controls: each is a defect somebody has shipped, put where the production part was. The same runs must fail.


def verify_with_the_row_of_the_child(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Verdict:
    return verify(tree, torch.cat([logits[1:], logits[-1:]]), sampler)


def verify_with_the_row_before(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Verdict:
    return verify(tree, torch.cat([logits[:1], logits[:-1]]), sampler)


def verify_that_trusts_the_first_draft(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Verdict:
    verdict = verify(tree, logits, sampler)
    if len(tree) == 1 or len(verdict.path) > 1:
        return verdict
    fed = (verdict.fed[0], int(tree.tokens[1]))
    return Verdict(path=(0, 1), fed=fed, next_token=verdict.next_token, next_origin="bonus", num_drafted=len(tree) - 1)


def verify_that_emits_the_draft_instead_of_the_correction(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Verdict:
    verdict = verify(tree, logits, sampler)
    children = [node for node, parent in enumerate(tree.parents) if parent == verdict.path[-1]]
    token = int(tree.tokens[children[0]]) if children else verdict.next_token
    return Verdict(path=verdict.path, fed=verdict.fed, next_token=token, next_origin="bonus", num_drafted=len(tree) - 1)


def verify_that_repeats_the_last_accepted_token(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Verdict:
    verdict = verify(tree, logits, sampler)
    token = verdict.fed[-1] if verdict.next_origin == "bonus" else verdict.next_token
    return Verdict(path=verdict.path, fed=verdict.fed, next_token=token, next_origin="bonus", num_drafted=len(tree) - 1)


def verify_that_drops_the_bonus_position(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Verdict:
    verdict = verify(tree, logits, sampler)
    if verdict.next_origin != "bonus":
        return verdict
    return Verdict(
        path=verdict.path[:-1],
        fed=verdict.fed[:-1],
        next_token=verdict.next_token,
        next_origin="bonus",
        num_drafted=len(tree) - 1,
    )


class CacheThatCommitsAPrefix(TableCache):
    def commit(self, path: Sequence[int]) -> None:
        self.tokens += self.open_tokens[: len(path)]
        self.rollback()


class CacheThatKeepsRejectedNodes(TableCache):
    def commit(self, path: Sequence[int]) -> None:
        self.tokens += self.open_tokens
        self.rollback()


class CacheThatForgetsTheLastNode(TableCache):
    def commit(self, path: Sequence[int]) -> None:
        super().commit(path[:-1] if len(path) > 1 else path)


class DrafterShownRowsInOrder(ScriptedDrafter):
    """Stands for a loop that hands over the first rows instead of the path's."""

    def observe(self, tokens: Sequence[int], out: TargetOutput, path: Sequence[int] | None) -> None:
        super().observe(tokens, out, None if path is None else range(len(path)))


class DrafterNotToldOfFullAcceptance(ScriptedDrafter):
    def observe(self, tokens: Sequence[int], out: TargetOutput, path: Sequence[int] | None) -> None:
        full = path is not None and len(path) > 1 and len(path) == len(out.logits if out.logits is not None else ())
        super().observe(tokens[:-1] if full else tokens, out, path)


class StopsThatReadTheLastTokenAlone(RequestStops):
    def take(self, verdict: Verdict, logits: Tensor) -> tuple[int, FinishReason | None]:
        count, reason = super().take(verdict, logits)
        while count < len(verdict.emitted):
            self._count += 1
            count += 1
            reason = self._reason(verdict.emitted[count - 1])
        return count, reason


CONTROLS = [
    Variant(verify=verify_with_the_row_of_the_child),
    Variant(verify=verify_with_the_row_before),
    Variant(verify=verify_that_trusts_the_first_draft),
    Variant(verify=verify_that_emits_the_draft_instead_of_the_correction),
    Variant(verify=verify_that_repeats_the_last_accepted_token),
    Variant(verify=verify_that_drops_the_bonus_position),
    Variant(cache_type=CacheThatCommitsAPrefix),
    Variant(cache_type=CacheThatKeepsRejectedNodes),
    Variant(cache_type=CacheThatForgetsTheLastNode),
    Variant(drafter_type=DrafterShownRowsInOrder),
    Variant(drafter_type=DrafterNotToldOfFullAcceptance),
]


def part_names(variant: Variant) -> str:
    parts: list[Callable[..., object]] = [variant.verify, variant.cache_type, variant.drafter_type, variant.stops_type]
    production = [PRODUCTION.verify, PRODUCTION.cache_type, PRODUCTION.drafter_type, PRODUCTION.stops_type]
    return " ".join(part.__name__ for part, usual in zip(parts, production, strict=True) if part is not usual)


@pytest.mark.parametrize("variant", CONTROLS, ids=part_names)
@pytest.mark.parametrize("greedy_rows", [True, False], ids=["rows together", "row by row"])
def test_a_broken_part_is_seen(variant: Variant, greedy_rows: bool) -> None:
    every = cases(3, 3, num_draws=2, greedy_rows=greedy_rows, max_tokens=8)
    with pytest.raises((AssertionError, RuntimeWarning)):
        list(run_all(every, variant))


def test_a_stop_id_overlooked_inside_a_run_is_seen() -> None:
    every = cases(3, 3, num_draws=3, greedy_rows=True, max_tokens=6, stop_ids=(2,))
    with pytest.raises(AssertionError, match="emitted"):
        list(run_all(every, Variant(stops_type=StopsThatReadTheLastTokenAlone)))
