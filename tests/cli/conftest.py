"""A tiny random model that talks, and a way to run the program in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from tests.factories import make_checkpoint, make_tokenizer

from surefoot.cli import run

VOCABULARY = 300
CHAT_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A target's directory, chat template included."""
    path = make_checkpoint(tmp_path_factory.mktemp("models") / "target", vocab_size=VOCABULARY)
    make_tokenizer(path, VOCABULARY)
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    return str(path)


@pytest.fixture(scope="session")
def other_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose tokenizer has fewer merges."""
    path = make_checkpoint(tmp_path_factory.mktemp("models") / "other", vocab_size=VOCABULARY)
    make_tokenizer(path, 270)
    return str(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    code: int
    out: str
    err: str


Program = Callable[..., Ran]


@pytest.fixture
def surefoot_program(capsys: pytest.CaptureFixture[str]) -> Program:
    """Runs the program in this process."""

    def program(*arguments: str) -> Ran:
        code = run(arguments)
        out, err = capsys.readouterr()
        return Ran(code=code, out=out, err=err)

    return program
