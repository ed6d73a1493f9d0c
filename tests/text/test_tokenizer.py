"""Text prompts become ids once, with the special tokens they should have."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.text.vocabularies import KINDS, byte_level
from tokenizers import processors

from surefoot.errors import PromptError, TokenizerError
from surefoot.text import Tokenizer


def with_specials() -> Tokenizer:
    core = byte_level().core
    first, second = core.token_to_id("<s>"), core.token_to_id("</s>")
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="$A $B", special_tokens=[("<s>", first), ("</s>", second)]
    )
    return Tokenizer(core)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=20))
def test_any_text_survives_the_round_trip(text: str) -> None:
    tokenizer = KINDS["byte level"]
    assume("é!" not in text)  # an added token that this decoder cannot spell
    ids = tokenizer.encode(text)
    for special in ("<s>", "</s>", "<é>"):
        text = text.replace(special, "")
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("text", ["", "hi", "<s>hi", "hi</s>", "<s>hi</s>", "<s>", "</s>", "a<s>b</s>c"])
def test_special_tokens_surround_a_text_exactly_once(text: str) -> None:
    tokenizer = with_specials()
    first, second = (tokenizer.core.token_to_id(special) for special in ("<s>", "</s>"))
    plain = tokenizer.encode(text, add_special_tokens=False)
    assert plain == tuple(tokenizer.core.encode(text, add_special_tokens=False).ids)
    start = () if plain[:1] == (first,) else (first,)
    end = () if plain[-1:] == (second,) else (second,)
    assert tokenizer.encode(text) == (*start, *plain, *end)


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", b"bytes", None, 3, ["a"]])
def test_what_is_no_text_is_a_prompt_error(text: str) -> None:
    with pytest.raises(PromptError):
        KINDS["byte level"].encode(text)


@pytest.mark.parametrize("ids", [[-1], [2**32], ["a"], [1.5], [None]])
def test_what_are_no_ids_is_a_prompt_error(ids: list[int]) -> None:
    with pytest.raises(PromptError):
        KINDS["byte level"].decode(ids)


def test_ids_beyond_the_vocabulary_show_as_nothing() -> None:
    tokenizer = KINDS["byte level"]
    assert tokenizer.decode([65, tokenizer.vocab_size, 10**6, 66]) == "AB"
    assert tokenizer.piece(tokenizer.vocab_size) is None
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""


def test_token_bytes_are_those_in_the_middle_of_a_text() -> None:
    llama = KINDS["llama 2"]
    expected = {"▁hello": b" hello", "<0xE2>": b"\xe2", "漢": "漢".encode(), "<s>": b"<s>"}
    assert {piece: llama.token_bytes(llama.core.token_to_id(piece)) for piece in expected} == expected
    metaspace = KINDS["metaspace"]
    assert metaspace.token_bytes(metaspace.core.token_to_id("▁a")) == b" a"


def test_the_vocabulary_ends_after_the_highest_id() -> None:
    tokenizer = KINDS["byte level"]
    assert tokenizer.piece(tokenizer.vocab_size - 1) is not None
    assert {tokenizer.piece(token) for token in tokenizer.special_ids} == {"<s>", "</s>", "<é>"}


def test_encoding_rules_tell_tokenizers_apart_and_nothing_else() -> None:
    assert byte_level().encoding_rules() == byte_level().encoding_rules() == with_specials().encoding_rules()
    kinds = [KINDS[name].encoding_rules() for name in ("byte level", "llama 2", "metaspace")]
    assert all(one != other for one, other in combinations(kinds, 2))


def test_chat_without_a_template_is_refused() -> None:
    with pytest.raises(TokenizerError, match="no chat template"):
        KINDS["byte level"].chat([{"role": "user", "content": "hi"}])
