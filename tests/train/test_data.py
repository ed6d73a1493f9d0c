"""Documents become sequences: nothing is lost, invented or learnt that should not be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from surefoot.errors import OptionError
from surefoot.train.data import chosen, pack, pieces_to_answer
from surefoot.train.options import DataOptions
from surefoot.train.texts import NOTHING, Document, Ids

OPTIONS = DataOptions(length=8, held_out=2)


def ids(*tokens: int) -> Ids:
    return np.array(tokens, dtype=np.int32)


def numbered(sizes: list[tuple[int, int]]) -> list[Document]:
    """Documents of so many prompt and answer tokens, no id twice."""
    documents, first = [], 0
    for prompt, answer in sizes:
        tokens = np.arange(first, first + prompt + answer, dtype=np.int32)
        documents.append(Document(prompt=tokens[:prompt], answer=tokens[prompt:], place=str(first)))
        first += prompt + answer
    return documents


SIZES = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 12)), min_size=12, max_size=30)


@settings(max_examples=40, deadline=None)
@given(SIZES, st.integers(0, 5))
def test_packing_keeps_documents_whole_and_learns_answers_alone(sizes: list[tuple[int, int]], seed: int) -> None:
    documents = [*numbered([(0, 40), *sizes])]
    try:
        split = pack(documents, OPTIONS, seed)
    except OptionError as refused:  # documents so short that what is kept aside has nothing to learn
        if "nothing is an answer" not in str(refused):
            raise
        reject()
    tokens = np.concatenate([split.train.ids.ravel(), split.held_out.ids.ravel()])
    learnt = np.concatenate([split.train.learnt.ravel(), split.held_out.learnt.ravel()])
    total = sum(document.size for document in documents)
    assert len(tokens) == total - total % 8
    assert len(set(tokens.tolist())) == len(tokens)
    assert len(split.held_out) == 2
    owner = {
        int(token): (document, place)
        for document in documents
        for place, token in enumerate(
            [*document.prompt.tolist(), *(document.answer if document.answer is not None else ())]
        )
    }
    for place, token in enumerate(tokens.tolist()):
        document, within = owner[token]
        assert bool(learnt[place]) is (within >= max(1, len(document.prompt)))
        if within:
            assert place == 0 or int(tokens[place - 1]) == token - 1


def test_what_is_kept_aside_depends_on_the_seed_alone() -> None:
    documents = numbered([(2, 9)] * 20)
    assert pack(documents, OPTIONS, 1).digest == pack(documents, OPTIONS, 1).digest
    assert pack(documents, OPTIONS, 1).digest != pack(documents, OPTIONS, 2).digest
    fewer = pack(documents, replace(OPTIONS, max_sequences=5), 1)
    assert len(fewer.train) == 5
    assert np.array_equal(fewer.held_out.ids, pack(documents, OPTIONS, 1).held_out.ids)
    assert not set(fewer.train.ids.ravel().tolist()) & set(fewer.held_out.ids.ravel().tolist())


@pytest.mark.parametrize(("count", "batch"), [(7, 3), (5, 5), (3, 8)])
def test_every_sequence_comes_once_in_an_epoch_and_orders_differ(count: int, batch: int) -> None:
    seen = [index for step in range(4 * count) for index in chosen(count, step, batch, seed=0)]
    epochs = [tuple(seen[start : start + count]) for start in range(0, len(seen) - count + 1, count)]
    assert all(sorted(epoch) == list(range(count)) for epoch in epochs)
    assert len(set(epochs)) > 1


def test_texts_are_asked_by_their_beginnings_and_prompts_as_they_are() -> None:
    text = Document(prompt=NOTHING, answer=np.arange(20, dtype=np.int32), place="text")
    prompt = Document(prompt=ids(1, 2, 3), answer=ids(4), place="prompt")
    asked = pieces_to_answer([text, prompt], replace(OPTIONS, prompt_tokens=3))
    assert [document.prompt.tolist() for document in asked] == [[0, 1, 2], [8, 9, 10], [16, 17, 18], [1, 2, 3]]
    assert [document.is_prompt for document in asked] == [False, False, False, True]
    assert all(document.answer is None for document in asked)


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        (numbered([(0, 20)]), r"20 tokens, 2 sequences of 8; expected at least 3"),
        ([Document(prompt=ids(1), answer=None, place="x.jsonl:3")], r"x.jsonl:3 has no answer"),
        (numbered([(60, 1)]), "nothing is an answer"),
    ],
)
def test_data_that_do_not_suffice_are_refused(documents: list[Document], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        pack(documents, OPTIONS, 0)


def test_texts_too_short_to_go_on_from_are_refused() -> None:
    short = Document(prompt=NOTHING, answer=ids(1, 2), place="text")
    with pytest.raises(OptionError, match="--prompt-tokens"):
        pieces_to_answer([short], replace(OPTIONS, prompt_tokens=3))


@pytest.mark.parametrize(
    ("field", "value"),
    [("length", 4), ("answers", "mine"), ("greedy_share", 1.5), ("held_out", 0), ("temperature", float("nan"))],
)
def test_options_that_mean_nothing_are_refused(field: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"{field} is"):
        replace(OPTIONS, **{field: value})


def test_prompts_leave_room_for_an_answer() -> None:
    with pytest.raises(OptionError, match="leaves room"):
        DataOptions(answers="target", length=64, prompt_tokens=64)
