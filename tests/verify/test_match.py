"""The walk: the target's own tokens, whatever the tree; only rows on the walk matter."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from surefoot.errors import SamplingError, TargetError
from surefoot.options import SamplingParams
from surefoot.sampling import RequestSampler
from surefoot.tree import chain
from surefoot.types import DraftTree
from surefoot.verify import verify

V = 5


def tree(tokens: list[int], parents: list[int]) -> DraftTree:
    return DraftTree(tokens=torch.tensor(tokens), parents=tuple(parents))


def rows(*tokens: int) -> torch.Tensor:
    """Logits whose argmax, and at any sane temperature whose draw, is ``tokens[i]`` in row i."""
    logits = torch.zeros(len(tokens), V, dtype=torch.float64)
    logits[range(len(tokens)), list(tokens)] = 1000.0
    return logits


def sampler(**options) -> RequestSampler:
    return RequestSampler(SamplingParams(**options), [0, 1], seed=0, vocab_size=V)


KINDS = [{}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 2}, {"logit_bias": {0: 1.0}}]
every_kind = pytest.mark.parametrize("options", KINDS, ids=str)


@every_kind
def test_a_root_alone_gives_one_plain_token(options):
    verdict = verify(chain([4]), rows(2), sampler(**options))
    assert (verdict.path, verdict.fed, verdict.next_token, verdict.next_origin) == ((0,), (4,), 2, "plain")
    assert (verdict.emitted, verdict.origins, verdict.num_drafted) == ((2,), ("plain",), 0)


@every_kind
def test_a_chain_is_accepted_up_to_the_first_difference(options):
    drafted, own = [1, 2, 3], [1, 2, 4, 0]
    verdict = verify(chain([4, *drafted]), rows(*own), sampler(**options))
    assert verdict.path == (0, 1, 2)
    assert verdict.emitted == (1, 2, 4)
    assert verdict.origins == ("draft", "draft", "correction")
    assert (verdict.num_accepted, verdict.num_drafted) == (2, 3)


@every_kind
def test_a_wrong_first_draft_is_corrected(options):
    verdict = verify(chain([4, 1]), rows(3, 2), sampler(**options))
    assert (verdict.path, verdict.emitted, verdict.next_origin) == ((0,), (3,), "correction")


@every_kind
def test_a_fully_accepted_chain_ends_with_a_bonus(options):
    verdict = verify(chain([4, 1, 2]), rows(1, 2, 0), sampler(**options))
    assert (verdict.path, verdict.emitted, verdict.next_origin) == ((0, 1, 2), (1, 2, 0), "bonus")


@every_kind
def test_the_walk_takes_the_branch_the_target_draws(options):
    branched = tree([4, 0, 1, 2, 3, 3], [-1, 0, 0, 1, 2, 2])
    verdict = verify(branched, rows(1, 0, 3, 0, 2, 0), sampler(**options))
    assert (verdict.path, verdict.fed, verdict.emitted) == ((0, 2, 4), (4, 1, 3), (1, 3, 2))
    assert verdict.next_origin == "bonus"


@every_kind
def test_of_equal_siblings_the_first_is_walked_to(options):
    verdict = verify(tree([4, 1, 1], [-1, 0, 0]), rows(1, 2, 3), sampler(**options))
    assert (verdict.path, verdict.emitted) == ((0, 1), (1, 2))


@every_kind
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_only_rows_on_the_walk_can_fail(options, bad):
    logits = rows(1, 2, 0, 0)
    logits[2, 3] = bad
    branched = tree([4, 1, 3, 2], [-1, 0, 0, 1])
    assert verify(branched, logits, sampler(**options)).emitted == (1, 2, 0)
    logits[1, 3] = bad
    with pytest.raises(SamplingError):
        verify(branched, logits, sampler(**options))


def test_rows_must_be_as_many_as_nodes():
    with pytest.raises(TargetError, match="2 rows; expected 3"):
        verify(chain([1, 2, 3]), rows(0, 1), sampler())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_both_routes_agree_on_every_small_tree(temperature):
    """One argmax over all rows, and one draw per walked row, give the same verdict."""
    generator = torch.Generator().manual_seed(0)
    for size in (1, 2, 3, 4):
        for parents in itertools.product(*[range(-1 if node == 0 else 0, max(node, 0)) for node in range(size)]):
            for _ in range(10):
                tokens = torch.randint(V, (size,), generator=generator)
                logits = torch.randn(size, V, generator=generator)
                guess = DraftTree(tokens=tokens, parents=parents)
                by_rows = verify(guess, logits, sampler())
                one_by_one = verify(guess, logits, sampler(logit_bias={0: 0.0}))
                assert by_rows == one_by_one
                walked = verify(guess, logits, sampler(temperature=temperature))
                for i, token in enumerate(walked.emitted):
                    row = logits[walked.path[i]]
                    assert sampler(temperature=temperature).draw(row, walked.emitted[:i]) == token
