"""Our decoder computes what transformers computes from the same checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from tests.factories import make_checkpoint, make_model

from surefoot.models import FAMILIES
from surefoot.models.decoder import DecoderModel
from surefoot.ops.rope_scaling import Llama3, Scaling
from surefoot.types import Capture, TargetOutput

TOKENS = torch.arange(40) * 37 % 97
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
EXPECTED_SPREAD = 0.5
"""Logits much flatter than this would agree whatever we compute."""

VARIANTS: dict[str, dict[str, object]] = {
    "llama": {"family": "llama"},
    "llama, tied, biased everywhere": {
        "family": "llama",
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "llama, every head its own keys": {"family": "llama", "num_key_value_heads": 4},
    "llama, llama3 positions": {"family": "llama", "rope_scaling": LLAMA3},
    "llama, head size of its own": {"family": "llama", "head_dim": 24, "rope_theta": 500.0},
    "mistral": {"family": "mistral"},
    "mistral, window shorter than the prompt": {"family": "mistral", "sliding_window": 7},
    "qwen2, linear positions": {"family": "qwen2", "rope_scaling": {"type": "linear", "factor": 3.0}},
    "qwen2, some layers slide": {
        "family": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
    },
    "qwen3, tied": {"family": "qwen3", "tie_word_embeddings": True},
    "qwen3, one key head": {"family": "qwen3", "num_key_value_heads": 1, "attention_bias": True},
    "qwen3, layer types": {
        "family": "qwen3",
        "use_sliding_window": True,
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}


def theirs(path: Path) -> list[torch.Tensor]:
    """Logits, every layer's output but the last's, and the normalised hidden states, from transformers in fp32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        out = model(TOKENS[None], output_hidden_states=True)
    return [out.logits[0], *(hidden[0] for hidden in out.hidden_states[1:])]


def ours(model: DecoderModel) -> list[torch.Tensor]:
    capture = Capture(layers=tuple(range(model.num_layers)), final=True, logits=True)
    ((_, out),) = model.prefill(TOKENS.tolist(), model.new_cache(len(TOKENS)), capture)
    return list_of(out)


def list_of(out: TargetOutput) -> list[torch.Tensor]:
    return [out.logits, *out.layers[:-1], out.final]


def largest_difference(path: Path, model: DecoderModel) -> float:
    pairs = zip(theirs(path), ours(model), strict=True)
    return max((expected - found).abs().max().item() for expected, found in pairs)


@pytest.fixture(autouse=True)
def no_progress_bar() -> None:
    transformers.utils.logging.disable_progress_bar()


@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS)
def test_logits_and_every_layer_agree_with_transformers(overrides: dict[str, object], tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, **overrides)
    for trainable in (False, True):  # on the kernels, where they are, and on torch
        model = make_model(dtype=torch.float32, trainable=trainable, **overrides)
        assert ours(model)[0].std() > EXPECTED_SPREAD
        assert largest_difference(path, model) < 1e-4


def test_configs_written_by_transformers_mean_the_same(tmp_path: Path) -> None:
    overrides = {"family": "llama", "rope_scaling": LLAMA3}
    path = make_checkpoint(tmp_path, **overrides)
    for directory in (tmp_path, tmp_path / "again"):
        config = transformers.AutoConfig.from_pretrained(directory)
        config.save_pretrained(tmp_path / "again")
    written = config.to_dict()
    assert "rope_parameters" in written
    assert FAMILIES["llama"].parse(written) == make_model(dtype=torch.float32, **overrides).config
    assert path.is_dir()


def test_a_wrong_frequency_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_checkpoint(tmp_path, "llama", rope_scaling=LLAMA3)
    monkeypatch.setattr(Llama3, "frequencies", Scaling.frequencies)
    assert largest_difference(path, make_model("llama", torch.float32, rope_scaling=LLAMA3)) > 1e-3


def test_half_width_models_agree_with_transformers_roughly(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "qwen3")
    logits = ours(make_model("qwen3", torch.bfloat16))[0]
    assert (logits - theirs(path)[0]).abs().mean() < 0.05
