"""The suffix automaton against brute force over the text."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.drafters.suffix import NO_MATCH, SuffixAutomaton


def longest_match_reference(tokens: list[int], token: int) -> tuple[int, int]:
    """The longest suffix of ``tokens + [token]`` inside ``tokens``, at its most recent end: by trying all of them."""
    text = [*tokens, token]
    for length in range(len(tokens), 0, -1):
        suffix = text[-length:]
        for end in range(len(tokens) - 1, length - 2, -1):
            if tokens[end - length + 1 : end + 1] == suffix:
                return length, end
    return 0, -1


def automaton_of(tokens: list[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    for token in tokens:
        automaton.extend((token,))
    return automaton


@settings(max_examples=400, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=40), st.integers(0, 3))
def test_match_is_the_longest_and_most_recent(tokens: list[int], token: int) -> None:
    assert automaton_of(tokens).longest_match(token) == longest_match_reference(tokens, token)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), max_size=9), max_size=8), st.integers(0, 3))
def test_tokens_appended_together_are_as_one_by_one(runs: list[list[int]], token: int) -> None:
    together, tokens = SuffixAutomaton(), [token for run in runs for token in run]
    for run in runs:
        together.extend(run)
    assert together.longest_match(token) == longest_match_reference(tokens, token)
    assert together.tokens == tokens


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 1), min_size=1, max_size=60))
def test_asking_changes_nothing(tokens: list[int]) -> None:
    asked = SuffixAutomaton()
    for token in tokens:
        asked.longest_match(1 - token)
        asked.longest_match(token)
        asked.extend((token,))
    silent = automaton_of(tokens)
    assert [asked.longest_match(t) for t in (0, 1)] == [silent.longest_match(t) for t in (0, 1)]


def test_repeated_text_past_the_refresh_limit_still_gives_a_true_occurrence() -> None:
    tokens = [7] * 300
    length, end = automaton_of(tokens).longest_match(7)
    assert length == 300
    assert end == 299


def test_the_checker_sees_a_stale_end() -> None:
    automaton = automaton_of([1, 2, 3, 1, 2, 3])
    automaton._end = [min(end, 2) for end in automaton._end]
    assert automaton.longest_match(1) != longest_match_reference([1, 2, 3, 1, 2, 3], 1)


def test_building_takes_amortised_constant_states_per_token() -> None:
    tokens = [(i * i) % 97 for i in range(5000)]
    assert len(automaton_of(tokens)._next) <= 2 * len(tokens)


def longest_suffix_reference(tokens: list[int], text: list[int], most: int) -> int:
    """The length of the longest suffix of ``text``, of at most ``most`` tokens, inside ``tokens``: by trying all."""
    for length in range(min(most, len(text)), 0, -1):
        suffix = text[-length:]
        if any(tokens[i : i + length] == suffix for i in range(len(tokens) - length + 1)):
            return length
    return 0


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 3), max_size=40), st.integers(1, 12))
def test_following_a_text_keeps_its_longest_suffix_that_occurs(tokens: list[int], text: list[int], most: int) -> None:
    automaton = automaton_of(tokens)
    match = NO_MATCH
    for i, token in enumerate(text):
        match = automaton.follow(match, token, most)
        read = text[: i + 1]
        _, length = match
        assert length == longest_suffix_reference(tokens, read, most)
        end = automaton.end(match)
        assert tokens[end - length + 1 : end + 1] == read[len(read) - length :]
        later = [tokens[e - length + 1 : e + 1] for e in range(end + 1, len(tokens))]
        assert not length or read[len(read) - length :] not in later


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=30), st.lists(st.integers(0, 2), max_size=8))
def test_a_string_is_held_where_it_occurs(tokens: list[int], string: list[int]) -> None:
    occurs = any(tokens[i : i + len(string)] == string for i in range(len(tokens) - len(string) + 1))
    assert automaton_of(tokens).holds(string) == occurs


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=30), st.lists(st.integers(0, 2), max_size=30))
def test_an_extended_copy_is_that_of_the_whole_text_and_leaves_the_original(first: list[int], more: list[int]) -> None:
    original = automaton_of(first)
    copy = original.extended(more)
    assert vars(copy) == vars(automaton_of([*first, *more]))
    assert vars(original) == vars(automaton_of(first))


@pytest.mark.parametrize("vocab_size", [2, 300, 50_000])
def test_the_memory_is_estimated_within_a_quarter(vocab_size: int) -> None:
    choose = random.Random(0)
    text = " ".join(str(choose.randrange(vocab_size)) for _ in range(3000))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        automaton = SuffixAutomaton(map(int, text.split()))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.8 < automaton.num_bytes / (after - before) < 1.25
