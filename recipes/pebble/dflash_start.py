"""Writes the drafter that DFlash training of pebble begins with: the target's own last layers.

    python -m recipes.pebble.dflash_start --out /path/to/start

A DFlash layer has the shape of a qwen3 layer. Its context enters through one normalised mixture of the target's layers,
so the norms before the copied attentions are folded into their projections, and the mixture begins as the mean of the
residual streams that the copied layers read.
"""

import argparse
from pathlib import Path

import torch
from recipes.pebble.export import layer_weights, load_exported, write_json
from recipes.pebble.network import NORM_EPSILON, ROPE_THETA, Layer, Network
from recipes.pebble.prepare import BUNDLE, MAX_POSITIONS
from safetensors.torch import save_file
from torch import Tensor

from surefoot.drafters.dflash.config import DFlashConfig, to_json
from surefoot.ops.rope import Rope

TAPS = (1, 3, 5, 6)
NUM_LAYERS = 3
BLOCK_SIZE = 8
MASK_ID = 1
"""The padding token, which no text has."""


def config_of(target: Network, num_layers: int) -> DFlashConfig:
    """Returns the drafter's shape: the target's, with fewer layers."""
    config = target.config
    return DFlashConfig(
        vocab_size=config.vocabulary,
        hidden_size=config.hidden,
        intermediate_size=config.feed_forward,
        num_layers=num_layers,
        num_heads=config.heads,
        num_kv_heads=config.kv_heads,
        head_dim=config.head_size,
        rms_norm_eps=NORM_EPSILON,
        rope=Rope(theta=ROPE_THETA, dim=config.head_size),
        context_length=MAX_POSITIONS,
        block_size=BLOCK_SIZE,
        target_layer_ids=TAPS,
        mask_token_id=MASK_ID,
        num_target_layers=config.layers,
        windows=(None,) * num_layers,
        causal=(False,) * num_layers,
    )


def start(target: Network, num_layers: int) -> dict[str, Tensor]:
    """Returns the drafter's weights under their released names."""
    hidden, first = target.config.hidden, target.config.layers - num_layers
    read = [index for index, tap in enumerate(TAPS) if tap >= first - 1]
    mixture = torch.zeros(len(TAPS), hidden, hidden)
    mixture[read] = torch.eye(hidden) / len(read)
    ones = torch.ones(hidden)
    weights = {
        "fc.weight": mixture.transpose(0, 1).flatten(1),
        "hidden_norm.weight": ones,
        "norm.weight": target.norm.weight,
    }
    for index in range(num_layers):
        layer = target.layers[first + index]
        assert isinstance(layer, Layer)
        named = layer_weights(layer)
        scale = named.pop("input_layernorm")
        folded = {f"self_attn.{which}_proj": named[f"self_attn.{which}_proj"] * scale for which in "qkv"}
        named |= {"input_layernorm": ones, **folded}
        weights |= {f"layers.{index}.{name}.weight": weight for name, weight in named.items()}
    return {name: weight.detach().bfloat16().clone() for name, weight in weights.items()}


def main() -> None:
    """Writes the drafter's directory."""
    parser = argparse.ArgumentParser(description="Write the drafter that DFlash training of pebble begins with.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=NUM_LAYERS)
    options = parser.parse_args()
    target = load_exported(BUNDLE / "pebble")
    options.out.mkdir(parents=True, exist_ok=True)
    save_file(start(target, options.layers), options.out / "model.safetensors", metadata={"format": "pt"})
    write_json(options.out / "config.json", to_json(config_of(target, options.layers), "bfloat16"))


if __name__ == "__main__":
    main()
