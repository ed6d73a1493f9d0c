"""Stop strings in a text that comes piece by piece: where it is cut, and what is held back until then."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from surefoot.stop_strings import StopStrings

Cut = tuple[list[str], str, str | None]
"""What each piece gave out, what was left in the end, and the stop string that was found."""


def cut(pieces: Sequence[str], stops: Sequence[str], min_pieces: int = 0) -> Cut:
    """What the automaton makes of a text."""
    strings = StopStrings(stops)
    given_out = []
    for number, piece in enumerate(pieces):
        text, found = strings.feed(piece, may_end=number >= min_pieces)
        given_out.append(text)
        if found is not None:
            return given_out, "", found
    return given_out, strings.flush(), None


def cut_reference(pieces: Sequence[str], stops: Sequence[str], min_pieces: int = 0) -> Cut:
    """The same by looking at the whole text again after every piece."""
    given_out: list[str] = []
    for number in range(len(pieces)):
        before, text = "".join(pieces[:number]), "".join(pieces[: number + 1])
        places = [
            (start, -len(stop))
            for stop in stops
            for start in range(len(text))
            if text.startswith(stop, start) and start + len(stop) > len(before)
        ]
        if places and number >= min_pieces:
            start, length = min(places)
            return [*given_out, text[len("".join(given_out)) : start]], "", text[start : start - length]
        most = max(map(len, stops), default=0)
        held = next(
            count
            for count in range(min(most, len(text)), -1, -1)
            if any(len(stop) > count and stop.startswith(text[len(text) - count :]) for stop in stops) or count == 0
        )
        given_out.append(text[len("".join(given_out)) : len(text) - held])
    return given_out, "".join(pieces)[len("".join(given_out)) :], None


strings_of = st.text(alphabet="ab", min_size=1, max_size=5)


@settings(max_examples=500, deadline=None)
@given(
    pieces=st.lists(st.text(alphabet="ab", max_size=4), max_size=8),
    stops=st.lists(strings_of, max_size=5),
    min_pieces=st.integers(0, 4),
)
@example(pieces=["a", "a", "a", "b"], stops=["aab"], min_pieces=0)
@example(pieces=["ab", "ab"], stops=["ab"], min_pieces=1)
@example(pieces=["aba", "b"], stops=["abab", "ba"], min_pieces=1)
def test_the_automaton_is_the_search_of_the_whole_text(pieces: list[str], stops: list[str], min_pieces: int) -> None:
    assert cut(pieces, stops, min_pieces) == cut_reference(pieces, stops, min_pieces)


def test_every_short_text_and_pair_of_strings() -> None:
    words = ["".join(word) for size in (1, 2, 3) for word in itertools.product("ab", repeat=size)]
    texts = ["".join(text) for text in itertools.product("ab", repeat=5)]
    for stops in itertools.combinations(words, 2):
        for text in texts:
            for pieces in ([*text], [text[:2], text[2:]], [text]):
                assert cut(pieces, stops) == cut_reference(pieces, stops)


def differs(
    variant: Callable[[Sequence[str], Sequence[str]], Cut], cases: Iterable[tuple[list[str], list[str]]]
) -> bool:
    return any(variant(pieces, stops) != cut_reference(pieces, stops) for pieces, stops in cases)


def cut_in_list_order(pieces: Sequence[str], stops: Sequence[str]) -> Cut:
    """A wrong variant: the first string of the list that is found, not the first in the text (vllm 49391)."""
    whole = "".join(pieces)
    for stop in stops:
        if stop in whole:
            return [whole[: whole.index(stop)]], "", stop
    return [whole], "", None


def cut_in_a_window(pieces: Sequence[str], stops: Sequence[str]) -> Cut:
    """A wrong variant: only the end of the text is looked at after each piece (sglang 23802, 27637)."""
    text = ""
    for piece in pieces:
        text += piece
        found = next((stop for stop in stops if text.endswith(stop)), None)
        if found is not None:
            return [text.removesuffix(found)], "", found
    return [text], "", None


def test_searches_that_others_shipped_are_told_apart() -> None:
    """Negative controls of the law above."""
    assert differs(cut_in_list_order, [(["x, a is"], ["a", "is", ","])])
    assert differs(cut_in_a_window, [(["xaby"], ["ab"])])


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        (["a", "is", ","], ["x, a is"], (["x"], "", ",")),
        (["bc", "abcd"], ["xabcd"], (["x"], "", "abcd")),
        (["bc", "abcd"], ["xabc", "d"], (["xa"], "", "bc")),
        (["ab", "abc"], ["xabc"], (["x"], "", "abc")),
        (["bc", "abc"], ["xab", "c"], (["x", ""], "", "abc")),
        (["\n\n"], ["a\n", "\n", "b"], (["a", ""], "", "\n\n")),
        (["\n\n"], ["a\n", "b"], (["a", "\nb"], "", None)),
        (["abc"], ["xa", "b", "d"], (["x", "", "abd"], "", None)),
        (["STOP"], ["S", "T", "O"], (["", "", ""], "STO", None)),
        (["漢字"], ["x漢", "字y"], (["x", ""], "", "漢字")),
        (["👩\u200d👩"], ["👩", "\u200d", "👩"], (["", "", ""], "", "👩\u200d👩")),
        (["e\u0301"], ["e", "\u0301"], (["", ""], "", "e\u0301")),
        (["é"], ["e", "\u0301"], (["e", "\u0301"], "", None)),
    ],
)
def test_the_cut_is_before_the_string_that_begins_first(stops: list[str], pieces: list[str], expected: Cut) -> None:
    assert cut(pieces, stops) == cut_reference(pieces, stops) == expected


def test_what_completed_too_early_is_not_found_later() -> None:
    assert cut(["ab", "c", "ab"], ["ab"], min_pieces=1) == (["ab", "c", ""], "", "ab")
    assert cut(["ab", "c"], ["ab"], min_pieces=1) == (["ab", "c"], "", None)
    assert cut(["a", "b"], ["ab"], min_pieces=1) == (["", ""], "", "ab")


def test_the_cost_per_character_does_not_grow_with_the_text_or_the_number_of_strings() -> None:
    stops = [f"{'a' * 40}{number}" for number in range(1000)]
    strings = StopStrings(stops)
    begun = time.process_time()
    given_out = "".join(strings.feed("a")[0] for _ in range(100_000))
    assert time.process_time() - begun < 2
    assert given_out == "a" * (100_000 - 40)
    assert strings.flush() == "a" * 40
