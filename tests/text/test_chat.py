"""Chat templates render as in transformers, and never reach Python."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import jinja2
import pytest
from tests.text.vocabularies import byte_level
from transformers.utils.chat_template_utils import render_jinja_template

from surefoot.chat import ChatTemplate
from surefoot.errors import PromptError, TokenizerError
from surefoot.text import Tokenizer

MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hi <b>&amp; 'é' 🙂"},
    {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": {"x": [1, "ü", None]}}]},
]
CHATML = """{% for message in messages %}
    {{- '<|im_start|>' + message.role }}
    {% if message.content %}
    {{ message.content }}
    {% endif %}
    {% if loop.index > 5 %}{% break %}{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ bos_token }}assistant{% endif %}"""
TEMPLATES = {
    "blocks and loops": CHATML,
    "json": "{{ messages | tojson }} {{ messages[2].tool_calls[0] | tojson(indent=2) }} {{ tools | tojson }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "undefined": "{{ nothing }}{% if nothing is defined %}x{% endif %}{{ enable_thinking }}",
    "macros": "{% macro say(x) %}[{{ x }}]{% endmacro %}{{ say(messages[0].content) }}",
}
ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__base__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__['__builtins__'] }}",
    "{{ cycler.__init__.__globals__.os.mkdir(path) }}",
    "{{ lipsum.__globals__['os'].mkdir(path) }}",
    "{{ self.__init__.__globals__ }}",
    "{{ ''|attr('__class__')|attr('__mro__') }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ ''.format_map({}).__class__.__subclasses__() }}",
    "{{ messages.append(1) }}",
    "{{ messages.clear() }}",
    "{{ messages[0].update(role='x') }}",
    "{% set messages[0].role = 'x' %}",
    "{% include '/etc/hostname' %}",
    "{% import 'os' as os %}",
    "{% do messages.pop() %}",
    "{{ range(10**12) }}",
]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("add_generation_prompt", [False, True])
def test_templates_render_as_in_transformers(name: str, add_generation_prompt: bool) -> None:
    variables = {"tools": [{"name": "f", "description": "<é>"}], "bos_token": "<s>", "enable_thinking": False}
    (expected,), _ = render_jinja_template(
        [MESSAGES], chat_template=TEMPLATES[name], add_generation_prompt=add_generation_prompt, **variables
    )
    template = ChatTemplate({"default": TEMPLATES[name]}, {"bos_token": "<s>"})
    given = {key: value for key, value in variables.items() if key != "bos_token"}
    assert template.render(MESSAGES, add_generation_prompt=add_generation_prompt, **given) == expected


@pytest.mark.parametrize("source", ESCAPES)
def test_a_template_cannot_leave_the_sandbox(tmp_path: Path, source: str) -> None:
    messages: list[dict[str, object]] = [{"role": "user", "content": "hi"}]
    path = str(tmp_path / "escaped")
    rendered = ""
    with suppress(PromptError, TokenizerError):
        rendered = ChatTemplate({"default": source}, {}).render(messages, path=path)
    assert rendered == ""
    assert messages == [{"role": "user", "content": "hi"}]
    assert not (tmp_path / "escaped").exists()


def test_without_the_sandbox_the_same_templates_escape(tmp_path: Path) -> None:
    assert "class 'object'" in jinja2.Template("{{ ''.__class__.__mro__ }}").render()
    jinja2.Template(ESCAPES[5]).render(path=str(tmp_path / "escaped"))
    assert (tmp_path / "escaped").exists()


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[9].content.strip() }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        "{{ messages[0].content.nothing.at_all }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ strftime_now(3) }}",
        "{{ nothing() }}",
    ],
)
def test_what_goes_wrong_while_rendering_is_a_prompt_error(source: str) -> None:
    with pytest.raises(PromptError, match="chat template"):
        ChatTemplate({"default": source}, {}).render([{"role": "user", "content": "hi"}])


def test_the_templates_own_complaint_is_shown() -> None:
    template = ChatTemplate({"default": "{{ raise_exception('roles must alternate') }}"}, {})
    with pytest.raises(PromptError, match="roles must alternate"):
        template.render([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ messages", "{% generation %}", "{% unknown %}", "{{ x | nofilter }}"]
)
def test_a_template_that_is_not_jinja_is_a_tokenizer_error(source: str) -> None:
    with pytest.raises(TokenizerError, match="not valid jinja2"):
        ChatTemplate({"default": source}, {}).render([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("messages", [[], "hi", {"role": "user"}, ["hi"], [{"role": "user"}, 3], b"hi"])
def test_what_are_no_messages_is_a_prompt_error(messages: list[dict[str, object]]) -> None:
    with pytest.raises(PromptError, match="chat messages"):
        ChatTemplate({"default": "x"}, {}).render(messages)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "image": "cat.png"},
        {"type": "image_url", "image_url": {"url": "data:"}},
        {"image": "cat.png"},
        {"type": "video"},
        {"type": "input_audio", "input_audio": {}},
    ],
)
def test_a_part_that_is_no_text_is_refused_before_a_template_makes_placeholders_of_it(part: dict[str, object]) -> None:
    template = ChatTemplate(
        {"default": "{% for p in messages[0].content %}{{ p.text or '<|image_pad|>' }}{% endfor %}"}, {}
    )
    text = {"type": "text", "text": "what is this?"}
    assert template.render([{"role": "user", "content": [text]}]) == "what is this?"
    with pytest.raises(PromptError, match="no text"):
        template.render([{"role": "user", "content": [text, part]}])


def test_the_year_of_today_comes_from_the_clock() -> None:
    rendered = ChatTemplate({"default": "{{ strftime_now('%Y') }}"}, {}).render([{"role": "user", "content": "hi"}])
    assert rendered.isdigit()
    assert int(rendered) >= 2025


def test_chat_ids_are_the_rendered_text_without_added_special_tokens() -> None:
    core = byte_level().core
    tokenizer = Tokenizer(
        core, chat_template=ChatTemplate({"default": "{{ bos }}{{ messages[0].content }}"}, {"bos": "<s>"})
    )
    start = core.token_to_id("<s>")
    assert tokenizer.chat([{"role": "user", "content": "hi"}]) == (start, *b"hi")
