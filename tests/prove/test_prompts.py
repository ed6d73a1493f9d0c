"""Where prompts come from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import pytest

from surefoot.errors import OptionError, TokenizerError
from surefoot.prompts import GENERAL, builtin, read


def test_a_text_file_holds_a_prompt_per_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\n\n  \n{two\n", encoding="utf-8")
    assert read(path) == ["one", "{two"]


def test_jsonl_holds_texts_ids_and_chats(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('"text"\n[1, 2]\n{"prompt": "more"}\n{"prompt": [3]}\n[{"role": "user", "content": "hi"}]\n')
    assert read(path) == ["text", [1, 2], "more", [3], [{"role": "user", "content": "hi"}]]


@pytest.mark.parametrize("line", ["{", "7", "[1, 2.5]", "[true]", '{"text": "wrong key"}', '["a", 1]'])
def test_other_json_is_refused_with_its_place(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('"fine"\n' + line + "\n")
    with pytest.raises(OptionError, match=r"prompts\.jsonl:2 .*expected a string"):
        read(path)


def test_files_without_prompts_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    with pytest.raises(OptionError, match="holds no prompt"):
        read(empty)
    with pytest.raises(OptionError, match="expected a readable"):
        read(tmp_path / "missing.txt")
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(OptionError, match="expected a readable"):
        read(binary)


def test_built_in_prompts_need_a_tokenizer() -> None:
    with pytest.raises(TokenizerError, match="token ids"):
        builtin(None)


class Knows:
    """A tokenizer that knows the texts of the evaluation set, all of them but ``missing``."""

    def __init__(self, missing: int | None = None) -> None:
        prompts = json.loads(files("surefoot").joinpath("pebble", "evaluation.json").read_text())["prompts"]
        self.texts = {tuple(prompt["ids"]): prompt["text"] for i, prompt in enumerate(prompts) if i != missing}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.texts.get(tuple(ids), "")


def test_the_bundled_tokenizer_gets_the_evaluation_set_and_others_get_texts() -> None:
    knows = Knows()
    assert {tuple(ids) for ids in builtin(knows)} == set(knows.texts)
    assert len(knows.texts) == 40
    assert all(len(ids) == 160 for ids in knows.texts)
    assert builtin(Knows(missing=39)) == list(GENERAL)


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('"one\u2028two"\n"three\x85"\n', encoding="utf-8")
    assert read(path) == ["one\u2028two", "three\x85"]
