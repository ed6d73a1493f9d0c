"""Log probabilities: of one row, and of a request's tokens however they came to be."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surefoot.logprobs import LogprobScorer, PromptLogprobs
from surefoot.types import TokenLogprobs


def score_reference(token: int, logits: Tensor, num_top: int) -> TokenLogprobs:
    """By sorting the whole row."""
    logprobs = torch.log_softmax(logits.double(), dim=0).tolist()
    order = sorted(range(len(logprobs)), key=lambda other: (-float(logits[other]), other))
    return TokenLogprobs(
        token=token,
        logprob=logprobs[token],
        rank=1 + order.index(token),
        top=tuple((other, logprobs[other]) for other in order[:num_top]),
    )


def assert_close(found: TokenLogprobs, expected: TokenLogprobs, tolerance: float = 1e-9) -> None:
    assert (found.token, found.rank) == (expected.token, expected.rank)
    assert [token for token, _ in found.top] == [token for token, _ in expected.top]
    pairs = zip(
        (found.logprob, *dict(found.top).values()), (expected.logprob, *dict(expected.top).values()), strict=True
    )
    for one, other in pairs:
        assert one == other or abs(one - other) <= tolerance


@settings(max_examples=300, deadline=None)
@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_a_row_is_normalised_ranked_and_cut_to_its_likeliest(data: st.DataObject, dtype: torch.dtype) -> None:
    """Few distinct values, so that there are ties; rows far from zero, and impossible tokens."""
    values = st.sampled_from([-math.inf, -3.0, 0.0, 0.5, 0.5, 2.0])
    row = data.draw(st.lists(values, min_size=1, max_size=9).filter(lambda row: max(row) > -math.inf))
    logits = torch.tensor(row, dtype=dtype) + data.draw(st.sampled_from([0, 2000, -2000]))
    token, num_top = data.draw(st.integers(0, len(row) - 1)), data.draw(st.integers(0, len(row) + 2))
    kept = logits.clone()
    assert_close(
        LogprobScorer(num_top=num_top, vocab_size=len(row)).score(token, logits),
        score_reference(token, logits, num_top),
    )
    assert torch.equal(logits, kept), "the row still belongs to the sampler"


def test_all_of_a_vocabulary_sums_to_one_and_padding_is_no_part_of_it() -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(1))
    padded = torch.cat((logits, torch.full((7,), 99.0)))
    scorer = LogprobScorer(num_top=60, vocab_size=50)
    found = scorer.score(3, padded)
    assert found == scorer.score(3, logits)
    assert len(found.top) == 50
    assert abs(sum(math.exp(logprob) for _, logprob in found.top) - 1) < 1e-12
    wide = LogprobScorer(num_top=60, vocab_size=57).score(3, padded)
    assert wide.logprob < found.logprob - 90, "negative control: padding would drown everything"


def test_ties_go_to_the_lowest_id() -> None:
    found = LogprobScorer(num_top=3, vocab_size=6).score(4, torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0, 0.0]))
    assert [token for token, _ in found.top] == [1, 3, 4]
    assert found.rank == 3


@pytest.mark.parametrize("sizes", [(6,), (1,) * 6, (3, 3), (2, 3, 1), (5, 1)])
def test_prompt_tokens_are_scored_by_the_row_before_them_across_chunks(sizes: Sequence[int]) -> None:
    logits = torch.randn(6, 9, generator=torch.Generator().manual_seed(2))
    tokens = (4, 0, 8, 8, 1, 2)
    prompt = PromptLogprobs(LogprobScorer(num_top=2, vocab_size=9))
    done = 0
    for size in sizes:
        chunk = logits[done : done + size].clone()
        prompt.read(tokens[done : done + size], chunk)
        chunk.zero_()  # a target may write over its logits in the next forward
        done += size
    assert prompt.scored[0] is None
    for place in range(1, 6):
        scored = prompt.scored[place]
        assert scored is not None
        assert_close(scored, score_reference(tokens[place], logits[place - 1], 2))
