"""Where prompts come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from surefoot.errors import OptionError, TokenizerError
from surefoot.prompts import builtin, read


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
