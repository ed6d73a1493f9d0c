"""The target's own continuations of real text, many at once on a CPU: what a DFlash drafter learns from.

    python -m recipes.pebble.continuations --work /path/to/work

Writes token ids [windows, LENGTH] to `continuations/` in the work folder, a file per batch, alternately at temperature
0 and 0.8. The matrix products are in bfloat16, attention in float32, which a CPU is faster at.

Shape suffixes: B batch, T new tokens, D hidden, H query heads, S tokens in the cache, E head dimension, V vocabulary.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from recipes.pebble.batches import Mixture
from recipes.pebble.export import load_exported
from recipes.pebble.generate import choose
from recipes.pebble.network import Layer, Network, rotary_tables
from recipes.pebble.prepare import BUNDLE
from torch import Tensor, nn

LENGTH = 320
PROMPT_LENGTHS = (48, 96, 160)
TEMPERATURES = (0.0, 0.8)
SHARES = {"packages": 0.55, "code": 0.40, "test": 0.05}

Feed = Callable[[Tensor], Tensor]
"""Appends token ids [B, T] to a batch of sequences; returns the logits [B, V] after the last."""


class Decoder:
    """Decodes a batch of equally long sequences with the dense target."""

    def __init__(self, network: Network, batch: int) -> None:
        config = network.config
        self.network, self.length = network, 0
        self.cos_TE, self.sin_TE = rotary_tables(LENGTH, config.head_size, torch.device("cpu"))
        shape = (config.layers, batch, LENGTH, config.head_size)
        assert config.kv_heads == 1
        self.keys_BSE, self.values_BSE = ([*torch.zeros(shape)] for _ in range(2))

    @torch.no_grad()
    def __call__(self, ids_BT: Tensor) -> Tensor:
        """Appends token ids; only an empty cache takes more than one each."""
        start, self.length = self.length, self.length + ids_BT.shape[1]
        x_BTD = self.network.embedding(ids_BT)
        for index, layer in enumerate(self.network.layers):
            assert isinstance(layer, Layer)
            attention = layer.attention
            turned = self.cos_TE[start : self.length], self.sin_TE[start : self.length]
            with torch.autocast("cpu", torch.bfloat16):
                q_BHTE, k_BKTE, v_BKTE = attention.project(layer.attention_norm(x_BTD), *turned)
            keys_BSE, values_BSE = self.keys_BSE[index], self.values_BSE[index]
            keys_BSE[:, start : self.length], values_BSE[:, start : self.length] = k_BKTE[:, 0], v_BKTE[:, 0]
            mixed_BHTE = attend(q_BHTE.float(), keys_BSE[:, : self.length], values_BSE[:, : self.length])
            with torch.autocast("cpu", torch.bfloat16):
                x_BTD = x_BTD + attention.merge(mixed_BHTE)
                x_BTD = x_BTD + layer.feed_forward(layer.feed_forward_norm(x_BTD))
        with torch.autocast("cpu", torch.bfloat16):
            return nn.functional.linear(self.network.norm(x_BTD[:, -1]), self.network.embedding.weight).float()


def attend(q_BHTE: Tensor, k_BSE: Tensor, v_BSE: Tensor) -> Tensor:
    """Returns the attention of all heads over one shared head of keys and values; several rows are a whole prompt."""
    if q_BHTE.shape[2] > 1:
        k_BHSE, v_BHSE = (x[:, None].expand(-1, q_BHTE.shape[1], -1, -1) for x in (k_BSE, v_BSE))
        return nn.functional.scaled_dot_product_attention(q_BHTE, k_BHSE, v_BHSE, is_causal=True)
    weights_BHS = torch.softmax(torch.bmm(q_BHTE[:, :, 0], k_BSE.mT) * q_BHTE.shape[-1] ** -0.5, dim=-1)
    return torch.bmm(weights_BHS, v_BSE)[:, :, None]


def continued(feed: Feed, prompts_BT: Tensor, length: int, temperature: float, random: torch.Generator) -> Tensor:
    """Returns the prompts followed by sampled tokens, [B, length]."""
    pieces = [prompts_BT]
    for _ in range(length - prompts_BT.shape[1]):
        pieces.append(choose(feed(pieces[-1]), temperature, random)[:, None])
    return torch.cat(pieces, dim=1)


def write_batches(
    new_feed: Callable[[int], Feed],
    work: Path,
    folder: Path,
    *,
    rows: int,
    batches: int,
    seed: int,
    temperatures: tuple[float, ...],
) -> None:
    """Writes `batches` files of `rows` windows, at these temperatures in turn; `new_feed` begins a batch of so many
    sequences."""
    random = torch.Generator().manual_seed(seed)
    mixture = Mixture.read(work, tuple(SHARES), seed)
    folder.mkdir(exist_ok=True)
    for index in range(batches):
        size = PROMPT_LENGTHS[index % len(PROMPT_LENGTHS)]
        temperature = temperatures[index % len(temperatures)]
        prompts = mixture.batch(rows, 512, SHARES)[:, :size]
        ids = continued(new_feed(rows), prompts, LENGTH, temperature, random)
        np.save(folder / f"{index:03d}-{size}-{temperature}.npy", ids.numpy().astype(np.uint16))
        print(f"batch {index + 1} of {batches}: {rows} windows", flush=True)


def run(name: str, new_feed: Callable[[int], Feed], folder: str, *, rows: int, batches: int, seed: int) -> None:
    """Parses the options, whose defaults are given, and writes the continuations of the model called `name`."""
    parser = argparse.ArgumentParser(description=f"Let {name} continue real text.")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=rows, help="windows of one batch")
    parser.add_argument("--batches", type=int, default=batches)
    parser.add_argument("--seed", type=int, default=seed)
    parser.add_argument("--greedy", action="store_true", help="at temperature 0 alone, to a folder of its own")
    options = parser.parse_args()
    work: Path = options.work
    temperatures, written = ((0.0,), f"{folder}_greedy") if options.greedy else (TEMPERATURES, folder)
    counts = {"rows": options.rows, "batches": options.batches, "seed": options.seed}
    write_batches(new_feed, work, work / written, **counts, temperatures=temperatures)


def main() -> None:
    """Writes the target's continuations."""
    network = load_exported(BUNDLE / "pebble").requires_grad_(False)
    run("pebble", lambda rows: Decoder(network, rows), "continuations", rows=512, batches=8, seed=31)


if __name__ == "__main__":
    main()
