"""The benchmark of hybrids: its shapes are the published ones, and its checkpoints load here and in the peer alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmarks.hybrid import SHAPES, Hybrid, checkpoint, raw_config
from transformers import AutoModelForCausalLM

import surefoot
from benchmarks import hybrid
from surefoot.models import FAMILIES
from surefoot.models.decoder import DecoderModel
from surefoot.tree import chain
from surefoot.types import Capture

TINY = Hybrid(
    hidden=32, inner=48, layers=4, heads=(2, 1), head_dim=16, delta_heads=2, key_dim=8, value_dim=8, vocabulary=4096
)


def test_the_large_shape_is_that_of_a_published_model() -> None:
    config = FAMILIES["qwen3_5"].parse(raw_config(SHAPES["0.8b"]))
    assert config.delta is not None
    assert (len(config.delta_layers), len(config.attention_layers)) == (18, 6)
    assert (config.delta.num_key_heads, config.delta.num_value_heads, config.delta.channels) == (16, 16, 6144)
    with torch.device("meta"):
        model = DecoderModel(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(0.75e9, rel=0.05)


def test_a_checkpoint_means_the_same_to_the_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hybrid.SHAPES, "tiny", TINY)
    path = checkpoint("tiny", tmp_path)
    assert checkpoint("tiny", tmp_path) == path
    tokens = [20, 300, 41, 1000, 7, 20]
    target = surefoot.load(path, dtype="float32").target
    (ours,) = target.score([(chain(tokens), target.new_cache(8))], Capture())
    with torch.inference_mode():
        theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)(torch.tensor([tokens])).logits[0]
    assert ours.logits is not None
    assert float((ours.logits - theirs).abs().max()) < 1e-4 * float(theirs.abs().max())
    assert float(ours.logits.std()) > 0
