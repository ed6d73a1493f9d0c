"""Where the tensors of a checkpoint in the Llama layout go, whether its linears are apart or fused as ours are."""

from __future__ import annotations

from collections.abc import Callable

from surefoot.models.config import DecoderConfig
from surefoot.models.family import TensorSpec

UNINFORMATIVE = (
    r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
    r"model\.rotary_emb\.inv_freq",
    r"lm_head\.weight",
)
"""Tensors that older exporters add: rotary frequencies, which the config determines, and a tied head a second time."""


def decoder_tensors(config: DecoderConfig) -> list[TensorSpec]:
    """Every tensor of a checkpoint of ``config`` with the parameter of ``DecoderModel`` it fills."""
    return _all_tensors(config, _layer_tensors)


def fused_decoder_tensors(config: DecoderConfig) -> list[TensorSpec]:
    """The same where query, key and value are one tensor, and gate and up another, in this order; without biases."""
    return _all_tensors(config, _fused_layer_tensors)


def _all_tensors(
    config: DecoderConfig, layer_tensors: Callable[[DecoderConfig, int], list[TensorSpec]]
) -> list[TensorSpec]:
    hidden, vocab = config.hidden_size, config.vocab_size
    specs = [TensorSpec(name="model.embed_tokens.weight", shape=(vocab, hidden), parameter="embedding")]
    for layer in range(config.num_layers):
        specs += layer_tensors(config, layer)
    specs.append(TensorSpec(name="model.norm.weight", shape=(hidden,), parameter="norm"))
    if not config.tied_head:
        specs.append(TensorSpec(name="lm_head.weight", shape=(vocab, hidden), parameter="head"))
    return specs


def _layer_tensors(config: DecoderConfig, layer: int) -> list[TensorSpec]:
    theirs, ours = f"model.layers.{layer}", f"layers.{layer}"
    hidden, inner = config.hidden_size, config.intermediate_size

    def vector(name: str, size: int, parameter: str) -> TensorSpec:
        return TensorSpec(name=f"{theirs}.{name}.weight", shape=(size,), parameter=f"{ours}.{parameter}")

    def linear(name: str, rows: int, columns: int, parameter: str, bias: bool, start: int = 0) -> list[TensorSpec]:
        target = f"{ours}.{parameter}"
        found = [TensorSpec(name=f"{theirs}.{name}.weight", shape=(rows, columns), parameter=target, start=start)]
        if bias:
            found.append(
                TensorSpec(name=f"{theirs}.{name}.bias", shape=(rows,), parameter=f"{target}_bias", start=start)
            )
        return found

    query, kv = config.query_size, config.kv_size
    specs = [vector("input_layernorm", hidden, "mixer.norm")]
    specs += linear("self_attn.q_proj", query, hidden, "mixer.qkv", config.qkv_bias)
    specs += linear("self_attn.k_proj", kv, hidden, "mixer.qkv", config.qkv_bias, query)
    specs += linear("self_attn.v_proj", kv, hidden, "mixer.qkv", config.qkv_bias, query + kv)
    if config.qk_norm:
        specs.append(vector("self_attn.q_norm", config.head_dim, "mixer.q_norm"))
        specs.append(vector("self_attn.k_norm", config.head_dim, "mixer.k_norm"))
    specs += linear("self_attn.o_proj", hidden, query, "mixer.out", config.out_bias)
    specs.append(vector("post_attention_layernorm", hidden, "feed_forward.norm"))
    specs += linear("mlp.gate_proj", inner, hidden, "feed_forward.gate_up", config.mlp_bias)
    specs += linear("mlp.up_proj", inner, hidden, "feed_forward.gate_up", config.mlp_bias, inner)
    specs += linear("mlp.down_proj", hidden, inner, "feed_forward.down", config.mlp_bias)
    return specs


def _fused_layer_tensors(config: DecoderConfig, layer: int) -> list[TensorSpec]:
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes = {
        "input_layernorm": ("mixer.norm", (hidden,)),
        "self_attn.qkv_proj": ("mixer.qkv", (config.query_size + 2 * config.kv_size, hidden)),
        "self_attn.o_proj": ("mixer.out", (hidden, config.query_size)),
        "post_attention_layernorm": ("feed_forward.norm", (hidden,)),
        "mlp.gate_up_proj": ("feed_forward.gate_up", (2 * inner, hidden)),
        "mlp.down_proj": ("feed_forward.down", (hidden, inner)),
    }
    return [
        TensorSpec(name=f"model.layers.{layer}.{theirs}.weight", shape=shape, parameter=f"layers.{layer}.{ours}")
        for theirs, (ours, shape) in shapes.items()
    ]
