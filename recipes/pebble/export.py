"""Writes a training network as a Hugging Face directory of the qwen3 layout, in bfloat16."""

import argparse
import json
import os
import shutil
from pathlib import Path

import torch
from recipes.pebble.checkpoint import load_checkpoint
from recipes.pebble.network import (
    DRAFT,
    NORM_EPSILON,
    ROPE_THETA,
    TARGET,
    Layer,
    Network,
    NetworkConfig,
    count_parameters,
)
from recipes.pebble.prepare import BUNDLE, MAX_POSITIONS
from recipes.pebble.tokenizer import EOS, save_tokenizer
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

TARGET_ROLE = "the target: it completes Python code"
DRAFT_ROLE = "the draft model of pebble: it proposes tokens that pebble verifies"
CARD = """# {name}

This model is {role}.
It is bundled with Surefoot so that everything runs, is tested and is measured offline; it is far too small to be useful
as a programming assistant.

- Layout: qwen3, {parameters:.2f}M parameters in bfloat16, hidden size {config.hidden}, {config.layers} layers,
  {config.heads} query heads and {config.kv_heads} key-value head of {config.head_size},
  feed-forward {config.feed_forward}, tied embeddings, vocabulary {config.vocabulary}, context {max_positions}.
- Text: the sources of CPython {python}'s standard library, which are under the PSF License Agreement
  (https://docs.python.org/3/license.html), and of the packages listed with version and licence in
  `recipes/pebble/packages.json`. The modules listed under `held_out` in `../evaluation.json` were left out, and so was
  every file that shares 50 tokens in a row with one of them.
- The chat template only marks turns; the model has seen no conversation.
- Made by `recipes/pebble`; the numbers and the curves are in its `RESULTS.md`.
"""


def named_weights(network: Network) -> dict[str, Tensor]:
    """Returns views of the weights under their Hugging Face names: fused projections split, no tied output."""
    tensors = {"model.embed_tokens.weight": network.embedding.weight, "model.norm.weight": network.norm.weight}
    for index, layer in enumerate(network.layers):
        assert isinstance(layer, Layer)
        tensors |= {f"model.layers.{index}.{name}.weight": weight for name, weight in layer_weights(layer).items()}
    return tensors


def layer_weights(layer: Layer) -> dict[str, Tensor]:
    """Returns a layer's weights, views of them, by their names in the layout of qwen3."""
    q, k, v = layer.attention.qkv.weight.split(layer.attention.row_blocks)
    gate, up = layer.feed_forward.gate_up.weight.split(layer.feed_forward.row_blocks)
    return {
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


def model_card(network: Network, python: str, max_positions: int) -> str:
    """Returns the text of the model's `README.md`."""
    config = network.config
    is_target = config == TARGET
    return CARD.format(
        name="pebble" if is_target else "pebble-draft",
        role=TARGET_ROLE if is_target else DRAFT_ROLE,
        python=python,
        parameters=count_parameters(network) / 1e6,
        config=config,
        max_positions=max_positions,
    )


def write_json(path: Path, value: object) -> None:
    """Writes `value` as indented JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def export(network: Network, tokenizer: Tokenizer, folder: Path, max_positions: int) -> None:
    """Writes the network's complete model directory."""
    eos, pad = end_and_padding(tokenizer)
    config = hugging_face_config(network, eos, pad, max_positions)
    python = json.loads((BUNDLE / "evaluation.json").read_text(encoding="utf-8"))["python"]
    card = model_card(network, python, max_positions)
    write_model(folder, named_weights(network), config, tokenizer, max_positions=max_positions, card=card)


def end_and_padding(tokenizer: Tokenizer) -> tuple[int, int]:
    """Returns the ids that end a text and fill up a batch."""
    return tokenizer.token_to_id(EOS), tokenizer.token_to_id("<|pad|>")


def write_model(
    folder: Path,
    weights: dict[str, Tensor],
    config: dict[str, object],
    tokenizer: Tokenizer,
    *,
    max_positions: int,
    card: str,
) -> None:
    """Writes a complete model directory aside, its weights in bfloat16, then puts it in the place of `folder`."""
    aside = folder.with_name(folder.name + ".new")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    tensors = {name: weight.detach().bfloat16().contiguous() for name, weight in weights.items()}
    save_file(tensors, aside / "model.safetensors", metadata={"format": "pt"})
    write_json(aside / "config.json", config)
    eos, pad = end_and_padding(tokenizer)
    stops = [eos, tokenizer.token_to_id("<|im_end|>")]
    write_json(aside / "generation_config.json", {"eos_token_id": stops, "pad_token_id": pad})
    save_tokenizer(tokenizer, aside, max_positions)
    (aside / "README.md").write_text(card, encoding="utf-8")
    for file in aside.iterdir():
        file.chmod(0o644)
    replaced = folder.with_name(folder.name + ".old")
    shutil.rmtree(replaced, ignore_errors=True)
    if folder.exists():
        os.replace(folder, replaced)
    os.replace(aside, folder)
    shutil.rmtree(replaced, ignore_errors=True)


def dense_config(settings: dict[str, int]) -> NetworkConfig:
    """Returns the shape that a Hugging Face configuration names."""
    return NetworkConfig(
        hidden=settings["hidden_size"],
        layers=settings["num_hidden_layers"],
        heads=settings["num_attention_heads"],
        kv_heads=settings["num_key_value_heads"],
        feed_forward=settings["intermediate_size"],
        head_size=settings["head_dim"],
        vocabulary=settings["vocab_size"],
    )


def load_exported(folder: Path) -> Network:
    """Returns the network of an exported directory, its bfloat16 weights held as float32."""
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    network = Network(dense_config(settings))
    tensors = load_file(folder / "model.safetensors")
    with torch.no_grad():
        for name, destination in named_weights(network).items():
            destination.copy_(tensors.pop(name))
    if tensors:
        raise ValueError(f"{folder}: unknown tensors {sorted(tensors)}")
    return network


def main() -> None:
    """Exports the work folder's target and draft."""
    parser = argparse.ArgumentParser(description="Export pebble and pebble-draft from their checkpoints.")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder to hold pebble and pebble-draft")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.work / "tokenizer" / "tokenizer.json"))
    for checkpoint, config, folder in (("train.pt", TARGET, "pebble"), ("distill.pt", DRAFT, "pebble-draft")):
        state = load_checkpoint(options.work / checkpoint)
        if state is None:
            raise FileNotFoundError(f"no {checkpoint} in {options.work}; train and distil first")
        network = Network(config)
        network.load_state_dict(state["network"])  # type: ignore[arg-type]  # written by `train` and `distill`
        export(network, tokenizer, options.out / folder, MAX_POSITIONS)


if __name__ == "__main__":
    main()
