"""A rendered chat gets none of the special tokens a text prompt would get."""

from __future__ import annotations

import pytest
from tests.text.vocabularies import byte_level
from tokenizers import processors

from surefoot.chat import ChatTemplate
from surefoot.text import Tokenizer

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("single", ["<s> $A", "$A </s>", "<s> $A </s>"])
@pytest.mark.parametrize("written", ["", "<s>", "</s>"])
def test_nothing_is_added_to_what_a_template_wrote(single: str, written: str) -> None:
    core = byte_level().core
    ids = {name: core.token_to_id(name) for name in ("<s>", "</s>")}
    assert None not in ids.values()
    core.post_processor = processors.TemplateProcessing(single=single, pair="$A $B", special_tokens=list(ids.items()))
    template = ChatTemplate({"default": written + "{{ messages[0].content }}"}, {})
    tokenizer = Tokenizer(core, chat_template=template)
    start = (ids[written],) if written else ()
    assert tokenizer.chat(MESSAGES) == (*start, *b"hi")
    assert len(tokenizer.encode("hi")) > 2, "as a text prompt it would get special tokens"
