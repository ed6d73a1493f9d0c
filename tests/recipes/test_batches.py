"""Sources are mixed at their shares, and a run that resumes sees the batches it would have seen."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from recipes.pebble.batches import Mixture
from recipes.pebble.prepare import write_documents

SHARES = {"first": 0.7, "second": 0.2, "third": 0.1}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    for number, name in enumerate(SHARES):
        ids = np.arange(1000 * number + 1, 1000 * number + 600, dtype=np.uint16)
        write_documents(tmp_path / f"{name}.npz", list(np.array_split(ids, 7)), eos=0)
    return tmp_path


def test_each_source_fills_its_share_of_the_rows(work: Path) -> None:
    mixture = Mixture.read(work, tuple(SHARES), seed=3)
    rows = torch.cat([mixture.batch(10, 16, SHARES) for _ in range(10)])
    assert rows.shape == (100, 17)
    assert Counter((rows.max(dim=1).values // 1000).tolist()) == {0: 70, 1: 20, 2: 10}


def test_a_restored_mixture_goes_on_with_the_same_batches(work: Path) -> None:
    one = Mixture.read(work, tuple(SHARES), seed=3)
    for _ in range(9):
        one.batch(7, 16, SHARES)
    other = Mixture.read(work, tuple(SHARES), seed=3)
    before = other.batch(7, 16, SHARES)
    other.restore(one.state())
    for _ in range(9):
        expected = one.batch(7, 16, SHARES)
        assert torch.equal(other.batch(7, 16, SHARES), expected)
    assert not torch.equal(before, expected), "the control: the batches do change"


def test_all_windows_of_an_epoch_are_used_before_one_comes_again(work: Path) -> None:
    source = Mixture.read(work, ("first",), seed=3).sources["first"]
    source.take(16)
    count = len(source.windows)
    seen = [tuple(window) for window in source.windows]
    assert len(set(seen)) == count
    for _ in range(count - 1):
        assert source.take(16) is not None
    assert source.epoch == 0
    source.take(16)
    assert source.epoch == 1
