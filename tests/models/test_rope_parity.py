"""Tables and logits are those of transformers, within the original context and beyond it, in every family.

A full forward of transformers chooses its table by the tokens it is given; a cache of ours by the length it was made
for. Where the two lengths are the same, so are the tables, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from tests.factories import make_checkpoint
from torch import Tensor

from surefoot.cache.kv import KVCache
from surefoot.loading import load_target
from surefoot.models import positions
from surefoot.models.decoder import DecoderModel
from surefoot.options import LoadOptions
from surefoot.tree import chain
from surefoot.types import Capture

ORIGINAL = "original_max_position_embeddings"
SHORT, LONG = 30, 50
"""Lengths within the original context of 32 and beyond it."""

FACTORS = {
    "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6],
    "long_factor": [1.0, 1.3, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0],
}
DYNAMIC = {"rope_scaling": {"rope_type": "dynamic", "factor": 3.0}, "max_position_embeddings": 32}
YARN = {"rope_scaling": {"type": "yarn", "factor": 4.0, ORIGINAL: 32}, "max_position_embeddings": 128}
LONGROPE = {"rope_scaling": {"type": "longrope", ORIGINAL: 32, **FACTORS}, "max_position_embeddings": 128}
PHI = {"max_position_embeddings": 128, ORIGINAL: 32}
SIZES = {"hidden_size": 64, "num_hidden_layers": 2}
"""Heads of 16 dimensions in every family."""

VARIANTS: dict[str, dict[str, object]] = {
    "llama, dynamic": {"family": "llama", **DYNAMIC},
    "mistral, dynamic": {"family": "mistral", **DYNAMIC},
    "qwen2, dynamic": {"family": "qwen2", **DYNAMIC},
    "qwen3, dynamic": {"family": "qwen3", **DYNAMIC},
    "llama, yarn": {"family": "llama", **YARN},
    "mistral, yarn, two mscales": {
        "family": "mistral",
        "rope_scaling": {**YARN["rope_scaling"], "mscale": 0.7, "mscale_all_dim": 0.4},
    },
    "qwen2, yarn, no truncation": {
        "family": "qwen2",
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            ORIGINAL: 32,
            "beta_fast": 4,
            "beta_slow": 0.5,
            "truncate": False,
        },
    },
    "qwen3, yarn, attention factor": {
        "family": "qwen3",
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5},
        "max_position_embeddings": 32,
    },
    "llama, longrope": {"family": "llama", **LONGROPE},
    "mistral, longrope": {"family": "mistral", **LONGROPE, "sliding_window": 11},
    "qwen2, longrope": {"family": "qwen2", **LONGROPE},
    "qwen3, longrope, factor": {
        "family": "qwen3",
        "rope_scaling": {"rope_type": "longrope", "factor": 4.0, **FACTORS},
        "max_position_embeddings": 32,
    },
    "phi3": {"family": "phi3", **PHI},
    "phi3, tied, a window, part of each head": {
        "family": "phi3",
        **PHI,
        "tie_word_embeddings": True,
        "sliding_window": 9,
        "partial_rotary_factor": 0.75,
    },
    "phi3, su": {"family": "phi3", **PHI, "rope_scaling": {"type": "su", ORIGINAL: 32, **FACTORS}},
    "phi3, longrope, part of each head": {
        "family": "phi3",
        **PHI,
        "partial_rotary_factor": 0.5,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": FACTORS["short_factor"][:4],
            "long_factor": FACTORS["long_factor"][:4],
        },
    },
    "phi3, longrope, attention factor": {
        "family": "phi3",
        **PHI,
        "rope_scaling": {"type": "longrope", "attention_factor": 1.3, **FACTORS},
    },
}


@pytest.fixture(autouse=True)
def no_progress_bar() -> None:
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def tokens_of(length: int) -> Tensor:
    return torch.arange(length) * 37 % 97


def theirs(path: Path, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits ``[P, V]`` of one full forward of a new model, and its cosines and sines ``[P, R]``."""
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        logits = model(tokens_of(length)[None]).logits[0]
        cosines, sines = model.model.rotary_emb(logits, torch.arange(length)[None])
    return logits, cosines[0], sines[0]


def load(path: Path) -> DecoderModel:
    return load_target(path, LoadOptions(dtype="float32", prefill_chunk=7, device="cpu")).model


def whole(model: DecoderModel, cache: KVCache, length: int) -> Tensor:
    chunks = model.prefill(tokens_of(length).tolist(), cache, Capture(logits=True))
    return torch.cat([out.logits for _, out in chunks])


def by_steps(model: DecoderModel, cache: KVCache, length: int, width: int = 1) -> Tensor:
    """A prompt of 10 tokens, then ``width`` at a time."""
    rows = [whole(model, cache, 10)]
    for start in range(10, length, width):
        (out,) = model.score([(chain(tokens_of(length)[start : start + width].tolist()), cache)], Capture())
        cache.commit(range(len(out.logits)))
        rows.append(out.logits)
    return torch.cat(rows)


ROUTES: tuple[Callable[[DecoderModel, KVCache, int], Tensor], ...] = (
    whole,
    by_steps,
    lambda model, cache, length: by_steps(model, cache, length, 6),
)
"""Chunks of a prefill, single steps, several rows at a time."""


@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS)
def test_tables_and_logits_are_those_of_transformers_on_both_sides(
    overrides: dict[str, object], tmp_path: Path
) -> None:
    path = make_checkpoint(tmp_path, **{**SIZES, **overrides})
    model = load(path)
    for length in (SHORT, LONG):
        logits, cosines, sines = theirs(path, length)
        assert logits.std() > 0.5
        first, second = model.new_cache(length, spare=LONG).rope.run(0, length)
        half = cosines.shape[-1] // 2
        assert torch.equal(first[:, 0], cosines)
        assert torch.equal(second[:, 0], torch.cat((-sines[:, :half], sines[:, half:]), -1))
        for route in ROUTES:
            found = route(model, model.new_cache(length, spare=LONG), length)
            assert (found - logits).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["llama, yarn", "qwen3, longrope, factor", "phi3, longrope, part of each head"])
def test_files_written_by_transformers_mean_the_same(name: str, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "ours", **{**SIZES, **VARIANTS[name]})
    transformers.AutoModelForCausalLM.from_pretrained(path).save_pretrained(tmp_path / "theirs")
    assert load(tmp_path / "theirs").config == load(path).config


@pytest.mark.parametrize("name", ["llama, dynamic", "phi3, su"])
def test_the_other_sides_table_would_be_seen(name: str, tmp_path: Path) -> None:
    """Negative control: a cache made for the other side of the boundary gives other logits."""
    path = make_checkpoint(tmp_path, **{**SIZES, **VARIANTS[name]})
    model = load(path)
    for length, other in ((SHORT, LONG), (LONG, SHORT)):
        logits, cosines, _ = theirs(path, length)
        cache = model.new_cache(other, spare=LONG)
        assert not torch.equal(cache.rope.run(0, length)[0][:, 0], cosines)
        assert (whole(model, cache, length) - logits).abs().max() > 1e-3


def test_an_attention_factor_left_out_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_checkpoint(tmp_path, **{**SIZES, **VARIANTS["llama, yarn"]})
    monkeypatch.setattr(positions, "_yarn_attention_factor", lambda section, factor: 1.0)
    model = load(path)
    assert model.config.rope.scaling.attention_factor == 1.0
    assert (whole(model, model.new_cache(SHORT), SHORT) - theirs(path, SHORT)[0]).abs().max() > 1e-3
