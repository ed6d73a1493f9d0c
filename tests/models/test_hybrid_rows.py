"""Rows, trees and commits of whole hybrid and sparse models equal plain decoding, bit for bit."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch
from tests.factories import HYBRIDS, SPARSE, make_model
from tests.models.routes import NOTHING, chain_case, last_logits, random_case, step_logits, tree_logits
from torch import Tensor

from surefoot.cache.hybrid import HybridCache
from surefoot.models.decoder import DecoderModel
from surefoot.tree import chain
from surefoot.types import Capture, DraftTree

FAMILIES = [*HYBRIDS, *SPARSE]
DTYPES = [torch.float32, torch.bfloat16]
CASES = {"chain": chain_case, "tree": random_case}


ROUTES = {"kernels": False, "torch": True}
"""What computes: the kernels where they were built, or torch in any case."""


def exact(route: str, family: str, dtype: torch.dtype = torch.float32, **options: object) -> DecoderModel:
    """A model whose rows are exact."""
    model = make_model(family, dtype, exact="require", trainable=ROUTES[route], **options)
    assert model.strict
    return model


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", CASES)
@pytest.mark.parametrize("route", ROUTES)
def test_rows_side_by_side_are_those_of_plain_decoding(route: str, family: str, dtype: torch.dtype, shape: str) -> None:
    model = exact(route, family, dtype)
    for prompt_length, num_nodes, num_calls in ((0, 3, 1), (2, 8, 1), (9, 16, 3)):
        case = CASES[shape](prompt_length, model.vocab_size, prompt_length, num_nodes, num_calls)
        assert torch.equal(tree_logits(model, case), step_logits(model, case))


def test_fast_rows_would_differ_and_the_self_test_says_so() -> None:
    """Negative control of the test above, and of the self-test of delta layers and experts."""
    model = make_model("qwen3_next", torch.float32, trainable=True)
    assert not model.strict
    case = chain_case(1, model.vocab_size, 9, 8)
    assert not torch.equal(tree_logits(model, case), step_logits(model, case))
    assert any("delta" in name and "experts" in name for name in model._forward.differing_rows(stop_early=False))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("route", ROUTES)
def test_a_prompt_leaves_the_same_however_it_is_cut(route: str, family: str) -> None:
    tokens = [7 * index % 97 for index in range(23)]
    after: list[list[Tensor]] = []
    for size in (512, 5, 1):
        model = exact(route, family, prefill_chunk=size)
        cache = model.new_cache(len(tokens) + 1)
        outs = [
            out
            for _, out in model.prefill(tokens, cache, Capture(logits=True, layers=(0, 3 if family in HYBRIDS else 2)))
        ]
        rows = [
            torch.cat([out.logits for out in outs]),
            *map(torch.cat, zip(*(out.layers for out in outs), strict=True)),
        ]
        after.append([*rows, last_logits(model, cache, [3])])
    for one, other in pairwise(after):
        assert all(torch.equal(left, right) for left, right in zip(one, other, strict=True))


def memory(cache: object) -> list[Tensor]:
    """All that a cache holds of the committed tokens."""
    kept = [rows.clone() for rows in cache.rows_to_read(0, cache.length)]
    if isinstance(cache, HybridCache):
        kept += [cache.states.committed.state.clone(), cache.states.committed.history.clone()]
    return kept


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("route", ROUTES)
def test_rounds_of_every_kind_leave_what_plain_decoding_leaves(route: str, family: str) -> None:
    """Chains cut anywhere, branches of trees, rounds that are given up, and two sequences in one call."""
    model, source = exact(route, family), random.Random(1)
    text = [source.randrange(97) for _ in range(40)]
    plain = model.new_cache(64)
    list(model.prefill(text[:4], plain, NOTHING))
    rows = []
    for token in text[4:]:
        rows.append(last_logits(model, plain, [token]))
        plain.commit((0,))
    cache, beside = model.new_cache(64), model.new_cache(64)
    for one in (cache, beside):
        list(model.prefill(text[:4], one, NOTHING))
    while cache.length < len(text):
        left, at = len(text) - cache.length, cache.length
        right = min(source.randrange(1, 5), left)  # so many of the nodes on the path are the text's own
        wrong = [source.randrange(97) for _ in range(source.randrange(3))]
        tokens = (*text[at : at + right], *wrong)
        parents = [*range(-1, right - 1), *(source.randrange(right) for _ in wrong)]
        tree = DraftTree(tokens=tokens, parents=tuple(parents))
        (out, _) = model.score([(tree, cache), (chain([1, 2, 3]), beside)], NOTHING)
        beside.rollback()
        assert torch.equal(out.logits[:right], torch.stack(rows[at - 4 : at - 4 + right]))
        if source.random() < 0.3:
            cache.rollback()
        else:
            cache.commit(range(source.randrange(1, right + 1)))
    assert all(torch.equal(one, other) for one, other in zip(memory(cache), memory(plain), strict=True))
    assert beside.length == 4
