"""Streamed text is final when it is given, and its pieces concatenate to the text of all ids."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.text.vocabularies import BYTES, KINDS, byte_level
from transformers import PreTrainedTokenizerFast

from surefoot.text import BYTE_PIECE, StreamDecoder, Tokenizer

TEXTS = [
    "naïve café",
    "漢字かな交じり文",
    "👩‍👩‍👧‍👦🏳️‍🌈",
    "e\u0301o\u0308\u0323",
    "नमस्ते",
    "a\u200db",
    "\x00\x7f",
    "\ufffd",
    "",
]


def streamed(
    tokenizer: Tokenizer, ids: list[int], cuts: list[int], skip: bool = True, *, after: Sequence[int] = ()
) -> str:
    """The concatenation of a stream fed in parts that end at ``cuts``."""
    stream = StreamDecoder(tokenizer, skip, after=after)
    edges = [0, *sorted(cuts), len(ids)]
    return "".join(stream.feed(ids[start:end]) for start, end in pairwise(edges)) + stream.flush()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=120, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_deltas_concatenate_to_the_text_of_all_ids(kind: str, data: st.DataObject, skip: bool) -> None:
    tokenizer = KINDS[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 1), max_size=16))
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=4))
    assert streamed(tokenizer, ids, cuts, skip) == tokenizer.decode(ids, skip)
    assert streamed(tokenizer, ids, list(range(len(ids))), skip) == tokenizer.decode(ids, skip)


@pytest.mark.parametrize("kind", ["llama 2", "gemma"])
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_runs_of_byte_pieces_are_judged_as_a_whole(kind: str, data: st.DataObject) -> None:
    tokenizer = KINDS[kind]
    some = [3 + byte for byte in b"\xe2\x82\xac\xff\xc0A \xf0\x9f\x98\x80"]
    ids = data.draw(st.lists(st.sampled_from([*some, 1, *range(259, tokenizer.vocab_size)]), max_size=14))
    assert streamed(tokenizer, ids, list(range(len(ids)))) == tokenizer.decode(ids)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["byte level", "llama 2", "gemma"])
def test_every_split_of_valid_text_gives_that_text(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]
    ids = [byte + (0 if kind == "byte level" else 3) for byte in text.encode()]
    assert tokenizer.decode(ids) == text
    for cut in range(len(ids) + 1):
        assert streamed(tokenizer, ids, [cut]) == text
    for first in range(len(ids) + 1):
        for second in range(first, len(ids) + 1, 3):
            assert streamed(tokenizer, ids, [first, second]) == text


def test_decoding_token_by_token_is_not_enough() -> None:
    tokenizer = KINDS["byte level"]
    ids = list("漢".encode())
    assert "".join(tokenizer.decode([token]) for token in ids) != "漢"
    words = KINDS["metaspace"]
    assert "".join(words.decode([token]) for token in (2, 2)) != words.decode([2, 2])


@settings(max_examples=300, deadline=None)
@given(raw=st.binary(max_size=24))
def test_bytes_that_are_no_utf8_become_what_python_makes_of_them(raw: bytes) -> None:
    tokenizer = KINDS["byte level"]
    text = raw.decode("utf-8", errors="replace")
    assert tokenizer.decode(list(raw)) == text
    assert streamed(tokenizer, list(raw), list(range(len(raw)))) == text


def test_a_character_comes_whole_and_as_soon_as_it_is_complete() -> None:
    stream = StreamDecoder(KINDS["byte level"])
    assert [stream.feed([byte]) for byte in "a🙂b".encode()] == ["a", "", "", "", "🙂", "b"]
    assert stream.flush() == ""


def test_a_lone_byte_is_given_up_as_soon_as_it_is_known_to_be_one() -> None:
    stream = StreamDecoder(KINDS["byte level"])
    assert [stream.feed([byte]) for byte in (0xFF, 0xE2, 0x82, 0x41)] == ["\ufffd", "", "", "\ufffdA"]


def test_what_is_open_at_the_end_is_flushed_once() -> None:
    stream = StreamDecoder(KINDS["byte level"])
    assert stream.feed("🙂".encode()[:3]) == ""
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""
    assert stream.feed(b"a") == "a"


def test_a_special_token_inside_a_character_does_not_break_it() -> None:
    tokenizer = KINDS["byte level"]
    first, *rest = "é".encode()
    special = min(tokenizer.special_ids)
    assert streamed(tokenizer, [first, special, *rest], [1, 2]) == tokenizer.decode([first, special, *rest]) == "é"
    shown = streamed(tokenizer, [first, special, *rest], [1, 2], skip=False)
    assert shown == tokenizer.decode([first, special, *rest], skip_special_tokens=False) == "\ufffd<s>\ufffd"


def test_a_continuation_keeps_the_space_a_text_of_its_own_would_lose() -> None:
    tokenizer = KINDS["llama 2"]
    word = tokenizer.core.token_to_id("▁hello")
    assert word is not None
    start = min(tokenizer.special_ids)
    alone, begun, continued = (StreamDecoder(tokenizer, after=after) for after in ((), (start,), (start, word)))
    assert alone.feed([word]) == begun.feed([word]) == "hello"
    assert continued.feed([word]) == " hello"


def is_part(tokenizer: Tokenizer, token: int) -> bool:
    """Whether a token may be a part of a character: its text alone is not the text it adds."""
    return bool(BYTE_PIECE.fullmatch(tokenizer.piece(token) or "")) or "\ufffd" in tokenizer.decode([token])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_prompt_and_answer_concatenate_to_the_text_of_both(kind: str, data: st.DataObject, skip: bool) -> None:
    tokenizer = KINDS[kind]
    ids = st.lists(st.integers(0, tokenizer.vocab_size + 1), max_size=10)
    prompt, answer = data.draw(ids), data.draw(ids)
    skipped = tokenizer.special_ids if skip else frozenset()
    # No character may reach from one into the other: what could be the beginning of one goes from the prompt's end.
    while (shown := [token for token in prompt if token not in skipped and tokenizer.piece(token) is not None]) and (
        is_part(tokenizer, shown[-1])
    ):
        prompt.pop()
    cuts = data.draw(st.lists(st.integers(0, len(answer)), max_size=4))
    text = tokenizer.decode(prompt, skip) + streamed(tokenizer, answer, cuts, skip, after=prompt)
    assert text == tokenizer.decode([*prompt, *answer], skip)


def test_without_its_prompt_an_answer_does_not_continue_it() -> None:
    """Negative control: the law above fails for a stream that does not know what came before."""
    tokenizer = KINDS["llama 2"]
    word = tokenizer.core.token_to_id("▁hello")
    assert word is not None
    assert tokenizer.decode([word]) + streamed(tokenizer, [word], []) != tokenizer.decode([word, word])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_an_answer_continues_its_prompt_as_transformers_decodes_both(kind: str, data: st.DataObject) -> None:
    tokenizer = KINDS[kind]
    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizer.core, clean_up_tokenization_spaces=False)
    whole = [token for token in range(tokenizer.vocab_size) if not is_part(tokenizer, token)]
    prompt, answer = (
        data.draw(st.lists(st.sampled_from(whole), max_size=6)),
        data.draw(st.lists(st.sampled_from(whole), max_size=6)),
    )
    both = theirs.decode([*prompt, *answer], skip_special_tokens=True)
    prompt_text = theirs.decode(prompt, skip_special_tokens=True)
    assert both == prompt_text + streamed(tokenizer, answer, [], after=prompt)
    assert streamed(tokenizer, answer, []) == theirs.decode(answer, skip_special_tokens=True), "a chat's answer"


@pytest.mark.parametrize("kind", ["llama 2", "gemma"])
@pytest.mark.parametrize("before", ["", "▁hello"])
@pytest.mark.parametrize("open_bytes", ["🙂".encode(), "🙂".encode()[:2], b"\xff"])
def test_bytes_of_the_prompt_do_not_reach_into_the_answer(kind: str, before: str, open_bytes: bytes) -> None:
    tokenizer = KINDS[kind]
    named = [] if not before else [tokenizer.core.token_to_id(before)]
    prompt = [*named, *(3 + byte for byte in open_bytes)]
    word, rest = tokenizer.core.token_to_id("▁hello"), [3 + byte for byte in "🙂".encode()[2:]]
    assert streamed(tokenizer, [word], [], after=prompt) == " hello"
    assert streamed(tokenizer, [*rest, word], [1], after=prompt) == "\ufffd\ufffd hello"
    assert streamed(tokenizer, rest, [1], after=prompt) == "\ufffd\ufffd"


@pytest.mark.parametrize("kind", KINDS)
def test_the_cost_per_id_does_not_grow_with_the_text(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = KINDS[kind]
    decoded: list[int] = []

    def counting(self: Tokenizer, ids: list[int], skip_special_tokens: bool = True) -> str:
        decoded.append(len(ids))
        return str(self.core.decode(list(ids), skip_special_tokens=skip_special_tokens))

    monkeypatch.setattr(Tokenizer, "decode", counting)
    stream = StreamDecoder(tokenizer)
    ids = [token % tokenizer.vocab_size for token in range(4000)]
    for token in ids:
        stream.feed([token])
    assert sum(decoded) <= 8 * len(ids)


def test_a_flood_of_open_sequences_is_cheap() -> None:
    stream = StreamDecoder(byte_level())
    begun = time.process_time()
    text = "".join(stream.feed([0xE2]) for _ in range(20_000)) + stream.flush()
    assert text == "\ufffd" * 20_000
    assert time.process_time() - begun < 2


def test_every_byte_has_its_stand_in() -> None:
    tokenizer = byte_level()
    assert [tokenizer.token_bytes(byte) for byte in BYTES] == [bytes([byte]) for byte in BYTES]
