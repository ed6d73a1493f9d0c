"""A directory's tokenizer: ``tokenizer.json``, and what ``tokenizer_config.json`` says beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import tokenizers

from surefoot.chat import ChatTemplate
from surefoot.errors import CheckpointError
from surefoot.loading.files import read_optional_object, regular_file
from surefoot.loading.formats import refuse_code
from surefoot.text import Tokenizer

CONFIG = "tokenizer_config.json"
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Special tokens a chat template may mention by name."""
OTHER_FORMATS = ("tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "tekken.json", "spiece.model")


def load_tokenizer(directory: Path) -> tuple[Tokenizer | None, tuple[str, ...]]:
    """The tokenizer, or None where there is no ``tokenizer.json``, and notes on what is there instead."""
    path = regular_file(directory, "tokenizer.json")
    config = read_optional_object(directory, CONFIG)
    if config.get("auto_map") is not None:
        refuse_code(f"{directory / CONFIG}")
    if path is None:
        others = [name for name in OTHER_FORMATS if (directory / name).exists()]
        if not others:
            return None, ()
        return None, (
            f"{', '.join(others)} is not read: without tokenizer.json only token ids can be given. "
            "Save the tokenizer again with a current transformers to get one",
        )
    core = _read_core(path)
    sources = _template_sources(directory, config)
    older = read_optional_object(directory, "special_tokens_map.json")
    template = ChatTemplate(sources, _special_tokens(config, older, directory / CONFIG)) if sources else None
    return Tokenizer(core, chat_template=template), ()


def _read_core(path: Path) -> tokenizers.Tokenizer:
    """The tokenizer itself, in which every added token has the id that the file says."""
    try:
        raw = path.read_text(encoding="utf-8")
        core = tokenizers.Tokenizer.from_str(raw)
    except Exception as fault:  # the library raises nothing narrower
        raise CheckpointError(f"{path}: not a readable tokenizer: {fault}. Download the file again") from fault
    for added in json.loads(raw).get("added_tokens", []):
        found = core.token_to_id(added["content"])
        if found != added["id"]:
            raise CheckpointError(
                f"{path}: the added token {added['content']!r:.80} gets the id {found}; expected {added['id']}, as the "
                "file says. Its ids have gaps or clash: save the tokenizer again"
            )
    return core


def _special_tokens(config: Mapping[str, object], older: Mapping[str, object], path: Path) -> dict[str, str]:
    """Special tokens by role; ``special_tokens_map.json``, where older exporters put them, fills the gaps."""
    found: dict[str, str] = {}
    for role in SPECIAL:
        value = config.get(role) if config.get(role) is not None else older.get(role)
        if isinstance(value, Mapping):
            value = value.get("content")
        if value is None:
            continue
        if not isinstance(value, str):
            raise CheckpointError(f"{path}: {role} is {value!r:.80}; expected a string. Repair the file")
        found[role] = value
    return found


def _template_sources(directory: Path, config: Mapping[str, object]) -> dict[str, str]:
    """Chat templates by name; a file of its own goes before the entry in the config."""
    sources = _config_sources(config.get("chat_template"), directory / CONFIG)
    path = regular_file(directory, "chat_template.jinja")
    if path is not None:
        try:
            sources["default"] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as fault:
            raise CheckpointError(f"{path}: not UTF-8: {fault}. Download the file again") from fault
    return sources


def _config_sources(entry: object, path: Path) -> dict[str, str]:
    if entry is None:
        return {}
    if isinstance(entry, str):
        return {"default": entry}
    items = [item for item in entry if isinstance(item, dict)] if isinstance(entry, list) else []
    named = {item.get("name"): item.get("template") for item in items}
    sources = {name: text for name, text in named.items() if isinstance(name, str) and isinstance(text, str)}
    if not sources or len(sources) != len(named):
        raise CheckpointError(
            f"{path}: chat_template is {entry!r:.80}; expected a template, or a list of objects of name and template"
        )
    return sources
