"""Many blocks in one forward are what each is alone, and their labels and weights are the text's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.train.teaching import LENGTH, SHAPE, cycles, method_for
from torch import Tensor
from torch.nn import functional

from surefoot.drafters.dflash.loss import block_loss, default_gamma
from surefoot.loading.loaded import LoadedTarget
from surefoot.train import blocks as blocks_module
from surefoot.train.blocks import draw_anchors, make_blocks, sparse_mask
from surefoot.train.data import Sequences
from surefoot.train.dflash import DFlashMethod
from surefoot.train.features import FeatureReader, Features
from surefoot.train.head import head_loss, head_loss_reference

Mask = Callable[[Tensor, int, int], Tensor]
ANCHORS = [np.array([1, 2, 9, 30, LENGTH - 2]), np.array([5, 6, 7, 20])]


def hidden_alone(method: DFlashMethod, row: Sequences, anchor: int, features: Features) -> Tensor:
    """One block by itself, as it is drafted: the context is the rows before the anchor, and all of it is seen."""
    size, device = method.config.block_size, method.network.fc.weight.device
    tokens = torch.full((size,), method.config.mask_token_id)
    tokens[0] = int(row.ids[0, anchor])
    noise = method._target.embed(tokens).float()
    context = method.network.context(features.layers[0, :anchor].float())
    places = torch.arange(anchor, anchor + size)
    seen = torch.ones(size, anchor + size, dtype=torch.bool, device=device)
    hidden: Tensor = method.network(noise, places, context, torch.arange(anchor), seen)
    return hidden


def greatest_difference(target: LoadedTarget) -> float:
    """Between blocks of two sequences side by side in one forward, and each of them alone."""
    method, pair = method_for(target), cycles(2)
    features = FeatureReader(target.model, method.capture).read(pair.ids)
    weights = np.ones(method.num_drafts, dtype=np.float32)
    together = method._hidden(make_blocks(pair, ANCHORS, weights, target.model.device), features)
    differences = []
    for row, anchors in enumerate(ANCHORS):
        own = Features(layers=features.layers[row : row + 1], final=None)
        for place, anchor in enumerate(anchors):
            alone = hidden_alone(method, pair.part(row, row + 1), int(anchor), own)
            differences.append((together[row, place] - alone).abs().max().item())
    return max(differences)


def test_blocks_in_one_forward_equal_each_block_alone(target: LoadedTarget) -> None:
    assert greatest_difference(target) < 1e-5


def seeing_the_anchor(anchors: Tensor, length: int, size: int) -> Tensor:
    return sparse_mask(anchors + 1, length, size)


def seeing_all_blocks(anchors: Tensor, length: int, size: int) -> Tensor:
    mask = sparse_mask(anchors, length, size)
    mask[..., length:] = True
    return mask


def missing_a_row(anchors: Tensor, length: int, size: int) -> Tensor:
    return sparse_mask(anchors - 1, length, size)


@pytest.mark.parametrize("wrong", [seeing_the_anchor, seeing_all_blocks, missing_a_row])
def test_a_wrong_mask_is_noticed(target: LoadedTarget, wrong: Mask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "sparse_mask", wrong)
    assert greatest_difference(target) > 1e-3


def test_positions_of_a_block_go_on_from_its_anchor(target: LoadedTarget) -> None:
    made = make_blocks(cycles(2), ANCHORS, np.ones(3, dtype=np.float32), target.model.device)
    assert made.positions[0, :8].tolist() == [1, 2, 3, 4, 2, 3, 4, 5]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_labels_are_the_tokens_after_the_anchor_until_what_is_learnt_ends(data: st.DataObject) -> None:
    length, slots = data.draw(st.integers(4, 24)), data.draw(st.integers(1, 6))
    learnt = np.array([data.draw(st.lists(st.booleans(), min_size=length, max_size=length))])
    sequences = Sequences(ids=np.arange(100, 100 + length, dtype=np.int32)[None], learnt=learnt)
    anchors = draw_anchors(learnt[0], 5, np.random.default_rng(0))
    weights = np.linspace(1, 0.5, slots, dtype=np.float32)
    made = make_blocks(sequences, [anchors], weights, torch.device("cpu"))
    assert made.first[0, : len(anchors)].tolist() == (100 + anchors).tolist()
    assert made.first.shape[1] == max(1, len(anchors))
    total = 0.0
    for block, anchor in enumerate(anchors.tolist()):
        ended = False
        for slot in range(slots):
            place = anchor + 1 + slot
            ended = ended or place >= length or not learnt[0, place]
            assert bool(made.valid[0, block, slot]) is not ended
            if not ended:
                assert int(made.labels[0, block, slot]) == 100 + place
                total += float(weights[slot])
    assert made.weight == pytest.approx(total)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=3, max_size=30), st.integers(1, 8), st.integers(0, 3))
def test_anchors_are_learnt_tokens_with_a_learnt_one_after_them(marks: list[bool], count: int, seed: int) -> None:
    learnt = np.array(marks)
    fit = [i for i in range(1, len(marks) - 1) if marks[i] and marks[i + 1]]
    drawn = draw_anchors(learnt, count, np.random.default_rng(seed)).tolist()
    assert len(drawn) == min(count, len(fit))
    assert drawn == sorted(set(drawn))
    assert set(drawn) <= set(fit)


def test_anchors_are_drawn_anew_from_another_stream() -> None:
    learnt = np.ones(200, dtype=np.bool_)
    draws = [tuple(draw_anchors(learnt, 8, np.random.default_rng([4, 0, step, 0]))) for step in range(8)]
    assert len(set(draws)) == 8


def drawn_rows(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden, head = torch.randn(7, 12, generator=generator), torch.randn(50, 12, generator=generator)
    labels = torch.randint(0, 50, (7,), generator=generator)
    return hidden, head, labels, torch.rand(7, generator=generator)


@pytest.mark.parametrize("chunk", [2**22, 120])
def test_the_head_loss_and_its_gradient_are_those_of_torch(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surefoot.train.head.CHUNK", chunk)
    hidden, head, labels, weights = drawn_rows(0)
    ours, theirs = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    loss, guesses = head_loss(ours, head, labels, weights)
    reference = head_loss_reference(theirs, head, labels, weights)
    (3 * loss).backward()
    (3 * reference).backward()
    torch.testing.assert_close(loss, reference)
    torch.testing.assert_close(ours.grad, theirs.grad)
    assert torch.equal(guesses, functional.linear(hidden, head).argmax(-1))


def test_the_loss_is_the_drafters_own(target: LoadedTarget) -> None:
    method, pair = method_for(target), cycles(2)
    learnt: NDArray[np.bool_] = pair.learnt.copy()
    learnt[:, 20:23] = False
    pair = Sequences(ids=pair.ids, learnt=learnt)
    features = FeatureReader(target.model, method.capture).read(pair.ids)
    lesson = method.lesson(pair, [np.random.default_rng(row) for row in range(2)])
    with torch.no_grad():
        hidden = method._hidden(lesson, features)[:, :, 1:]
        logits = target.model.unembed(hidden)
        own = block_loss(
            logits.flatten(0, 1),
            lesson.labels.flatten(0, 1),
            lesson.valid.flatten(0, 1),
            gamma=default_gamma(SHAPE.block_size),
        )
        loss = method.loss(lesson, features) / lesson.weight
    torch.testing.assert_close(loss, own)


def test_sequences_without_a_place_to_begin_have_a_block_that_does_not_count(target: LoadedTarget) -> None:
    """One that is a prompt from end to end may be kept aside, beside others that are not."""
    whole = cycles(2)
    read = Sequences(ids=whole.ids, learnt=np.zeros_like(whole.learnt))
    method = method_for(target)
    lesson = method.lesson(read, [np.random.default_rng(0), np.random.default_rng(1)])
    assert lesson.weight == 0
    assert lesson.valid.shape[:2] == (2, 1)
    features = FeatureReader(target.model, method.capture).read(read.ids)
    assert method.correct(lesson, features).shape == (0, method.num_drafts)
