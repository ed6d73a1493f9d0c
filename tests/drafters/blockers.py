"""DFlash drafters for tests: random ones, and one that has learnt its target's answer by heart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from surefoot.drafters.dflash.config import DFlashConfig, to_json
from surefoot.drafters.dflash.loss import block_loss
from surefoot.drafters.dflash.network import DFlashNetwork
from surefoot.drafters.dflash.reading import parse
from surefoot.engine import Engine
from surefoot.models.decoder import DecoderModel
from surefoot.options import SamplingParams
from surefoot.types import Capture, Tokens

PROMPT: Tokens = tuple(range(5, 17))
LEARNT = 48
"""Tokens of each answer that is learnt."""
TEMPERATURES = (0.0, 0.8)
ANCHORS = 16
"""Blocks of a training step."""

RawConfig = dict[str, object]


def raw_dflash(**overrides: object) -> RawConfig:
    """A ``config.json`` of a tiny drafter for the targets of ``factories``; ``overrides`` win, None drops a field."""
    raw: RawConfig = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "num_target_layers": 3,
        "block_size": 8,
        "dflash_config": {"mask_token_id": 96, "target_layer_ids": [0, 1]},
    }
    return {name: value for name, value in (raw | overrides).items() if value is not None}


def random_network(seed: int = 0, dtype: torch.dtype = torch.float32, **overrides: object) -> DFlashNetwork:
    """A drafter with random weights, norms included, whose activations keep their size."""
    network = DFlashNetwork(parse(raw_dflash(**overrides)))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn * parameter.shape[1] ** -0.5 if parameter.dim() == 2 else 1 + 0.2 * drawn)
    return network.to(dtype).requires_grad_(False)


def save_network(path: Path, network: DFlashNetwork, **overrides: object) -> Path:
    """Writes the drafter as a checkpoint; ``overrides`` are fields of its ``config.json``, and None drops one."""
    path.mkdir(parents=True, exist_ok=True)
    raw = to_json(network.config, str(network.norm.weight.dtype).removeprefix("torch.")) | overrides
    (path / "config.json").write_text(json.dumps({name: value for name, value in raw.items() if value is not None}))
    tensors = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def taps_of(target: DecoderModel, tokens: Tokens, layers: tuple[int, ...]) -> Tensor:
    """The target's layers side by side: ``[S, T * H]``."""
    cache = target.new_cache(len(tokens))
    outs = [out.layers for _, out in target.prefill(tokens, cache, Capture(layers=layers))]
    return torch.cat([torch.cat(rows, -1) for rows in outs]).clone()


def answer_of(target: DecoderModel, temperature: float) -> Tokens:
    """The prompt and an answer that is learnt."""
    params = SamplingParams(temperature=temperature, max_tokens=LEARNT, seed=11, ignore_eos=True)
    return PROMPT + Engine(target).generate(PROMPT, params).tokens


class Lesson:
    """One text as a drafter learns it: blocks at some of its tokens, each of which sees what lies before it."""

    def __init__(self, target: DecoderModel, text: Tokens, config: DFlashConfig) -> None:
        self.taps = taps_of(target, text, config.target_layer_ids).float()
        self.positions = torch.arange(len(text))
        self.text = torch.tensor(text + (0,) * config.block_size)
        self.masks = target.embed(torch.full((config.block_size,), config.mask_token_id)).float().clone()
        self.embedding = target.embed(self.text).float().clone()
        self.head = target.unembed(torch.eye(config.hidden_size)).clone()
        self.config = config

    def loss(self, network: DFlashNetwork, anchors: Tensor) -> Tensor:
        size = self.config.block_size
        noise = torch.cat([torch.cat((self.embedding[anchor][None], self.masks[1:])) for anchor in anchors])
        block = torch.arange(len(noise)) // size
        sight = torch.cat((self.positions < anchors[block][:, None], block[:, None] == block), -1)
        places = anchors[:, None] + torch.arange(size)
        hidden = network(noise, places.flatten(), network.context(self.taps), self.positions, sight)
        logits = hidden.view(len(anchors), size, -1)[:, 1:] @ self.head
        return block_loss(logits, self.text[places[:, 1:]], places[:, 1:] < len(self.positions), gamma=4.0)


def learnt(target: DecoderModel, steps: int = 100, **overrides: object) -> DFlashNetwork:
    """A drafter trained on nothing but its target's answers to ``PROMPT``, greedy and sampled: a few seconds."""
    return taught(target, [answer_of(target, temperature) for temperature in TEMPERATURES], steps, **overrides)


def taught(target: DecoderModel, texts: Sequence[Tokens], steps: int = 100, **overrides: object) -> DFlashNetwork:
    """A drafter trained on nothing but these texts of its target, which are as long and begin with a prompt as long."""
    torch.manual_seed(0)
    fitting = {
        "vocab_size": target.vocab_size,
        "hidden_size": target.hidden_size,
        "num_target_layers": target.num_layers,
    }
    network = DFlashNetwork(parse(raw_dflash(**{**fitting, **overrides})))
    lessons = [Lesson(target, text, network.config) for text in texts]
    optimizer = torch.optim.AdamW(network.parameters(), lr=4e-3)
    for step in range(steps):
        anchors = len(PROMPT) + torch.randperm(len(texts[0]) - len(PROMPT) - 1)[:ANCHORS]
        loss = lessons[step % len(lessons)].loss(network, anchors)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.to(target.dtype).requires_grad_(False)


@cache
def learnt_by(target: DecoderModel) -> DFlashNetwork:
    """The same, trained once for each target."""
    return learnt(target)


def config_of(**overrides: object) -> DFlashConfig:
    """The config of :func:`raw_dflash`."""
    return parse(raw_dflash(**overrides))
