"""The text of an answer belongs to the prompt's: it goes on from a text, and begins anew in a chat."""

from __future__ import annotations

import pytest
from tests.tables import TableTarget
from tests.text.vocabularies import KINDS, SPECIAL

from surefoot import Engine, SamplingParams, TokenizerError
from surefoot.chat import ChatTemplate
from surefoot.opening import Prompt
from surefoot.text import Tokenizer

MESSAGES = [{"role": "user", "content": "a b"}]
WORDS = ("▁hello", "▁a", "a", "b", ".", "▁", "🙂")


def llama() -> Tokenizer:
    core = KINDS["llama 2"].core
    return Tokenizer(core, chat_template=ChatTemplate({"default": "{{ messages[0].content }}"}, {}))


def answers(prompt: Prompt) -> list[tuple[tuple[int, ...], str]]:
    """Answers of whole tokens, from several tables."""
    tokenizer = llama()
    words = tuple(token for word in WORDS if (token := tokenizer.core.token_to_id(word)) is not None)
    assert len(words) == len(WORDS)
    params = SamplingParams(max_tokens=6, allowed_tokens=words)
    targets = [TableTarget(tokenizer.vocab_size, seed=seed) for seed in range(8)]
    results = [Engine(target, tokenizer=tokenizer).generate(prompt, params) for target in targets]
    return [(result.tokens, result.text) for result in results]


@pytest.mark.parametrize("prompt", ["ab", "<s>a", "🙂", "a</s>"])
@pytest.mark.parametrize("in_ids", [False, True])
def test_prompt_and_answer_concatenate_to_the_text_of_both(prompt: str, in_ids: bool) -> None:
    tokenizer = llama()
    ids = tokenizer.encode(prompt)
    begin_with_a_space = 0
    for tokens, text in answers(ids if in_ids else prompt):
        assert tokenizer.decode(ids) + text == tokenizer.decode([*ids, *tokens])
        begin_with_a_space += text.startswith(" ")
    assert begin_with_a_space > 0


def test_the_answer_to_a_chat_is_a_text_of_its_own() -> None:
    tokenizer = llama()
    for tokens, text in answers(MESSAGES):
        assert text == tokenizer.decode(tokens)


def test_a_prompt_of_special_tokens_has_no_text_to_go_on_from() -> None:
    tokenizer = llama()
    for tokens, text in answers(SPECIAL[0]):
        assert text == tokenizer.decode(tokens)


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(TokenizerError, match="a stop string"):
        Engine(TableTarget()).generate((1, 2), SamplingParams(stop=("a",)))
