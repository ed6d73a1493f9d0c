"""Sequences to train on, packed from documents: which are trained on, which are kept aside, and in which order.

Documents are shuffled by the seed, laid end to end, and cut into sequences of one length; the last sequences are kept
aside. A position is learnt where its token belongs to an answer and is not its document's first.

Shapes: sequences ``[N, S]``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import OptionError
from surefoot.train.options import DataOptions
from surefoot.train.texts import NOTHING, Document

ORDER, SHUFFLE = 1, 2
"""What a stream of randomness is for; with the seed these key it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """Token ids int32 ``[N, S]``, and bool ``[N, S]`` which of them are learnt."""

    ids: NDArray[np.int32]
    learnt: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def length(self) -> int:
        """Tokens of one."""
        return int(self.ids.shape[1])

    def part(self, start: int, stop: int) -> Sequences:
        """Those from ``start`` to before ``stop``."""
        return Sequences(ids=self.ids[start:stop], learnt=self.learnt[start:stop])

    def rows(self, indices: Sequence[int]) -> Sequences:
        """Those of these indices."""
        return Sequences(ids=self.ids[list(indices)], learnt=self.learnt[list(indices)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What is trained on, and what is kept aside.

    Attributes:
        digest: sha256 of all ids and of what is learnt, in hexadecimal digits.
    """

    train: Sequences
    held_out: Sequences
    digest: str


def pieces_to_answer(documents: Sequence[Document], options: DataOptions) -> list[Document]:
    """What the target is asked where it writes the answers: prompts as they are, texts as the beginnings of sequences.

    An answer that was given is written anew.
    """
    found: list[Document] = []
    for document in documents:
        if len(document.prompt) or document.answer is None:
            found.append(Document(prompt=document.prompt, answer=None, place=document.place))
            continue
        starts = range(0, len(document.answer) - options.prompt_tokens + 1, options.length)
        for start in starts:
            prompt = document.answer[start : start + options.prompt_tokens]
            found.append(Document(prompt=prompt, answer=None, place=document.place, is_prompt=False))
    if not found:
        raise OptionError(
            f"no text has {options.prompt_tokens} tokens for the target to go on from; expected longer ones. Give "
            "more data, or lower --prompt-tokens"
        )
    return found


def digest_of(questions: Sequence[Document]) -> str:
    """Sha256 of all prompts, in hexadecimal digits."""
    sha = hashlib.sha256()
    for question in questions:
        sha.update(len(question.prompt).to_bytes(8, "little") + question.prompt.astype("<i4").tobytes())
    return sha.hexdigest()


def order_of(count: int, seed: int, purpose: int, epoch: int = 0) -> NDArray[np.int64]:
    """An order of ``count`` things, another one for each purpose and epoch."""
    return np.random.default_rng([purpose, seed, epoch]).permutation(count)


def pack(documents: Sequence[Document], options: DataOptions, seed: int) -> Split:
    """Packs documents, all of them answered.

    Raises:
        OptionError: too few tokens, or an answer is missing.
    """
    ids, learnt = [], []
    for index in order_of(len(documents), seed, SHUFFLE).tolist():
        document = documents[index]
        if document.answer is None:
            raise OptionError(f"{document.place} has no answer; expected one. Add it, or give --answers target")
        ids += [document.prompt, document.answer]
        mask = np.arange(document.size) >= max(1, len(document.prompt))
        learnt.append(mask)
    tokens, marks = np.concatenate([NOTHING, *ids]), np.concatenate([np.empty(0, dtype=np.bool_), *learnt])
    count = len(tokens) // options.length
    least = options.held_out + 1
    if count < least:
        raise OptionError(
            f"found {len(tokens)} tokens, {count} sequences of {options.length}; expected at least {least}, as "
            f"{options.held_out} are kept aside. Give more data, or lower --length or --held-out"
        )
    shape = (count, options.length)
    whole = Sequences(
        ids=tokens[: count * options.length].reshape(shape), learnt=marks[: count * options.length].reshape(shape)
    )
    last = count - options.held_out
    train = whole.part(0, min(last, options.max_sequences or last))
    held_out = whole.part(last, count)
    for name, part in (("trained on", train), ("kept aside", held_out)):
        if not (part.learnt[:, 1:-1] & part.learnt[:, 2:]).any():
            raise OptionError(f"of what is {name} nothing is an answer; expected some. Give longer answers or --length")
    return Split(train=train, held_out=held_out, digest=_digest(train, held_out))


def _digest(*parts: Sequences) -> str:
    sha = hashlib.sha256()
    for part in parts:
        sha.update(repr(part.ids.shape).encode())
        sha.update(np.ascontiguousarray(part.ids.astype("<i4")).tobytes())
        sha.update(np.packbits(part.learnt).tobytes())
    return sha.hexdigest()


def chosen(count: int, step: int, batch: int, seed: int) -> list[int]:
    """The sequences of step ``step = 0, 1, ...``: every one of ``count`` once in an epoch, in another order each."""
    found = []
    for place in range(step * batch, (step + 1) * batch):
        epoch, index = divmod(place, count)
        found.append(int(order_of(count, seed, ORDER, epoch)[index]))
    return found
