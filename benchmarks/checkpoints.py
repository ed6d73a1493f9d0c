"""Random checkpoints of real shapes, for measurements: seeded, in the real layout, made once into a cache folder.

Two kinds. ``random`` has weights that keep activations at their size. ``repeats`` writes its last token again for ever:
its layers add next to nothing to the embedding, so that any two of them agree on every token whatever their size, and a
third whose head is shifted (``misses``) agrees on none. Neither costs less to compute.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from surefoot.loading import bundled
from surefoot.models import FAMILIES
from surefoot.models.config import DecoderConfig

Kind = Literal["random", "repeats", "misses"]

_SEED = 20261120
_QUIET = 0.02
"""What a layer of a ``repeats`` model adds, beside the embedding's own size."""
_SHIFT = 7
"""By how many ids the head of a ``misses`` model is shifted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The fields of a Qwen 2 config that decide what a forward costs."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    max_position_embeddings: int


SHAPES = {
    "14m": Shape(
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=6,
        num_key_value_heads=2,
        vocab_size=4096,
        max_position_embeddings=4096,
    ),
    "1m": Shape(  # a draft model of 14m
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=4096,
        max_position_embeddings=4096,
    ),
    "0.5b": Shape(  # Qwen2.5-0.5B
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=151936,
        max_position_embeddings=32768,
    ),
    "10m": Shape(  # a draft model of 0.5b: nearly all of it is the vocabulary
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=1,
        num_key_value_heads=1,
        vocab_size=151936,
        max_position_embeddings=32768,
    ),
}

DRAFTS = {"14m": "1m", "0.5b": "10m"}
"""The shape of each target's draft model."""


def checkpoint(shape: str, kind: Kind, cache: Path) -> Path:
    """The directory of a checkpoint in bf16, written on first use; a bundled name stands for its own directory."""
    if shape in bundled():
        return bundled()[shape]
    path = cache / f"{shape}-{kind}"
    if not (path / "model.safetensors").exists():
        part = path.with_name(path.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        _write(part, SHAPES[shape], kind)
        part.rename(path)
    return path


def raw_config(shape: Shape, kind: Kind) -> dict[str, object]:
    """The ``config.json`` of a shape."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 1,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "max_window_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_key_value_heads": shape.num_key_value_heads,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "tie_word_embeddings": kind != "misses",
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": shape.vocab_size,
    }


def tensors(config: DecoderConfig, kind: Kind, seed: int = _SEED) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the checkpoint, bf16."""
    generator = torch.Generator().manual_seed(seed)
    embedding: Tensor | None = None
    for spec in FAMILIES[config.model_type].tensors(config):
        if spec.name.endswith("norm.weight"):
            drawn = 1.0 + 0.1 * torch.randn(spec.shape, generator=generator)
        elif len(spec.shape) == 1:
            drawn = 0.1 * torch.randn(spec.shape, generator=generator)
        elif spec.name == "lm_head.weight":
            assert embedding is not None
            drawn = embedding.roll(_SHIFT, dims=0)
        else:
            drawn = torch.randn(spec.shape, generator=generator) * spec.shape[1] ** -0.5
        if spec.name == "model.embed_tokens.weight":
            drawn = embedding = torch.nn.functional.normalize(drawn, dim=1)
        if kind != "random" and spec.name.endswith(("o_proj.weight", "down_proj.weight")):
            drawn = drawn * (_QUIET * drawn.shape[0] ** -0.5)
        yield spec.name, drawn.to(torch.bfloat16)


def _write(path: Path, shape: Shape, kind: Kind) -> None:
    raw = raw_config(shape, kind)
    (path / "config.json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    tokenizer = bundled()["pebble"]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer / name, path / name)
    save_file(dict(tensors(FAMILIES["qwen2"].parse(raw), kind)), path / "model.safetensors", metadata={"format": "pt"})
