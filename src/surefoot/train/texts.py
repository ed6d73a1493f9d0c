"""Reads what a user gives to train on: documents, and prompts the target is to answer.

A file ending in ``.jsonl`` holds an object per line; ``.npy`` and ``.npz`` hold token ids; any other file is one text;
a folder is the files in it, in the order of their names. An answer is what is learnt, a prompt is only read.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import OptionError, PromptError, RequestError, TokenizerError
from surefoot.loading.loaded import LoadedTarget
from surefoot.text import Tokenizer

Ids: TypeAlias = NDArray[np.int32]
NOTHING: Ids = np.empty(0, dtype=np.int32)

EXPECTED = (
    "an object with 'text', with 'prompt' (text, token ids or chat messages) and 'completion', or with 'messages'. "
    "A 'prompt' alone, and messages without a last answer, need --answers target"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One record: ids to read, then ids to learn.

    Attributes:
        prompt: read, not learnt; empty for a text.
        answer: learnt; None where the target has to write it.
        place: where it was found, for errors.
        is_prompt: the prompt was given as one; else it is the beginning of a text.
    """

    prompt: Ids
    answer: Ids | None
    place: str
    is_prompt: bool = True

    @property
    def size(self) -> int:
        """Tokens it has."""
        return len(self.prompt) + (0 if self.answer is None else len(self.answer))


def read_documents(paths: Sequence[Path], target: LoadedTarget) -> list[Document]:
    """The documents of files and folders, in order.

    Raises:
        OptionError: a file cannot be read, a line is no record, an id is outside the vocabulary, or there is nothing.
        TokenizerError: texts for a target without a tokenizer.
    """
    documents = []
    for path in paths:
        for file in _files(path):
            documents += [document for document in _read(file, target) if document.size]
    if not documents:
        raise OptionError(f"found nothing to train on in {', '.join(map(str, paths)) or 'no file'}; expected texts")
    size = target.model.vocab_size
    for document in documents:
        for ids in (document.prompt, NOTHING if document.answer is None else document.answer):
            wrong = ids[(ids < 0) | (ids >= size)]
            if len(wrong):
                found = f"{document.place} holds id {wrong[0]}"
                raise OptionError(f"{found}; the target's vocabulary has ids 0 to {size - 1}. Give ids of its own")
    return documents


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise OptionError(f"found no {path}; expected a file or folder to train on. Check the path")
    if not path.is_dir():
        return [path]
    inside = (file for file in path.rglob("*") if file.is_file())
    return sorted(file for file in inside if not any(part.startswith(".") for part in file.relative_to(path).parts))


def _read(file: Path, target: LoadedTarget) -> list[Document]:
    try:
        if file.suffix in (".npy", ".npz"):
            arrays, text = _load(file), ""
        else:
            arrays, text = None, file.read_text(encoding="utf-8-sig")  # a mark of byte order is no text
    except (OSError, EOFError, BadZipFile, zlib.error, ValueError) as error:  # not UTF-8: a ValueError
        raise OptionError(
            f"{file}: {error}; expected a readable file, texts in UTF-8. Convert it, or leave it out"
        ) from error
    if arrays is not None:
        return _rows(file, arrays)
    encoder = _Encoder(target, file)
    if file.suffix != ".jsonl":
        return [Document(prompt=NOTHING, answer=encoder.text(text, str(file)), place=str(file))]
    lines = enumerate(text.split("\n"), start=1)  # JSON texts may hold other ends of lines
    return [_record(line, f"{file}:{number}", encoder) for number, line in lines if line.strip()]


def _load(file: Path) -> dict[str, NDArray[np.generic]]:
    """The arrays of a file by their names; the only one of ``.npy`` is called ``tokens``."""
    with file.open("rb") as opened:
        loaded = np.load(opened, allow_pickle=False)
        return {"tokens": loaded} if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}


def _rows(file: Path, arrays: Mapping[str, NDArray[np.generic]]) -> list[Document]:
    """Ids ``[tokens]``, or ``[documents, tokens]``; in ``.npz`` ``tokens``, with ``starts`` of documents if need be."""
    if "tokens" not in arrays:
        raise OptionError(f"{file} holds {', '.join(arrays) or 'nothing'}; expected an array 'tokens'. Name it so")
    tokens, starts = arrays["tokens"], arrays.get("starts")
    if tokens.dtype.kind not in "iu" or tokens.ndim not in (1, 2):
        raise OptionError(
            f"{file} holds {tokens.dtype} {list(tokens.shape)}; expected integers [tokens] or [N, tokens]. Convert them"
        )
    if tokens.size and not -(2**31) <= int(tokens.min()) <= int(tokens.max()) < 2**31:
        raise OptionError(f"{file} holds numbers up to {int(tokens.max())}; expected token ids. Give the target's")
    rows = list(tokens) if tokens.ndim == 2 else [tokens]
    if starts is not None:
        if starts.dtype.kind not in "iu" or starts.ndim != 1 or tokens.ndim != 1:
            found = f"starts {starts.dtype} {list(starts.shape)} and tokens {list(tokens.shape)}"
            raise OptionError(f"{file} holds {found}; expected integers [documents] and [tokens]. Convert them")
        cuts = starts.tolist()
        if cuts != sorted(cuts) or (cuts and not 0 <= cuts[0] <= cuts[-1] <= len(tokens)):
            raise OptionError(
                f"{file}: starts do not cut {list(tokens.shape)} tokens; expected ascending places from 0 to "
                f"{len(tokens)}. Correct them"
            )
        rows = np.split(tokens, cuts)
    return [
        Document(prompt=NOTHING, answer=row.astype(np.int32), place=f"{file}, row {number}")
        for number, row in enumerate(rows)
    ]


def _record(line: str, place: str, encoder: _Encoder) -> Document:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:  # a number of too many digits is a ValueError of its own
        raise OptionError(f"{place} is not JSON ({error}); expected {EXPECTED}") from error
    if not isinstance(value, dict):
        raise OptionError(f"{place} holds {line.strip()[:60]!r}; expected {EXPECTED}")
    text, prompt, completion, messages = (value.get(key) for key in ("text", "prompt", "completion", "messages"))
    given = [key for key in ("text", "prompt", "messages") if value.get(key) is not None]
    if len(given) != 1 or (completion is not None and prompt is None):
        found = " and ".join(repr(key) for key in value) or "an empty object"
        raise OptionError(f"{place} holds {found}; expected {EXPECTED}")
    if isinstance(text, str):
        return Document(prompt=NOTHING, answer=encoder.text(text, place), place=place)
    if messages is not None and _are_messages(messages):
        *before, last = messages
        if last.get("role") != "assistant":
            return Document(prompt=encoder.prompt(messages, place), answer=None, place=place)
        if before and isinstance(last.get("content"), str):
            answer = encoder.answer(str(last["content"]), place)
            return Document(prompt=encoder.prompt(before, place), answer=answer, place=place)
    elif prompt is not None and (completion is None or isinstance(completion, str)):
        ids = encoder.prompt(prompt, place)
        return Document(
            prompt=ids, answer=None if completion is None else encoder.answer(completion, place), place=place
        )
    raise OptionError(f"{place} holds {line.strip()[:60]!r}; expected {EXPECTED}")


def _are_messages(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(message, Mapping) for message in value)


class _Encoder:
    """Texts to ids as the target's own requests have them."""

    def __init__(self, target: LoadedTarget, file: Path) -> None:
        self._target, self._file = target, file

    @property
    def _tokenizer(self) -> Tokenizer:
        if self._target.tokenizer is None:
            raise TokenizerError(
                f"{self._file} holds text and {self._target.name} has no tokenizer; expected one. Give token ids, in "
                ".npy or .npz"
            )
        return self._target.tokenizer

    def text(self, text: str, place: str) -> Ids:
        """A whole text, ended as the target ends one."""
        return self._ended(text, place, special=True)

    def answer(self, text: str, place: str) -> Ids:
        """An answer's own ids, ended as the target ends one."""
        return self._ended(text, place, special=False)

    def prompt(self, prompt: object, place: str) -> Ids:
        """A prompt as a request has it: text, ids or chat messages."""
        try:
            if isinstance(prompt, str):
                return np.array(self._tokenizer.encode(prompt), dtype=np.int32)
            if _are_messages(prompt):
                return np.array(self._tokenizer.chat(prompt), dtype=np.int32)  # type: ignore[arg-type]  # just seen
            if isinstance(prompt, list) and all(type(token) is int for token in prompt):  # a bool is no id
                return np.array(prompt, dtype=np.int32)
        except (RequestError, OverflowError) as error:
            raise OptionError(f"{place}: {error}") from error
        raise OptionError(f"{place} holds the prompt {prompt!r:.60}; expected text, token ids or chat messages")

    def _ended(self, text: str, place: str, *, special: bool) -> Ids:
        """The text's ids with the target's end of text after them, where they lack it."""
        try:
            ids: Sequence[int] = self._tokenizer.encode(text, add_special_tokens=special)
        except PromptError as error:
            raise OptionError(f"{place}: {error}") from error
        ends = self._target.eos_token_ids
        if ends and ids and ids[-1] not in ends:
            ids = (*ids, ends[0])
        return np.array(ids, dtype=np.int32)
