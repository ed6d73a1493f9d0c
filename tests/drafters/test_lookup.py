"""What lookup proposes, and when it keeps silent."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.drafters.lookup import Lookup, LookupDrafter
from surefoot.errors import OptionError
from surefoot.types import Plan, TargetOutput

NOTHING = TargetOutput(logits=None)


class NoSampler:
    """Lookup must not draw."""


def propose(drafter: LookupDrafter, root: int, count: int) -> list[int]:
    tree = drafter.propose(root, Plan(num_nodes=count, depth=count), NoSampler())  # type: ignore[arg-type]
    assert tree.parents == tuple(range(-1, len(tree) - 1))
    tokens = tree.tokens.tolist()
    assert tokens[0] == root
    return tokens[1:]


def started(text: list[int], *, min_match: int = 1) -> LookupDrafter:
    drafter = LookupDrafter(Lookup(min_match=min_match))
    drafter.observe(text, NOTHING, None)
    return drafter


def test_proposes_what_followed_the_last_occurrence() -> None:
    assert propose(started([1, 2, 3, 9, 1, 2, 4, 8, 1]), 2, 2) == [4, 8]


def test_prefers_the_longer_match_to_the_more_recent_one() -> None:
    assert propose(started([5, 1, 2, 7, 6, 2, 8, 5, 1]), 2, 1) == [7]


def test_continues_cyclically_where_the_copy_meets_its_own_end() -> None:
    assert propose(started([1, 2, 3, 1, 2]), 3, 7) == [1, 2, 3, 1, 2, 3, 1]
    assert propose(started([4]), 4, 3) == [4, 4, 4]


def test_never_matches_the_root_with_itself() -> None:
    assert propose(started([1, 2, 3]), 4, 4) == []


def test_keeps_silent_on_matches_shorter_than_asked_for() -> None:
    text = [1, 2, 3, 9, 2]
    assert propose(started(text, min_match=2), 3, 2) == [9, 2]
    assert propose(started(text, min_match=3), 3, 2) == []


def test_drafts_nothing_when_the_plan_allows_nothing() -> None:
    assert propose(started([1, 1, 1]), 1, 0) == []


def test_sees_tokens_of_a_finished_round() -> None:
    drafter = started([1, 2])
    drafter.observe((3, 4), NOTHING, (0, 1))
    drafter.observe((1,), NOTHING, (0,))
    assert propose(drafter, 2, 2) == [3, 4]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(0, 3), st.integers(1, 6))
def test_every_proposal_continues_an_earlier_occurrence(text: list[int], root: int, count: int) -> None:
    drafted = propose(started(text), root, count)
    whole = [*text, root]
    if not drafted:
        assert root not in text
        return
    assert len(drafted) == count
    assert any(
        whole[end] == root and all(drafted[i] == whole[end + 1 + i % (len(text) - end)] for i in range(count))
        for end in range(len(text))
    )


def test_refuses_a_match_length_below_one() -> None:
    with pytest.raises(OptionError, match="at least 1"):
        Lookup(min_match=0)


def test_tokens_are_ids_on_the_host() -> None:
    tree = started([1]).propose(1, Plan(num_nodes=1, depth=1), NoSampler())  # type: ignore[arg-type]
    assert tree.tokens.dtype == torch.int64
    assert tree.tokens.device.type == "cpu"
