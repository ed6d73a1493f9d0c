"""A tiny target with a tokenizer, texts of its own making, and a DFlash drafter to train for it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from tests.factories import make_checkpoint, make_tokenizer

from surefoot.loading import load_target
from surefoot.loading.loaded import LoadedTarget
from surefoot.options import LoadOptions
from surefoot.train.data import Sequences, Split
from surefoot.train.dflash import DFlashMethod
from surefoot.train.features import FeatureReader
from surefoot.train.options import DFlashOptions, Pace, Schedule
from surefoot.train.trainer import Trainer

VOCABULARY = 300
LENGTH = 48
SHAPE = DFlashOptions(layers=1, block_size=4, taps=2, inner_size=64, anchors=8)
CHAT_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


def make_target(path: Path, **overrides: object) -> Path:
    """A checkpoint of five layers whose embedding has rows beyond the tokenizer's."""
    fields = {"vocab_size": VOCABULARY + 8, "num_hidden_layers": 5, "hidden_size": 32, "pad_token_id": 0}
    make_checkpoint(path, **{**fields, **overrides})
    make_tokenizer(path, VOCABULARY)
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    return path


def loaded(path: Path) -> LoadedTarget:
    return load_target(path, LoadOptions())


@cache
def cycles(count: int, seed: int = 0) -> Sequences:
    """Sequences that go round in circles of a few tokens: what follows can be learnt from the context alone."""
    draws = np.random.default_rng(seed)
    rows = [np.resize(draws.integers(3, VOCABULARY, size=5), LENGTH) for _ in range(count)]
    ids = np.array(rows, dtype=np.int32)
    return Sequences(ids=ids, learnt=np.ones(ids.shape, dtype=np.bool_))


def lessons(count: int = 16) -> Split:
    return Split(train=cycles(count), held_out=cycles(4, seed=1), digest="")


def method_for(target: LoadedTarget, shape: DFlashOptions = SHAPE, seed: int = 0) -> DFlashMethod:
    return DFlashMethod(target, shape, seed=seed, dtype=torch.float32)


def trainer_of(
    target: LoadedTarget,
    path: Path,
    schedule: Schedule,
    pace: Pace | None = None,
    split: Split | None = None,
    anchors: int = 8,
) -> Trainer[object]:  # type: ignore[type-var]  # whatever its lessons are
    method = method_for(target, replace(SHAPE, anchors=anchors))
    reader = FeatureReader(target.model, method.capture)
    return Trainer(method, reader, split or lessons(), schedule, pace or Pace(), path)  # type: ignore[arg-type,return-value]
