"""The network against the implementation in transformers, against dense masks, and laid out for decoding."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.drafters.blockers import learnt_by, random_network, save_network
from tests.factories import make_checkpoint
from tests.pairs import target_of
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DFlashCache
from transformers.models.muse_glimmer_assistant import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

from surefoot.drafters.dflash.blocks import Blocks, TorchBlocks
from surefoot.drafters.dflash.drafter import DFlash
from surefoot.drafters.dflash.loss import block_loss, slot_weights
from surefoot.drafters.dflash.native_blocks import NativeBlocks
from surefoot.drafters.dflash.network import DFlashNetwork
from surefoot.engine import Engine
from surefoot.errors import OptionError
from surefoot.loading import find_dflash, load_dflash, load_target
from surefoot.native import available
from surefoot.options import LoadOptions, SamplingParams, SpeculativeOptions

WIDTH, NUM_TAPS = 48, 2
CLOSE = {"rtol": 0.0, "atol": 1e-5}
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
SHAPES: dict[str, dict[str, object]] = {
    "full": {},
    "sliding and causal": SLIDING,
    "sliding both ways": SLIDING | {"is_causal": False},
    "causal": {"is_causal": True},
    "one key head": {"num_key_value_heads": 1},
    "a head for each": {"num_key_value_heads": 4, "head_dim": 12},
}


def muse_of(network: DFlashNetwork) -> MuseGlimmerAssistantModel:
    """The same weights in the implementation of transformers."""
    config = network.config
    theirs = MuseGlimmerAssistantModel(
        MuseGlimmerAssistantConfig(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
            max_position_embeddings=config.context_length,
            layer_types=["full_attention"] * config.num_layers,
            block_size=config.block_size,
            mask_token_id=config.mask_token_id,
            target_layer_ids=list(config.target_layer_ids),
            attn_implementation="sdpa",
        )
    )
    names = {"fc.": "encoder.fc.", "hidden_norm.": "encoder.output_norm_enc."}
    state = {
        next(
            (theirs + name.removeprefix(ours) for ours, theirs in names.items() if name.startswith(ours)), name
        ): tensor
        for name, tensor in network.state_dict().items()
    }
    theirs.load_state_dict(state, strict=True)
    return theirs.eval()


class MuseBlocks:
    """Their module with their cache, driven as their generation does: context is fed together with the next block."""

    def __init__(self, network: DFlashNetwork) -> None:
        self.model, self.size = muse_of(network), network.config.block_size
        self.cache = DFlashCache(config=self.model.config)
        self.cache.activate_past_recording()
        self.length = 0

    def denoise(self, taps: Tensor, noise: Tensor) -> Tensor:
        count = len(taps)
        self.cache.set_previous_accepted_tokens(count)
        if self.length:
            self.cache.crop(-self.size)
        positions = torch.arange(self.length, self.length + count + self.size)
        self.length += count
        with torch.no_grad():
            out = self.model(
                noise_embeds=noise[None],
                context_hidden_states=taps[None],
                position_ids=positions[None],
                past_key_values=self.cache,
            )
        return out.last_hidden_state[0]


def torch_blocks(network: DFlashNetwork) -> Blocks:
    return TorchBlocks(network)


def native_blocks(network: DFlashNetwork) -> Blocks:
    library = available()
    if library is None:
        pytest.skip("there are no kernels")
    return NativeBlocks(network, library)


LAID_OUT = pytest.mark.parametrize("lay_out", [torch_blocks, native_blocks])


@LAID_OUT
@pytest.mark.parametrize("block_size", [2, 8, 16])
@pytest.mark.parametrize("prompt", [1, 7])
def test_blocks_over_several_rounds_are_those_of_transformers(
    lay_out: Callable[[DFlashNetwork], Blocks], block_size: int, prompt: int
) -> None:
    network = random_network(block_size, block_size=block_size, num_hidden_layers=3)
    ours, theirs = lay_out(network), MuseBlocks(network)
    context = ours.new_context()
    generator, draws = torch.Generator().manual_seed(prompt), random.Random(prompt)
    for committed in (prompt, *(draws.randint(1, block_size) for _ in range(5))):
        taps = torch.randn(committed, NUM_TAPS * WIDTH, generator=generator)
        noise = torch.randn(block_size, WIDTH, generator=generator)
        ours.extend(context, taps.split(WIDTH, -1))
        torch.testing.assert_close(ours.denoise(context, noise.clone()), theirs.denoise(taps, noise), **CLOSE)
        assert context.length == theirs.length


def test_a_context_at_shifted_positions_gives_other_blocks() -> None:
    """The negative control of the parity above."""
    network = random_network(8)
    ours, theirs = TorchBlocks(network), MuseBlocks(network)
    context = ours.new_context()
    ours.extend(context, torch.zeros(1, NUM_TAPS * WIDTH).split(WIDTH, -1))  # a row too many
    taps, noise = torch.randn(5, NUM_TAPS * WIDTH), torch.randn(8, WIDTH)
    ours.extend(context, taps.split(WIDTH, -1))
    difference = (ours.denoise(context, noise.clone()) - theirs.denoise(taps, noise)).abs().max()
    assert difference > 1e-2


def dense_reference(network: DFlashNetwork, taps: Tensor, noise: Tensor) -> Tensor:
    """Row by row and head by head, each row's keys picked by the rules: no cache, no masks."""
    config = network.config
    mixed, start, count = network.context(taps), len(taps), len(noise)
    positions = torch.arange(start + count)
    x = noise
    for index, layer in enumerate(network.layers):
        normed = layer.input_layernorm(x)
        rows = torch.cat((mixed, normed))
        keys, values = layer.self_attn.keys_values(rows, network.angles(positions, noise))
        heads = layer.self_attn.q_norm(layer.self_attn.q_proj(normed).view(count, config.num_heads, -1))
        turned = _turned(heads, network.angles(positions[start:], noise))
        outs = []
        for row in range(count):
            here = start + row
            window = config.windows[index]
            seen = [
                place
                for place in range(start + count)
                if (window is None or here - place < window) and (not config.causal[index] or place <= here)
            ]
            group = config.num_heads // config.num_kv_heads
            parts = []
            for head in range(config.num_heads):
                scores = (keys[head // group][seen] @ turned[row, head]) * config.head_dim**-0.5
                parts.append(scores.softmax(0) @ values[head // group][seen])
            outs.append(torch.cat(parts))
        x = x + layer.self_attn.o_proj(torch.stack(outs))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return network.norm(x)


def _turned(heads: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    cosines, sines = (angle.transpose(0, 1) for angle in angles)
    low, high = heads.chunk(2, -1)
    return heads * cosines + torch.cat((-high, low), -1) * sines


@LAID_OUT
@pytest.mark.parametrize("shape", SHAPES)
def test_windows_and_causality_are_those_of_a_dense_reference(
    lay_out: Callable[[DFlashNetwork], Blocks], shape: str
) -> None:
    network = random_network(1, **SHAPES[shape])
    taps, noise = torch.randn(11, NUM_TAPS * WIDTH), torch.randn(5, WIDTH)
    expected = dense_reference(network, taps, noise)
    blocks = lay_out(network)
    context = blocks.new_context()
    for chunk in taps.split((1, 7, 3)):
        blocks.extend(context, chunk.split(WIDTH, -1))
    torch.testing.assert_close(blocks.denoise(context, noise.clone()), expected, **CLOSE)
    torch.testing.assert_close(blocks.denoise(context, noise.clone()), expected, **CLOSE)  # a block leaves nothing
    visible = torch.ones(5, 16, dtype=torch.bool)
    whole = network(noise, torch.arange(11, 16), network.context(taps), torch.arange(11), visible)
    torch.testing.assert_close(whole, expected, **CLOSE)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernels_compute_bfloat16_as_torch_does(shape: str) -> None:
    network = random_network(2, torch.bfloat16, **SHAPES[shape])
    hidden = []
    for blocks in (TorchBlocks(network), native_blocks(network)):
        generator = torch.Generator().manual_seed(0)
        context = blocks.new_context()
        for count in (1, 9, 300):  # the last one makes the context grow
            taps = torch.randn(count, NUM_TAPS * WIDTH, generator=generator).bfloat16()
            blocks.extend(context, taps.split(WIDTH, -1))
        hidden.append(blocks.denoise(context, torch.randn(6, WIDTH, generator=generator).bfloat16()).float())
    torch.testing.assert_close(hidden[0], hidden[1], rtol=0.0, atol=0.2)
    assert (hidden[0] - hidden[1]).abs().mean() < 0.02


def test_a_block_keeps_what_it_reads_while_another_thread_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share the list of places; a longer text's replaces it while the kernel reads the one before."""
    library = available()
    if library is None:
        pytest.skip("there are no kernels here")
    blocks = NativeBlocks(random_network(1), library)
    alive: list[bool] = []
    honest = library.forward

    def meanwhile(call: int) -> int:
        read = weakref.ref(blocks._places)
        blocks._places = np.arange(9, dtype=np.int64)
        alive.append(read() is not None)
        return honest(call)

    context = blocks.new_context()
    blocks.extend(context, torch.randn(11, NUM_TAPS * WIDTH).split(WIDTH, -1))
    noise = torch.randn(5, WIDTH)
    alone = blocks.denoise(context, noise.clone())
    monkeypatch.setattr(library, "forward", meanwhile)
    for _ in range(2):  # the second one finds a list that is too short
        assert torch.equal(blocks.denoise(context, noise.clone()), alone)
    assert alive == [True, True]


def test_a_window_that_is_one_longer_gives_other_blocks() -> None:
    """The negative control of the reference above."""
    taps, noise = torch.randn(11, NUM_TAPS * WIDTH), torch.randn(5, WIDTH)
    first, second = (
        dense_reference(random_network(1, **(SLIDING | {"sliding_window": window})), taps, noise) for window in (6, 7)
    )
    assert (first - second).abs().max() > 1e-3


def test_blocks_side_by_side_are_single_blocks() -> None:
    """What training does: several anchors in one forward, each seeing what lies before it and its own block."""
    network = random_network(3, **SLIDING)
    taps, size, anchors = torch.randn(20, NUM_TAPS * WIDTH), 4, torch.tensor([2, 9, 20, 9])
    noise = torch.randn(len(anchors), size, WIDTH)
    context, places = network.context(taps), torch.arange(20)
    block = torch.arange(len(anchors) * size) // size
    sight = torch.cat((places < anchors[block][:, None], block[:, None] == block), -1)
    positions = (anchors[:, None] + torch.arange(size)).flatten()
    together = network(noise.flatten(0, 1), positions, context, places, sight).view(noise.shape)
    for index, anchor in enumerate(anchors.tolist()):
        own = torch.arange(anchor, anchor + size)
        visible = torch.ones(size, anchor + size, dtype=torch.bool)
        alone = network(noise[index], own, context[:anchor], places[:anchor], visible)
        torch.testing.assert_close(together[index], alone, **CLOSE)


def test_the_loss_weighs_slots_and_leaves_out_what_does_not_count() -> None:
    logits, labels = torch.randn(3, 4, 9), torch.randint(0, 9, (3, 4))
    valid = torch.tensor([[True] * 4, [True, True, False, False], [False] * 4])
    weights = slot_weights(4, 2.0)
    total, share = 0.0, 0.0
    for block in range(3):
        for slot in range(4):
            if valid[block, slot]:
                total += float(weights[slot] * -logits[block, slot].log_softmax(-1)[labels[block, slot]])
                share += float(weights[slot])
    assert float(block_loss(logits, labels, valid, gamma=2.0)) == pytest.approx(total / share, rel=1e-5)
    same = block_loss(logits, labels, valid, gamma=2.0, target_logits_NKV=logits)
    assert float(same) == pytest.approx(0.1 * total / share, rel=1e-5)
    assert float(block_loss(logits, labels, torch.zeros_like(valid), gamma=2.0)) == 0
    with pytest.raises(OptionError, match="gamma"):
        block_loss(logits, labels, valid, gamma=0.0)


def test_our_checkpoint_generates_the_same_in_transformers(tmp_path: Path) -> None:
    """The drafter is saved by us, renamed as their notes say, and drafts there for the same target."""
    target_dir = make_checkpoint(tmp_path / "target", "qwen3", seed=3)
    directory = save_network(tmp_path / "drafter", learnt_by(target_of("qwen3", torch.float32)))
    loaded = load_target(target_dir, LoadOptions())
    found = find_dflash(directory)
    assert found is not None
    network, notes = load_dflash(found, LoadOptions(), loaded)
    assert notes == ()
    prompt = tuple(range(5, 17))
    engine = Engine(loaded.model, DFlash(network))
    options = SpeculativeOptions(num_draft=7)
    ours = engine.generate(prompt, SamplingParams(max_tokens=40, ignore_eos=True), speculative=options)
    assert ours.stats.fallbacks == 0
    assert ours.stats.mean_acceptance_length > 3
    theirs = AutoModelForCausalLM.from_pretrained(target_dir, dtype=torch.float32).eval()
    rounds: list[int] = []
    assistant = muse_of(network)
    assistant.register_forward_hook(lambda *_: rounds.append(1))
    answer = theirs.generate(
        torch.tensor([prompt]),
        assistant_model=assistant,
        speculation_type="dflash",
        max_new_tokens=40,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert tuple(answer[0, len(prompt) :].tolist()) == ours.tokens
    assert abs(len(rounds) - ours.stats.rounds) <= 1
