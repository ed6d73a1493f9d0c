"""Measures the shipped hybrid offline: held-out loss beside the dense model's, and how far it follows its law.

python -m recipes.pebble_hybrid.measure --work /path/to/work
"""

import argparse
import json
from pathlib import Path

import torch
from recipes.pebble.batches import held_out_batches
from recipes.pebble.export import load_exported as load_dense
from recipes.pebble.losses import cross_entropy, divergence
from recipes.pebble.prepare import BUNDLE, MAX_POSITIONS
from recipes.pebble_hybrid.export import NAME, load_exported
from recipes.pebble_hybrid.train import COMPARED_LENGTH
from torch import Tensor


@torch.no_grad()
def compare(batches: list[Tensor]) -> dict[str, float]:
    """Returns means per token over batches of token ids [rows, length + 1]: losses, divergence, agreement."""
    dense, hybrid = load_dense(BUNDLE / "pebble"), load_exported(BUNDLE / NAME)
    sums, count = torch.zeros(4, dtype=torch.float64), 0
    for batch in batches:
        ids, labels = batch[:, :-1], batch[:, 1:]
        with torch.autocast("cpu", torch.bfloat16):
            taught, found = dense.logits(ids), hybrid.logits(ids)
        same = (taught.argmax(-1) == found.argmax(-1)).double().mean()
        means = (cross_entropy(taught, labels), cross_entropy(found, labels), divergence(taught, found), same)
        sums += torch.stack([mean.double() for mean in means]) * len(batch)
        count += len(batch)
    names = ("dense_loss", "hybrid_loss", "divergence", "same_choice")
    return dict(zip(names, [round(value, 4) for value in (sums / count).tolist()], strict=True))


def main() -> None:
    """Prints the numbers for windows of two lengths as JSON."""
    parser = argparse.ArgumentParser(description="Measure pebble-hybrid offline.")
    parser.add_argument("--work", type=Path, required=True)
    options = parser.parse_args()
    for length in (COMPARED_LENGTH, MAX_POSITIONS):
        print(
            json.dumps({"length": length, **compare(held_out_batches(options.work / "held_out.npz", length, rows=2))})
        )


if __name__ == "__main__":
    main()
