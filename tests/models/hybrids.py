"""Tiny hybrid and sparse checkpoints that transformers itself makes and saves, drawn so that every part shows."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from torch import Tensor, nn

from surefoot.models.decoder import DecoderModel
from surefoot.types import Capture

CLASSES = {
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM"),
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM"),
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM"),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM"),
}
VOCABULARY = 97
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}


def fields_of(family: str, **overrides: object) -> dict[str, object]:
    """What the config class of ``family`` is called with for a tiny model."""
    fields: dict[str, object] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
    }
    if family != "qwen3_5_moe":
        fields["intermediate_size"] = 96
    if family != "qwen3_moe":
        fields |= DELTA
    if family != "qwen3_5":
        fields |= EXPERTS
    if family in ("qwen3_next", "qwen3_5_moe"):
        fields["shared_expert_intermediate_size"] = 40
    return fields | overrides


def saved_by_transformers(
    path: Path, family: str, dtype: torch.dtype = torch.float32, **overrides: object
) -> nn.Module:
    """A random model of transformers, saved into ``path``."""
    config_class, model_class = (getattr(transformers, name) for name in CLASSES[family])
    model = model_class(config_class(**fields_of(family, **overrides)))
    return saved(model, path, dtype)


def saved(model: nn.Module, path: Path, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Draws the model's weights anew, so that logits have a spread of about 1, and saves it in ``dtype``."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            if name.endswith("conv1d.weight") or parameter.dim() == 1:
                # Norms keep the 0 or 1 they begin with as their middle; a state forgets neither at once nor never.
                middle = parameter if "norm" in name else 0.0
                parameter.copy_(middle + drawn * (0.2 if "norm" in name else 0.5))
            else:
                parameter.copy_(drawn * 0.15)
    model.to(dtype).eval().save_pretrained(path)
    return model


def prompt(length: int) -> Tensor:
    """Token ids, int64 ``[length]``."""
    return torch.arange(length) * 37 % VOCABULARY


def everything(model: DecoderModel, tokens: Tensor) -> list[Tensor]:
    """Logits, the stream after every layer but the last, and the normalised one, each ``[N, ...]``."""
    capture = Capture(layers=tuple(range(model.num_layers)), final=True, logits=True)
    ((_, out),) = model.prefill(tokens.tolist(), model.new_cache(len(tokens)), capture)
    assert out.logits is not None
    assert out.final is not None
    return [out.logits, *out.layers[:-1], out.final]


def everything_theirs(model: nn.Module, tokens: Tensor) -> list[Tensor]:
    """The same of a model of transformers, widened to fp32."""
    with torch.no_grad():
        out = model(tokens[None], output_hidden_states=True)
    return [out.logits[0].float(), *(hidden[0].float() for hidden in out.hidden_states[1:])]
