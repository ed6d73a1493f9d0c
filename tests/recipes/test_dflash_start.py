"""The drafter that training begins with reads its context as the layers it was copied from read theirs."""

from __future__ import annotations

import torch
from recipes.pebble.dflash_start import TAPS, config_of, start
from recipes.pebble.network import NetworkConfig, build_network, rotary_tables

from surefoot.drafters.dflash.network import DFlashNetwork

TARGET = NetworkConfig(hidden=32, layers=8, heads=2, kv_heads=1, feed_forward=48, head_size=8, vocabulary=64)


def test_a_copied_layer_gives_its_context_the_keys_and_values_of_the_target() -> None:
    target = build_network(TARGET, 1).requires_grad_(False)
    random = torch.Generator().manual_seed(2)
    for weight in target.parameters():
        weight.copy_((weight + 0.3 * torch.randn(weight.shape, generator=random)).bfloat16())
    drafter = DFlashNetwork(config_of(target, 1)).requires_grad_(False)
    drafter.load_state_dict(start(target, 1))
    stream = torch.randn(1, 5, TARGET.hidden, generator=random)
    layer = target.layers[-1]
    tables = rotary_tables(5, TARGET.head_size, torch.device("cpu"))
    _, keys, values = layer.attention.project(layer.attention_norm(stream), *tables)

    def read(last: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        taps = torch.cat([*torch.randn(len(TAPS) - 1, 1, 5, TARGET.hidden, generator=random), last], -1)
        context = drafter.context(taps)
        return drafter.layers[0].self_attn.keys_values(context, drafter.angles(torch.arange(5)[None], context))

    found_keys, found_values = read(stream)
    torch.testing.assert_close(found_keys, keys, rtol=0.02, atol=0.02)
    torch.testing.assert_close(found_values, values, rtol=0.02, atol=0.05)
    assert (read(stream.roll(1, dims=1))[1] - values).abs().max() > 1


def test_a_deeper_drafter_begins_between_the_streams_its_layers_read() -> None:
    target = build_network(TARGET, 3).requires_grad_(False)
    mixture = start(target, 3)["fc.weight"].float().unflatten(1, (len(TAPS), TARGET.hidden))
    shares = [mixture[:, index].diagonal().mean().item() for index in range(len(TAPS))]
    assert shares == [0.0, 0.0, 0.5, 0.5]
