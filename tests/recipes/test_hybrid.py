"""The hybrid's recipe: the conversion keeps what it says it keeps, the format is qwen3_5's, the losses hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from recipes.pebble.continuations import Decoder as DenseDecoder
from recipes.pebble.export import write_json
from recipes.pebble.network import Network, NetworkConfig, build_network, rotary_tables
from recipes.pebble_hybrid.continuations import Decoder as HybridDecoder
from recipes.pebble_hybrid.convert import convert
from recipes.pebble_hybrid.export import hugging_face_config, load_exported, named_weights
from recipes.pebble_hybrid.losses import ROWS, distillation
from recipes.pebble_hybrid.mixers import attention_passes, missed_share
from recipes.pebble_hybrid.network import GatedAttention, GatedDelta, Hybrid, HybridConfig
from recipes.pebble_hybrid.train import Plan
from safetensors.torch import save_file

DENSE = NetworkConfig(hidden=32, layers=4, heads=2, kv_heads=1, feed_forward=48, head_size=8, vocabulary=64)
CONFIG = HybridConfig(dense=DENSE, delta_heads=2, key_size=4, value_size=8)
IDS = torch.arange(2 * 37).view(2, 37) * 7 % 64


def dense_of(seed: int) -> Network:
    """A network none of whose weights are special."""
    network = build_network(DENSE, seed)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=random))
    return network.requires_grad_(False)


def hybrid_of(seed: int) -> Hybrid:
    """A hybrid whose weights are all random, and fit bfloat16 however they are stored."""
    hybrid = convert(dense_of(seed), CONFIG, seed)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in hybrid.named_parameters():
            drawn = torch.randint(-32, 33, weight.shape, generator=random) / 128
            weight.copy_(drawn + 1.0 if "norm" in name else drawn)
    return hybrid.requires_grad_(False)


def write(hybrid: Hybrid, folder: Path) -> None:
    tensors = {name: weight.bfloat16().contiguous() for name, weight in named_weights(hybrid).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", hugging_face_config(CONFIG, 0, 1, 64))


def test_the_kept_attention_is_the_same_function() -> None:
    dense = dense_of(1)
    hybrid = convert(dense, CONFIG, 1)
    kinds = [type(layer.mixer) for layer in hybrid.layers]
    assert kinds == [GatedDelta, GatedDelta, GatedDelta, GatedAttention]
    x, tables = torch.randn(2, 9, DENSE.hidden), rotary_tables(9, DENSE.head_size, torch.device("cpu"))
    torch.testing.assert_close(hybrid.layers[3].mixer(x, *tables), dense.layers[3].attention(x, *tables))
    for source, layer in zip(dense.layers, hybrid.layers, strict=True):
        torch.testing.assert_close(layer.feed_forward(x), source.feed_forward(x))


def test_a_mixer_learns_from_what_the_replaced_attention_saw_and_gave() -> None:
    dense = dense_of(2)
    passes = attention_passes(dense, convert(dense, CONFIG, 2), IDS)
    assert sorted(passes) == [0, 1, 2]
    tables = rotary_tables(IDS.shape[1], DENSE.head_size, torch.device("cpu"))
    entered, given = passes[2]
    torch.testing.assert_close(dense.layers[2].attention(entered, *tables), given)
    assert missed_share(given, given).item() == 0.0
    assert missed_share(torch.zeros_like(given), given).item() == pytest.approx(1.0)
    assert missed_share(2 * given, given).item() == pytest.approx(1.0)


def test_the_exported_hybrid_is_read_back(tmp_path: Path) -> None:
    hybrid = hybrid_of(3)
    write(hybrid, tmp_path)
    torch.testing.assert_close(load_exported(tmp_path).logits(IDS), hybrid.logits(IDS), rtol=0, atol=0)


def test_transformers_computes_the_same(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    hybrid = hybrid_of(4)
    write(hybrid, tmp_path)
    loaded = transformers.Qwen3_5ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    expected = loaded(IDS).logits
    torch.testing.assert_close(hybrid.logits(IDS), expected, rtol=0, atol=5e-5)
    with torch.no_grad():
        hybrid.layers[0].mixer.conv.copy_(hybrid.layers[0].mixer.conv.flip(-1))
    assert (hybrid.logits(IDS) - expected).abs().max() > 5e-3


def test_the_loss_and_its_gradient_are_what_they_say() -> None:
    rows = ROWS + 5
    random = torch.Generator().manual_seed(5)
    taught, embedding = torch.randn(rows, 8, generator=random), torch.randn(11, 8, generator=random)
    found = torch.randn(rows, 8, generator=random, requires_grad=True)
    labels = torch.randint(0, 11, (rows,), generator=random)
    log_p, log_q = (torch.log_softmax(x @ embedding.T, -1) for x in (taught, found))
    kl = (log_p.exp() * (log_p - log_q)).sum(-1).mean()
    entropy = torch.nn.functional.nll_loss(log_q, labels)
    (expected,) = torch.autograd.grad(0.7 * kl + 0.3 * entropy, found)
    loss, found_kl, found_entropy = distillation(found, taught, embedding, labels, 0.7)
    (gradient,) = torch.autograd.grad(loss, found)
    torch.testing.assert_close(torch.stack([found_kl, found_entropy]), torch.stack([kl, entropy]).detach())
    torch.testing.assert_close(loss.item(), 0.7 * kl.item() + 0.3 * entropy.item())
    torch.testing.assert_close(gradient, expected)


def test_long_windows_come_last_and_hold_as_many_tokens() -> None:
    plan = Plan(total_steps=10, rows=8, length=256, long_steps=3, long_length=1024)
    assert [plan.shape(step) for step in range(10)] == [(8, 256)] * 7 + [(2, 1024)] * 3
    rates = [plan.lr_factor(step) for step in range(10)]
    assert rates[0] > 0
    assert plan.lr_factor(10) == 0


def test_batched_decoding_computes_the_same_in_steps() -> None:
    hybrid, dense = hybrid_of(6), dense_of(6)
    for feed, network in ((HybridDecoder(hybrid, 2), hybrid), (DenseDecoder(dense, 2), dense)):
        whole = network.logits(IDS)
        feed(IDS[:, :20])
        rows = torch.stack([feed(IDS[:, place : place + 1]) for place in range(20, 37)], dim=1)
        spread = whole.std().item()
        assert (rows - whole[:, 20:]).abs().mean() < 0.03 * spread
