"""Pairs for tests: a row-exact random target of every family, and a draft model that is often right about it."""

from __future__ import annotations

from functools import cache

import torch
from tests.factories import make_model

from surefoot.models.decoder import DecoderModel

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@cache
def target_of(family: str, dtype: torch.dtype, *, trainable: bool = False) -> DecoderModel:
    """A row-exact random model; mistral's window is shorter than the text. ``trainable`` has torch compute it."""
    window = {"sliding_window": 10} if family == "mistral" else {}
    return make_model(family, dtype, seed=3, exact="require", prefill_chunk=5, trainable=trainable, **window)


@cache
def relative_of(family: str, dtype: torch.dtype) -> DecoderModel:
    """The target with its weights shaken: a draft model that is often, not always, right."""
    window = {"sliding_window": 10} if family == "mistral" else {}
    model = make_model(family, dtype, seed=3, **window)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(dtype)
            parameter.add_(0.15 * parameter.abs().mean() * noise)
    model.prepare(exact="auto", prefill_chunk=512)
    return model
