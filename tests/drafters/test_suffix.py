"""The suffix automaton against brute force over the text."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.drafters.suffix import SuffixAutomaton


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
        automaton.extend(token)
    return automaton


@settings(max_examples=400, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=40), st.integers(0, 3))
def test_match_is_the_longest_and_most_recent(tokens: list[int], token: int) -> None:
    assert automaton_of(tokens).longest_match(token) == longest_match_reference(tokens, token)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 1), min_size=1, max_size=60))
def test_asking_changes_nothing(tokens: list[int]) -> None:
    asked = SuffixAutomaton()
    for token in tokens:
        asked.longest_match(1 - token)
        asked.longest_match(token)
        asked.extend(token)
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
