"""The hybrid's own continuations of real text, as `recipes.pebble.continuations` of the dense target's.

python -m recipes.pebble_hybrid.continuations --work /path/to/work
"""

import torch
from recipes.pebble.continuations import LENGTH, attend, run
from recipes.pebble.network import rotary_tables
from recipes.pebble.prepare import BUNDLE
from recipes.pebble_hybrid.export import NAME, load_exported
from recipes.pebble_hybrid.network import GatedAttention, GatedDelta, Hybrid, Layer, Memory
from torch import Tensor, nn


class Decoder:
    """Decodes a batch of equally long sequences with the hybrid."""

    def __init__(self, network: Hybrid, batch: int) -> None:
        dense = network.config.dense
        self.network, self.length = network, 0
        self.cos_TE, self.sin_TE = rotary_tables(LENGTH, dense.head_size, torch.device("cpu"))
        assert dense.kv_heads == 1
        kept = [index for index in range(dense.layers) if not network.config.is_delta(index)]
        self.keys_BSE = {index: torch.zeros(batch, LENGTH, dense.head_size) for index in kept}
        self.values_BSE = {index: torch.zeros(batch, LENGTH, dense.head_size) for index in kept}
        self.memories: dict[int, Memory] = {}

    @torch.no_grad()
    def __call__(self, ids_BT: Tensor) -> Tensor:
        """Appends token ids; only an empty cache takes more than one each."""
        start, self.length = self.length, self.length + ids_BT.shape[1]
        with torch.autocast("cpu", torch.bfloat16):
            x_BTD = self.network.embedding(ids_BT)
            for index, layer in enumerate(self.network.layers):
                assert isinstance(layer, Layer)
                normed_BTD = layer.mixer_norm(x_BTD)
                if isinstance(layer.mixer, GatedDelta):
                    mixed_BTD, self.memories[index] = layer.mixer.mix(normed_BTD, self.memories.get(index))
                else:
                    mixed_BTD = self._attended(layer.mixer, normed_BTD, index, start)
                x_BTD = x_BTD + layer.mixer.out(mixed_BTD)
                x_BTD = x_BTD + layer.feed_forward(layer.feed_forward_norm(x_BTD))
            return nn.functional.linear(self.network.norm(x_BTD[:, -1]), self.network.embedding.weight).float()

    def _attended(self, mixer: GatedAttention, x_BTD: Tensor, index: int, start: int) -> Tensor:
        turned = self.cos_TE[start : self.length], self.sin_TE[start : self.length]
        q_BHTE, k_BKTE, v_BKTE = mixer.project(x_BTD, *turned)
        keys_BSE, values_BSE = self.keys_BSE[index], self.values_BSE[index]
        keys_BSE[:, start : self.length], values_BSE[:, start : self.length] = k_BKTE[:, 0], v_BKTE[:, 0]
        with torch.autocast("cpu", enabled=False):
            out_BHTE = attend(q_BHTE.float(), keys_BSE[:, : self.length], values_BSE[:, : self.length])
        return out_BHTE.transpose(1, 2).flatten(2) * torch.sigmoid(mixer.gate(x_BTD))


def main() -> None:
    """Writes the hybrid's continuations."""
    network = load_exported(BUNDLE / NAME).requires_grad_(False)
    run(NAME, lambda rows: Decoder(network, rows), "continuations_hybrid", rows=384, batches=4, seed=32)


if __name__ == "__main__":
    main()
