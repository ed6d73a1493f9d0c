"""Writes a training network as a Hugging Face directory of the qwen3 layout, in bfloat16."""

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from recipes.pebble.network import NORM_EPSILON, ROPE_THETA, Layer, Network
from recipes.pebble.tokenizer import EOS, save_tokenizer


def hugging_face_tensors(network: Network) -> dict[str, Tensor]:
    """Returns the weights under their Hugging Face names; fused projections are split, the tied output is left out."""
    tensors = {"model.embed_tokens.weight": network.embedding.weight, "model.norm.weight": network.norm.weight}
    for index, layer in enumerate(network.layers):
        assert isinstance(layer, Layer)
        q, k, v = layer.attention.qkv.weight.split(layer.attention.row_blocks)
        gate, up = layer.feed_forward.gate_up.weight.split(layer.feed_forward.row_blocks)
        named = {
            "input_layernorm": layer.attention_norm.weight,
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": layer.attention.out.weight,
            "self_attn.q_norm": layer.attention.q_norm.weight,
            "self_attn.k_norm": layer.attention.k_norm.weight,
            "post_attention_layernorm": layer.feed_forward_norm.weight,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": layer.feed_forward.down.weight,
        }
        tensors |= {f"model.layers.{index}.{name}.weight": weight for name, weight in named.items()}
    return {name: weight.detach().to(torch.bfloat16).contiguous().clone() for name, weight in tensors.items()}


def hugging_face_config(network: Network, eos: int, pad: int, max_positions: int) -> dict[str, object]:
    """Returns the contents of `config.json`."""
    config = network.config
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": eos,
        "head_dim": config.head_size,
        "hidden_act": "silu",
        "hidden_size": config.hidden,
        "initializer_range": 0.02,
        "intermediate_size": config.feed_forward,
        "layer_types": ["full_attention"] * config.layers,
        "max_position_embeddings": max_positions,
        "max_window_layers": config.layers,
        "model_type": "qwen3",
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.layers,
        "num_key_value_heads": config.kv_heads,
        "pad_token_id": pad,
        "rms_norm_eps": NORM_EPSILON,
        "rope_scaling": None,
        "rope_theta": ROPE_THETA,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": config.vocabulary,
    }


def write_json(path: Path, value: object) -> None:
    """Writes `value` as indented JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def export(network: Network, tokenizer: Tokenizer, folder: Path, max_positions: int) -> None:
    """Writes the complete model directory aside, then puts it in the place of `folder`."""
    aside = folder.with_name(folder.name + ".new")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    eos, pad = tokenizer.token_to_id(EOS), tokenizer.token_to_id("<|pad|>")
    save_file(hugging_face_tensors(network), aside / "model.safetensors", metadata={"format": "pt"})
    write_json(aside / "config.json", hugging_face_config(network, eos, pad, max_positions))
    stops = [eos, tokenizer.token_to_id("<|im_end|>")]
    write_json(aside / "generation_config.json", {"eos_token_id": stops, "pad_token_id": pad})
    save_tokenizer(tokenizer, aside, max_positions)
    replaced = folder.with_name(folder.name + ".old")
    shutil.rmtree(replaced, ignore_errors=True)
    if folder.exists():
        os.replace(folder, replaced)
    os.replace(aside, folder)
    shutil.rmtree(replaced, ignore_errors=True)
