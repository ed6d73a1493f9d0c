"""Tiny pairs to examine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.factories import make_checkpoint, make_tokenizer

VOCABULARY = 300
Make = Callable[..., str]


@pytest.fixture
def make_model(tmp_path: Path) -> Make:
    """Writes a tiny model with a tokenizer under a name, and returns its path."""

    def make(name: str, *, ids: int = VOCABULARY, tokenizer: bool = True, **overrides: object) -> str:
        path = make_checkpoint(tmp_path / name, **{"vocab_size": VOCABULARY, **overrides})
        if tokenizer:
            make_tokenizer(path, ids)
        return str(path)

    return make


def change_config(path: str, **changes: object) -> None:
    """Sets fields of a model's config."""
    file = Path(path) / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
