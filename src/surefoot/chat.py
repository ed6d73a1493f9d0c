"""Chat templates: messages to prompt text, in a sandbox that cannot reach Python."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from surefoot.errors import PromptError, TokenizerError

Message = Mapping[str, object]

RENDER_FAULTS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    AttributeError,
)
"""What an expression of a template can raise."""


OTHER_PARTS = frozenset(
    f"{before}{kind}{after}"
    for kind in ("image", "video", "audio")
    for before in ("", "input_")
    for after in ("", "_url")
)
"""Kinds of parts of a message, as type or as field, that hold no text."""


class _Generation(Extension):
    """Lets ``{% generation %}`` blocks, which mark a trainer's loss mask, render as their content."""

    tags = {"generation"}  # noqa: RUF012  # the attribute as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _to_json(value: object, indent: int | None = None, ensure_ascii: bool = False, sort_keys: bool = False) -> str:
    """Plain JSON: unlike jinja2's own filter it does not escape for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """The templates a model comes with, by name, and the special tokens they may mention.

    Models with one template call it ``default``; some bring ``tool_use`` besides, taken where ``tools`` are given.
    Filters and globals are those of Hugging Face's chat templates.
    """

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self.sources = dict(sources)
        self._special_tokens = dict(special_tokens)
        self._compiled: dict[str, jinja2.Template] = {}

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: object) -> str:
        """The prompt text; ``variables`` are the template's own (``tools``, ``enable_thinking``, ...).

        Raises ``PromptError`` where the messages are malformed or the template refuses them, ``TokenizerError`` where
        the template itself is broken.
        """
        _check_messages(messages)
        template = self._template("tool_use" if variables.get("tools") else "default")
        values = {**self._special_tokens, **variables}
        try:
            return template.render(messages=messages, add_generation_prompt=add_generation_prompt, **values)
        except RENDER_FAULTS as fault:
            raise PromptError(
                f"the model's chat template cannot render these messages: {type(fault).__name__}: {fault}. "
                "Change the messages, or render them yourself and pass text"
            ) from fault

    def _template(self, name: str) -> jinja2.Template:
        if name not in self.sources:
            name = "default"
        if name not in self.sources:
            raise TokenizerError(
                f"the model has chat templates {', '.join(sorted(self.sources))} but none called default; "
                "expected one. Render the messages yourself and pass text"
            )
        if name not in self._compiled:
            try:
                self._compiled[name] = _environment().from_string(self.sources[name])
            except (jinja2.TemplateError, RecursionError) as fault:
                raise TokenizerError(
                    f"the model's chat template {name!r} is not valid jinja2: {fault}. "
                    "Repair it, or render the messages yourself and pass text"
                ) from fault
        return self._compiled[name]


def _check_messages(messages: Sequence[Message]) -> None:
    found: str | None = None
    if isinstance(messages, (str, bytes, Mapping)):
        found = type(messages).__name__
    elif not messages:
        found = "an empty list"
    else:
        found = next((type(item).__name__ + " in the list" for item in messages if not isinstance(item, Mapping)), None)
    if found is not None:
        raise PromptError(f"found {found} as chat messages; expected a list of {{'role': ..., 'content': ...}}")
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, (list, tuple)) else ():
            other = OTHER_PARTS.intersection((*part, str(part.get("type")))) if isinstance(part, Mapping) else None
            if other:
                raise PromptError(
                    f"found a part of a message that is no text ({min(other)}); expected text: models here read text "
                    "alone, those that come with the weights to read images too. Leave the part out"
                )
