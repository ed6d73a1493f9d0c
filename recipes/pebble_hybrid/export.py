"""Writes the hybrid as a Hugging Face directory of the qwen3_5 text layout, in bfloat16, and reads it back.

python -m recipes.pebble_hybrid.export --work /path/to/work --out src/surefoot/pebble
"""

import argparse
import json
from pathlib import Path

import torch
from recipes.pebble.checkpoint import load_checkpoint
from recipes.pebble.export import dense_config, end_and_padding, write_model
from recipes.pebble.network import NORM_EPSILON, ROPE_THETA, RMSNorm
from recipes.pebble.prepare import BUNDLE, MAX_POSITIONS
from recipes.pebble_hybrid.network import CONV_SIZE, HYBRID, GatedAttention, GatedDelta, Hybrid, HybridConfig, Layer
from recipes.pebble_hybrid.train import CHECKPOINT
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

NAME = "pebble-hybrid"
CARD = """# pebble-hybrid

This model is a target with recurrent state: it completes Python code. It is the bundled `pebble` with six of its eight
attention layers replaced by Gated DeltaNet layers, which learnt to do what they replaced.
It is bundled with Surefoot so that everything runs, is tested and is measured offline; it is far too small to be useful
as a programming assistant.

- Layout: qwen3_5 (text), {parameters:.2f}M parameters in bfloat16, hidden size {dense.hidden}, {dense.layers} layers,
  of which every {config.attention_interval}th is gated attention with {dense.heads} query heads and {dense.kv_heads}
  key-value head of {dense.head_size}, rotated whole, and the others have {config.delta_heads} delta heads with keys of
  {config.key_size} and values of {config.value_size}; feed-forward {dense.feed_forward}, tied embeddings, vocabulary
  {dense.vocabulary}, context {max_positions}.
- Text, licences and what was held out: as `../pebble`.
- The chat template only marks turns; the model has seen no conversation.
- Made by `recipes/pebble_hybrid`; the numbers are in `recipes/pebble/RESULTS.md`.
"""


def named_weights(network: Hybrid) -> dict[str, Tensor]:
    """Returns the weights as the format holds them; none shares memory with the network.

    Norms are zero-centred but the delta mixers' own; a query head's rows are followed by its gate's.
    """
    tensors = {
        "model.embed_tokens.weight": network.embedding.weight.detach().clone(),
        "model.norm.weight": network.norm.weight.detach() - 1.0,
    }
    for index, layer in enumerate(network.layers):
        assert isinstance(layer, Layer)
        gate, up = layer.feed_forward.gate_up.weight.detach().clone().split(layer.feed_forward.row_blocks)
        mixer = _attention(layer.mixer) if isinstance(layer.mixer, GatedAttention) else _delta(layer.mixer)
        named = {
            "input_layernorm.weight": layer.mixer_norm.weight.detach() - 1.0,
            "post_attention_layernorm.weight": layer.feed_forward_norm.weight.detach() - 1.0,
            "mlp.gate_proj.weight": gate,
            "mlp.up_proj.weight": up,
            "mlp.down_proj.weight": layer.feed_forward.down.weight.detach().clone(),
            **mixer,
        }
        tensors |= {f"model.layers.{index}.{name}": weight for name, weight in named.items()}
    return tensors


def _attention(mixer: GatedAttention) -> dict[str, Tensor]:
    size = mixer.config.head_size
    q, k, v = mixer.qkv.weight.detach().clone().split(mixer.row_blocks)
    heads = (q.unflatten(0, (-1, size)), mixer.gate.weight.detach().unflatten(0, (-1, size)))
    return {
        "self_attn.q_proj.weight": torch.cat(heads, dim=1).flatten(0, 1),
        "self_attn.k_proj.weight": k,
        "self_attn.v_proj.weight": v,
        "self_attn.o_proj.weight": mixer.out.weight.detach().clone(),
        "self_attn.q_norm.weight": mixer.q_norm.weight.detach() - 1.0,
        "self_attn.k_norm.weight": mixer.k_norm.weight.detach() - 1.0,
    }


def _delta(mixer: GatedDelta) -> dict[str, Tensor]:
    qkv, z = mixer.qkvz.weight.detach().clone().split((mixer.conv.shape[0], mixer.row_blocks[3]))
    b, a = mixer.rates.weight.detach().clone().chunk(2)
    named = {
        "in_proj_qkv.weight": qkv,
        "in_proj_z.weight": z,
        "in_proj_b.weight": b,
        "in_proj_a.weight": a,
        "conv1d.weight": mixer.conv.detach().clone()[:, None],
        "A_log": mixer.a_log.detach().clone(),
        "dt_bias": mixer.dt_bias.detach().clone(),
        "norm.weight": mixer.norm.weight.detach().clone(),
        "out_proj.weight": mixer.out.weight.detach().clone(),
    }
    return {f"linear_attn.{name}": weight for name, weight in named.items()}


def hugging_face_config(config: HybridConfig, eos: int, pad: int, max_positions: int) -> dict[str, object]:
    """Returns the contents of `config.json`."""
    dense = config.dense
    kinds = ["linear_attention" if config.is_delta(index) else "full_attention" for index in range(dense.layers)]
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": eos,
        "head_dim": dense.head_size,
        "hidden_act": "silu",
        "hidden_size": dense.hidden,
        "initializer_range": 0.02,
        "intermediate_size": dense.feed_forward,
        "layer_types": kinds,
        "linear_conv_kernel_dim": CONV_SIZE,
        "linear_key_head_dim": config.key_size,
        "linear_num_key_heads": config.delta_heads,
        "linear_num_value_heads": config.delta_heads,
        "linear_value_head_dim": config.value_size,
        "max_position_embeddings": max_positions,
        "model_type": "qwen3_5_text",
        "num_attention_heads": dense.heads,
        "num_hidden_layers": dense.layers,
        "num_key_value_heads": dense.kv_heads,
        "pad_token_id": pad,
        "rms_norm_eps": NORM_EPSILON,
        "rope_parameters": {"partial_rotary_factor": 1.0, "rope_theta": ROPE_THETA, "rope_type": "default"},
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": dense.vocabulary,
    }


def export(network: Hybrid, tokenizer: Tokenizer, folder: Path, max_positions: int) -> None:
    """Writes the hybrid's complete model directory."""
    weights, config = named_weights(network), network.config
    parameters = sum(weight.numel() for weight in weights.values()) / 1e6
    card = CARD.format(parameters=parameters, config=config, dense=config.dense, max_positions=max_positions)
    settings = hugging_face_config(config, *end_and_padding(tokenizer), max_positions)
    write_model(folder, weights, settings, tokenizer, max_positions=max_positions, card=card)


def load_exported(folder: Path) -> Hybrid:
    """Returns the network of an exported directory, its bfloat16 weights held as float32."""
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = HybridConfig(
        dense=dense_config(settings),
        delta_heads=settings["linear_num_key_heads"],
        key_size=settings["linear_key_head_dim"],
        value_size=settings["linear_value_head_dim"],
        attention_interval=settings["layer_types"].index("full_attention") + 1,
    )
    network = Hybrid(config)
    tensors = {name: weight.float() for name, weight in load_file(folder / "model.safetensors").items()}
    with torch.no_grad():
        network.embedding.weight.copy_(tensors.pop("model.embed_tokens.weight"))
        _center(network.norm, tensors.pop("model.norm.weight"))
        for index, layer in enumerate(network.layers):
            assert isinstance(layer, Layer)
            prefix = f"model.layers.{index}."
            own = {name: tensors.pop(name) for name in list(tensors) if name.startswith(prefix)}
            _fill(layer, {name.removeprefix(prefix): weight for name, weight in own.items()})
    if tensors:
        raise ValueError(f"{folder}: unknown tensors {sorted(tensors)}")
    return network


def _fill(layer: Layer, stored: dict[str, Tensor]) -> None:
    _center(layer.mixer_norm, stored["input_layernorm.weight"])
    _center(layer.feed_forward_norm, stored["post_attention_layernorm.weight"])
    layer.feed_forward.gate_up.weight.copy_(torch.cat([stored["mlp.gate_proj.weight"], stored["mlp.up_proj.weight"]]))
    layer.feed_forward.down.weight.copy_(stored["mlp.down_proj.weight"])
    mixer = layer.mixer
    if isinstance(mixer, GatedAttention):
        heads = stored["self_attn.q_proj.weight"].unflatten(0, (-1, 2, mixer.config.head_size))
        k, v = stored["self_attn.k_proj.weight"], stored["self_attn.v_proj.weight"]
        mixer.qkv.weight.copy_(torch.cat([heads[:, 0].flatten(0, 1), k, v]))
        mixer.gate.weight.copy_(heads[:, 1].flatten(0, 1))
        mixer.out.weight.copy_(stored["self_attn.o_proj.weight"])
        _center(mixer.q_norm, stored["self_attn.q_norm.weight"])
        _center(mixer.k_norm, stored["self_attn.k_norm.weight"])
        return
    own = {name.removeprefix("linear_attn."): weight for name, weight in stored.items() if "linear_attn" in name}
    mixer.qkvz.weight.copy_(torch.cat([own["in_proj_qkv.weight"], own["in_proj_z.weight"]]))
    mixer.rates.weight.copy_(torch.cat([own["in_proj_b.weight"], own["in_proj_a.weight"]]))
    mixer.conv.copy_(own["conv1d.weight"][:, 0])
    mixer.a_log.copy_(own["A_log"])
    mixer.dt_bias.copy_(own["dt_bias"])
    mixer.norm.weight.copy_(own["norm.weight"])
    mixer.out.weight.copy_(own["out_proj.weight"])


def _center(norm: RMSNorm, stored: Tensor) -> None:
    norm.weight.copy_(stored + 1.0)


def main() -> None:
    """Exports the work folder's hybrid."""
    parser = argparse.ArgumentParser(description="Export pebble-hybrid from its checkpoint.")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=BUNDLE, help="folder to hold pebble-hybrid")
    options = parser.parse_args()
    state = load_checkpoint(options.work / CHECKPOINT)
    if state is None:
        raise FileNotFoundError(f"no {CHECKPOINT} in {options.work}; run recipes.pebble_hybrid.train first")
    network = Hybrid(HYBRID)
    network.load_state_dict(state["network"])  # type: ignore[arg-type]  # written by `train`
    tokenizer = Tokenizer.from_file(str(options.work / "tokenizer" / "tokenizer.json"))
    export(network, tokenizer, options.out / NAME, MAX_POSITIONS)


if __name__ == "__main__":
    main()
