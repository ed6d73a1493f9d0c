"""Every form of data is read as a request would be, and every bad line is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.factories import make_checkpoint
from tests.train.teaching import loaded

from surefoot.errors import OptionError, TokenizerError
from surefoot.loading.loaded import LoadedTarget
from surefoot.train.texts import Document, read_documents

EOS = 2


def records(target: LoadedTarget, path: Path, *values: object) -> list[Document]:
    file = path / "data.jsonl"
    file.write_text("\n\n".join(json.dumps(value) for value in values), encoding="utf-8")
    return read_documents([file], target)


def test_records_become_what_is_read_and_what_is_learnt(target: LoadedTarget, tmp_path: Path) -> None:
    assert target.tokenizer is not None
    encode = target.tokenizer.encode
    messages = [{"role": "user", "content": "greet"}, {"role": "assistant", "content": "hello"}]
    text, pair, chat, alone, question, numbers = records(
        target,
        tmp_path,
        {"text": "for index\u2028", "other": 1},
        {"prompt": "def ", "completion": "greet"},
        {"messages": messages},
        {"prompt": "def "},
        {"messages": messages[:1]},
        {"prompt": [5, 6], "completion": "x"},
    )
    assert (text.prompt.tolist(), text.answer.tolist()) == ([], [*encode("for index\u2028"), EOS])  # type: ignore[union-attr]
    assert (pair.prompt.tolist(), pair.answer.tolist()) == ([*encode("def ")], [*encode("greet"), EOS])  # type: ignore[union-attr]
    assert chat.prompt.tolist() == [*target.tokenizer.chat(messages[:1])]
    assert chat.answer.tolist() == [*encode("hello"), EOS]  # type: ignore[union-attr]
    assert (alone.answer, question.answer) == (None, None)
    assert question.prompt.tolist() == chat.prompt.tolist()
    assert numbers.prompt.tolist() == [5, 6]
    assert pair.place.endswith("data.jsonl:3")


def test_a_folder_is_its_texts_in_the_order_of_their_names(target: LoadedTarget, tmp_path: Path) -> None:
    assert target.tokenizer is not None
    for name, text in (("b.py", "print"), ("a/c.txt", "values"), (".hidden/x", "no"), (".y", "no")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = [document.answer.tolist() for document in read_documents([tmp_path], target)]  # type: ignore[union-attr]
    assert found == [[*target.tokenizer.encode(text), EOS] for text in ("values", "print")]


def test_arrays_of_ids_are_rows_or_one_text_or_cut_by_starts(target: LoadedTarget, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.arange(6, dtype=np.uint16).reshape(2, 3))
    np.save(tmp_path / "one.npy", np.arange(4))
    np.savez(tmp_path / "cut.npz", tokens=np.arange(7, dtype=np.int64), starts=np.array([0, 2, 7]))
    read = [
        [document.answer.tolist() for document in read_documents([tmp_path / name], target)]  # type: ignore[union-attr]
        for name in ("rows.npy", "one.npy", "cut.npz")
    ]
    assert read == [[[0, 1, 2], [3, 4, 5]], [[0, 1, 2, 3]], [[0, 1], [2, 3, 4, 5, 6]]]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("{", "is not JSON"),
        ("[1, 2]", "holds"),
        ('{"name": "x"}', "'name'"),
        ('{"text": "a", "prompt": "b"}', "'text' and 'prompt'"),
        ('{"text": "a", "completion": "b"}', "'text' and 'completion'"),
        ('{"text": 5}', "holds"),
        ('{"messages": []}', "holds"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "holds"),
        ('{"prompt": "a", "completion": 5}', "holds"),
        ('{"prompt": {"a": 1}}', "holds the prompt"),
        ('{"prompt": [400]}', "holds id 400; the target's vocabulary has ids 0 to 307"),
        ('{"prompt": [-1]}', "holds id -1"),
        ('{"prompt": [true, false]}', "holds the prompt [True, False]"),
        ('{"prompt": [1' + "0" * 5000 + "]}", "is not JSON"),
    ],
)
def test_a_bad_line_is_named_by_its_number(target: LoadedTarget, tmp_path: Path, line: str, found: str) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text('{"text": "fine"}\n\n' + line)
    with pytest.raises(OptionError) as caught:
        read_documents([file], target)
    assert f"{file}:3 " in str(caught.value)
    assert found in str(caught.value)


def test_files_that_cannot_be_read_are_named(target: LoadedTarget, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY broken")
    (tmp_path / "nothing.npy").touch()
    np.savez(tmp_path / "cut.npz", tokens=np.arange(99))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "cut.npz").read_bytes()[:100])
    (tmp_path / "deep.jsonl").write_text("[" * 10**5)
    (tmp_path / "half.jsonl").write_text(json.dumps({"text": "\ud800"}))
    np.save(tmp_path / "real.npy", np.ones(4))
    np.savez(tmp_path / "other.npz", ids=np.arange(4))
    np.savez(tmp_path / "cuts.npz", tokens=np.arange(4), starts=np.array([3, 1]))
    np.save(tmp_path / "large.npy", np.array([2**40]))
    np.savez(tmp_path / "bare.npz")
    for kind, starts in STARTS.items():
        np.savez(tmp_path / f"starts{kind}.npz", tokens=np.arange(4), starts=starts)
    for name, message in (
        ("missing", "found no"),
        ("latin.txt", "texts in UTF-8"),
        ("empty", "found nothing to train on"),
        ("broken.npy", "expected a readable file"),
        ("nothing.npy", "expected a readable file"),
        ("cut.npz", "expected a readable file"),
        ("deep.jsonl", "jsonl:1 is not JSON"),
        ("half.jsonl", "valid Unicode"),
        ("real.npy", "expected integers"),
        ("other.npz", "expected an array 'tokens'"),
        ("cuts.npz", "ascending places"),
        ("large.npy", "expected token ids"),
        ("bare.npz", "holds nothing; expected an array"),
        *((f"starts{kind}.npz", "starts .* expected integers") for kind in STARTS),
    ):
        with pytest.raises(OptionError, match=message) as caught:
            read_documents([tmp_path / name], target)
        assert str(caught.value).count(name) == 1


STARTS = {
    "real": np.array([0.0, 2.0]),
    "pairs": np.array([[0, 2]]),
    "names": np.array(["a"]),
    "one": np.array(2),
    "nan": np.array([float("nan")]),
}
"""What cuts no text, whatever is cut."""


def test_a_mark_of_byte_order_is_no_text(target: LoadedTarget, tmp_path: Path) -> None:
    mark = "\ufeff".encode()
    for name, text in (("a.txt", b"for index"), ("b.jsonl", b'{"text": "for index"}')):
        (tmp_path / "plain").mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(mark + text)
        (tmp_path / "plain" / name).write_bytes(text)
        (marked,) = read_documents([tmp_path / name], target)
        (plain,) = read_documents([tmp_path / "plain" / name], target)
        assert np.array_equal(marked.answer, plain.answer)  # type: ignore[arg-type]  # it has one


def test_an_array_that_would_execute_code_is_never_opened(target: LoadedTarget, tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(OptionError, match="expected a readable file"):
        read_documents([tmp_path / "objects.npy"], target)


def test_texts_need_a_tokenizer_and_ids_do_not(tmp_path: Path) -> None:
    target = loaded(make_checkpoint(tmp_path / "bare"))
    np.save(tmp_path / "ids.npy", np.arange(4))
    assert len(read_documents([tmp_path / "ids.npy"], target)) == 1
    (tmp_path / "text.txt").write_text("x")
    with pytest.raises(TokenizerError, match="has no tokenizer"):
        read_documents([tmp_path / "text.txt"], target)
