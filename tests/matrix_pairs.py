"""The pairs of the matrix: a dense target and a hybrid one, each with whatever drafts for it."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import tokenizers
import torch
from tests.drafters.blockers import PROMPT as LESSON
from tests.drafters.blockers import taught
from tests.factories import make_model, make_tokenizer

from surefoot import Engine, SamplingParams, SpeculativeOptions
from surefoot.drafters.dflash.drafter import DFlash
from surefoot.drafters.draft_model import DraftModel
from surefoot.drafters.lookup import Lookup
from surefoot.drafters.none import NoDrafts
from surefoot.models.decoder import DecoderModel
from surefoot.protocols import DrafterModel
from surefoot.text import Tokenizer
from surefoot.types import Tokens

VOCAB = 300
PROMPT: Tokens = (60, 9, 60, 9, 11, 160, 60, 9, 11, 83, 83, 7)
TARGETS = {"dense": "qwen3", "hybrid": "qwen3_5"}
WAYS = {
    "none": SpeculativeOptions(),
    "lookup": SpeculativeOptions(),
    "draft model": SpeculativeOptions(),
    "DFlash": SpeculativeOptions(),
    "DFlash tree": SpeculativeOptions(num_draft=12, tree_width=3),
}
"""Whatever drafts, and how it is asked to."""
_SHARPNESS = {"dense": 2.3, "hybrid": 3.4}
"""Scale of the tied embedding: the model then repeats itself now and then, as a trained one does."""
_LESSONS = 8
_TOKENS = 40


@cache
def tokenizer() -> Tokenizer:
    folder = Path(tempfile.mkdtemp(prefix="surefoot-matrix-"))
    return Tokenizer(tokenizers.Tokenizer.from_file(str(make_tokenizer(folder, VOCAB))))


def _sharp_model(kind: str, noise: float) -> DecoderModel:
    model = make_model(
        TARGETS[kind],
        torch.float32,
        seed=3,
        exact="require",
        prefill_chunk=5,
        vocab_size=VOCAB,
        tie_word_embeddings=True,
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if noise:
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.add_(noise * parameter.abs().mean() * drawn)
            if "embed" in name:
                parameter.mul_(_SHARPNESS[kind])
    model.prepare(exact="require", prefill_chunk=5)
    return model


@cache
def target_of(kind: str) -> DecoderModel:
    return _sharp_model(kind, 0.0)


@cache
def _relative(kind: str) -> DecoderModel:
    """The target with its weights shaken: often right, not always."""
    return _sharp_model(kind, 0.08)


@cache
def _blocks(kind: str) -> DFlash:
    """A drafter that has learnt a few of the target's answers by heart."""
    assert len(LESSON) == len(PROMPT)
    target = target_of(kind)
    engine = Engine(target)
    lessons = (
        SamplingParams(seed=0),
        SamplingParams(seed=0, allowed_tokens=tuple(range(0, VOCAB, 2))),
        SamplingParams(temperature=0.8, seed=13, repetition_penalty=1.05),
        SamplingParams(temperature=0.8, seed=13, presence_penalty=0.4),
        *(SamplingParams(temperature=0.8, seed=13 + i) for i in range(_LESSONS)),
    )
    answers = [engine.generate(PROMPT, replace(one, max_tokens=_TOKENS, ignore_eos=True)) for one in lessons]
    texts = [PROMPT + answer.tokens for answer in answers]
    return DFlash(taught(target, texts, steps=120, dflash_config={"mask_token_id": 0, "target_layer_ids": [0, 1]}))


def drafter_of(name: str, kind: str) -> DrafterModel:
    """What drafts in the column ``name`` for a target of this kind."""
    if name == "draft model":
        return DraftModel(_relative(kind))
    if name.startswith("DFlash"):
        return _blocks(kind)
    return Lookup(min_match=1) if name == "lookup" else NoDrafts()
