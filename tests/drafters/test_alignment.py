"""Where an answer stands in a text: followed token by token, and found again after an edit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.drafters.alignment import LONGEST_MATCH, START, Alignment, Place

Texts = st.lists(st.integers(0, 3), max_size=30)


def place_after(text: list[int], answer: list[int], min_match: int = 2) -> Place:
    alignment, place = Alignment(tuple(text), min_match), START
    for i in range(len(answer)):
        place = alignment.after(place, answer[: i + 1])
    return place


def match_reference(text: list[int], end: int, answer: list[int]) -> int:
    """How many tokens before ``end`` are those at the answer's end: by trying all lengths."""
    return max(n for n in range(min(end, len(answer)) + 1) if text[end - n : end] == answer[len(answer) - n :])


def found_reference(text: list[int], answer: list[int], last: int, min_match: int) -> int | None:
    """The place an answer that left the text at ``last`` is found at: by trying all of them, best first."""
    ranked = sorted(
        range(len(text) + 1),
        key=lambda end: (-match_reference(text, end, answer), end < last, abs(end - last)),
    )
    return ranked[0] if match_reference(text, ranked[0], answer) >= min_match else None


@settings(max_examples=300, deadline=None)
@given(Texts, Texts.filter(bool), st.integers(0, 30), st.integers(1, 3))
def test_an_answer_is_found_again_where_the_match_is_longest_and_nearest(
    text: list[int], answer: list[int], last: int, min_match: int
) -> None:
    found = Alignment(tuple(text), min_match).after(Place(None, last), answer).next
    expected = found_reference(text, answer, last, min_match)
    if expected is None and len(answer) == 1:
        expected = 0
    assert found == expected


@given(Texts, st.integers(1, 3))
def test_a_repeated_text_is_followed_from_its_first_token_to_its_end(text: list[int], min_match: int) -> None:
    for length in range(len(text) + 1):
        assert place_after(text, text[:length], min_match) == Place(length, length)


@pytest.mark.parametrize(
    ("edit", "next_after"),
    [
        ([10, 11, 90, 13, 14], 5),  # replaced
        ([10, 11, 12, 90, 91, 13, 14], 5),  # inserted
        ([10, 11, 14, 15], 6),  # deleted
        ([90, 10, 11], 2),  # inserted before all else
        ([90, 91, 92, 10, 11], 2),
        ([12, 13], 4),  # the beginning deleted
    ],
)
def test_after_an_edit_two_tokens_of_the_text_are_enough(edit: list[int], next_after: int) -> None:
    text = list(range(10, 20))
    assert place_after(text, edit).next == next_after


def test_a_token_the_text_lacks_leaves_it() -> None:
    assert place_after([1, 2, 3], [1, 2, 9]) == Place(None, 2)


def test_after_one_strange_token_the_beginning_is_still_expected_and_after_two_no_more() -> None:
    assert place_after([1, 2, 3], [9]) == START
    assert place_after([1, 2, 3], [9, 1]) == Place(1, 1)
    assert place_after([1, 2, 3], [9, 9]) == Place(None, 0)


def test_of_equal_matches_the_nearest_ahead_is_taken_and_behind_only_without_one() -> None:
    text = [1, 2, 3, 7, 8, 1, 2, 4, 1, 2, 5]
    alignment = Alignment(tuple(text), 2)
    assert alignment.after(Place(None, 5), [9, 1, 2]).next == 7
    assert alignment.after(Place(None, 8), [9, 1, 2]).next == 10
    assert alignment.after(Place(None, 11), [9, 1, 2]).next == 10


def test_a_longer_match_behind_beats_a_nearer_one() -> None:
    text = [6, 1, 2, 3, 7, 8, 1, 2, 4]
    assert Alignment(tuple(text), 2).after(Place(None, 5), [9, 6, 1, 2]).next == 3


def test_only_the_end_of_an_answer_is_read() -> None:
    """So that a drafter may hand over no more than that."""
    text = [1, 2] * 40 + [3] + [1, 2] * 40
    alignment = Alignment(tuple(text), 2)
    answer = [3] + [1, 2] * 30
    for last in range(0, len(text), 7):
        lost = Place(None, last)
        assert alignment.after(lost, answer[-LONGEST_MATCH:]) == alignment.after(lost, answer)


def test_a_text_of_one_repeated_token_is_searched_near_the_place_alone() -> None:
    alignment = Alignment((7,) * 100_000, 2)
    assert alignment.after(Place(None, 50_000), [1, 7, 7]).next == 50_000
