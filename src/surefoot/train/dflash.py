"""DFlash as the loop trains it: its shape for a target, its blocks, its loss under the target's head.

Shape suffixes: W sequences side by side, S tokens of one, N blocks of one, B rows of a block, K = B - 1, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from surefoot.drafters.dflash.config import DFlashConfig, layers_by_rule, to_json
from surefoot.drafters.dflash.drafter import DFlash
from surefoot.drafters.dflash.loss import default_gamma, slot_weights
from surefoot.drafters.dflash.network import DFlashNetwork
from surefoot.errors import CheckpointError, OptionError
from surefoot.loading.dflash import find_dflash, load_dflash
from surefoot.loading.files import read_optional_object
from surefoot.loading.loaded import LoadedTarget
from surefoot.models.decoder import DecoderModel
from surefoot.ops.rope import Rope
from surefoot.options import LoadOptions
from surefoot.train.blocks import Blocks, draw_anchors, make_blocks
from surefoot.train.checkpoint import write_atomically, write_json
from surefoot.train.data import Sequences, Split
from surefoot.train.features import Features
from surefoot.train.head import frozen_head, head_loss
from surefoot.train.options import DFlashOptions
from surefoot.train.texts import Document
from surefoot.types import Capture

GROUP = 16
"""Blocks of a sequence that attend together: attention computes what they may not see of each other, too."""

WEIGHTS = "model.safetensors"

PROBES = 64
"""Rows from which the target's last norm is read off."""


def shape_for(target: LoadedTarget, options: DFlashOptions) -> DFlashConfig:
    """The drafter's config for this target.

    Raises:
        OptionError: the target has no such layers, no id is free for the mask, or no drafter has such sizes.
    """
    config = target.config
    layers = options.tap_layer
    if layers is None:
        layers = tuple(dict.fromkeys(max(0, layer) for layer in layers_by_rule(config.num_layers, options.taps)))
    wrong = [layer for layer in layers if layer >= config.num_layers - 1]
    if wrong or len(set(layers)) < (len(layers) if options.tap_layer else options.taps):
        raise OptionError(
            f"the drafter would read layers {', '.join(map(str, layers))} of a target of {config.num_layers}; expected "
            f"different ones from 0 to {config.num_layers - 2}, as what the last one says differs between programs. "
            "Give other --tap-layer, or fewer --taps"
        )
    head_dim = options.head_dim or config.head_dim
    make = partial(
        DFlashConfig,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=options.inner_size or 3 * config.hidden_size,
        num_layers=options.layers,
        num_heads=options.heads or config.num_heads,
        num_kv_heads=options.kv_heads or config.num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=config.rms_norm_eps,
        rope=Rope(theta=options.rope_theta, dim=head_dim),
        context_length=config.context_length,
        block_size=options.block_size,
        target_layer_ids=layers,
        mask_token_id=find_mask_id(target) if options.mask_token_id is None else options.mask_token_id,
        num_target_layers=config.num_layers,
        windows=(None,) * options.layers,
        causal=(False,) * options.layers,
    )
    try:
        return make()
    except CheckpointError as fault:
        raise OptionError(f"the drafter's {fault}. Give other options") from fault


def find_mask_id(target: LoadedTarget) -> int:
    """An id that no text has: the first row of the embedding beyond the tokenizer, else the padding token.

    Raises:
        OptionError: there is neither, or padding is also what ends or begins a text.
    """
    known = target.tokenizer.vocab_size if target.tokenizer else target.config.vocab_size
    if known < target.config.vocab_size:
        return known
    raw = read_optional_object(target.path, "config.json")
    padding = raw.get("pad_token_id")
    taken = (*target.eos_token_ids, raw.get("bos_token_id"))
    if isinstance(padding, int) and 0 <= padding < target.config.vocab_size and padding not in taken:
        return padding
    raise OptionError(
        f"{target.name} has no row beyond its tokenizer and no padding token of its own; expected an id that no text "
        "has. Give one with --mask-token-id"
    )


class DFlashMethod:
    """A DFlash network being trained for a target whose embedding and head are constants."""

    def __init__(self, target: LoadedTarget, options: DFlashOptions, *, seed: int, dtype: torch.dtype) -> None:
        """``dtype`` is that of the matrix products: fp32, or bf16 by torch's automatic casts."""
        self._options, self._config, self._dtype = options, shape_for(target, options), dtype
        self._loaded, self._target = target, target.model
        device = target.model.device
        self.network = new_network(self._config, seed)
        with torch.no_grad():
            self.network.norm.weight.copy_(final_norm(target.model))
        self.network.to(device)
        if options.init is not None:
            load_weights(options.init, self.network, target)
        self._weights = slot_weights(options.block_size - 1, options.gamma or default_gamma(options.block_size), device)
        self._head = frozen_head(target.model, self._config.hidden_size, dtype)
        self._mask_row = self._embed(torch.tensor([self._config.mask_token_id], device=device))[0]

    @property
    def config(self) -> DFlashConfig:
        """Its shape."""
        return self._config

    @property
    def capture(self) -> Capture:
        """The layers it reads."""
        return Capture(layers=self._config.target_layer_ids)

    @property
    def num_drafts(self) -> int:
        """Tokens of a block after its anchor."""
        return self._config.block_size - 1

    def lesson(self, sequences: Sequences, streams: Sequence[np.random.Generator]) -> Blocks:
        """Blocks at places drawn from the streams."""
        places = zip(sequences.learnt, streams, strict=True)
        anchors = [draw_anchors(learnt, self._options.anchors, stream) for learnt, stream in places]
        return self._blocks(sequences, anchors)

    def loss(self, lesson: Blocks, features: Features) -> Tensor:
        """The weighted cross entropy of all tokens that count."""
        loss, _ = self._judge(lesson, features)
        return loss

    def correct(self, lesson: Blocks, features: Features) -> Tensor:
        """Of the blocks that lie whole in what is learnt, which guesses are right."""
        return self._right(lesson, features)[lesson.valid.all(-1)]

    def correct_everywhere(self, sequences: Sequences, features: Features) -> Tensor:
        """Which guesses are right, of blocks at every place but the first."""
        places = np.arange(1, sequences.length)
        pieces = np.split(places, range(self._options.anchors, len(places), self._options.anchors))
        rows = [self._right(self._blocks(sequences, [piece]), features)[0] for piece in pieces]
        return torch.cat(rows)

    def check_questions(self, questions: Sequence[Document]) -> None:
        """Raises ``OptionError`` where what the target is asked has the id that stands for unknown tokens, or that id
        ends what it answers."""
        mask = self._config.mask_token_id
        if mask in self._loaded.eos_token_ids:
            raise OptionError(
                f"--mask-token-id is {mask}, with which {self._loaded.name} ends an answer; expected one that no text "
                "has. Give another"
            )
        for question in questions:
            if (question.prompt == mask).any():
                raise self._holds_mask(question.place)

    def check(self, split: Split) -> None:
        """Raises ``OptionError`` where the data have the id that stands for unknown tokens, or no whole block to be
        judged by."""
        size = self._config.block_size
        learnt = split.held_out.learnt[:, 1:]
        if learnt.shape[1] < size or not np.lib.stride_tricks.sliding_window_view(learnt, size, axis=1).all(-1).any():
            raise OptionError(
                f"what is kept aside has no {size} tokens of an answer in a row; expected a whole block, to judge the "
                "drafter by. Give longer answers or --length, or a smaller --block-size"
            )
        for part in (split.train, split.held_out):
            if (part.ids == self._config.mask_token_id).any():
                raise self._holds_mask("the data")

    def _holds_mask(self, what: str) -> OptionError:
        return OptionError(
            f"{what} holds id {self._config.mask_token_id}, which stands for tokens not yet known; expected one that "
            "no text has. Give another with --mask-token-id"
        )

    def load(self, folder: Path) -> DFlash:
        """The drafter in the folder, as any program of ours reads it."""
        found = find_dflash(folder)
        assert found is not None, folder
        network, _ = load_dflash(found, LoadOptions(), self._loaded)
        return DFlash(network, whole_block=True)

    def save(self, folder: Path) -> None:
        """Writes ``config.json`` and ``model.safetensors`` in the released layout, in the target's dtype."""
        dtype = self._target.dtype
        weights = {name: value.detach().to("cpu", dtype) for name, value in self.network.named_parameters()}
        stored = {name: value.contiguous() for name, value in weights.items()}
        write_atomically(folder / WEIGHTS, lambda aside: save_file(stored, aside, metadata={"format": "pt"}))
        write_json(folder / "config.json", to_json(self._config, str(dtype).removeprefix("torch.")))

    def _blocks(self, sequences: Sequences, anchors: Sequence[np.ndarray]) -> Blocks:
        return make_blocks(sequences, anchors, self._weights.cpu().numpy(), self._target.device)

    def _embed(self, tokens: Tensor) -> Tensor:
        return self._target.embed(tokens).float()

    def _hidden(self, blocks: Blocks, features: Features) -> Tensor:
        """What the head reads of every row: ``[W, N, B, H]``."""
        with torch.autocast(self._target.device.type, self._dtype, enabled=self._dtype != torch.float32):
            context = self.network.context(features.layers.float())
            return torch.cat([self._group(group, context) for group in blocks.groups(GROUP)], 1)

    def _group(self, blocks: Blocks, context: Tensor) -> Tensor:
        """The same of a group of blocks, over as much of the context ``[W, S, H]`` as they see."""
        noise = self._mask_row.expand(*blocks.first.shape, self._config.block_size, -1).clone()
        noise[:, :, 0] = self._embed(blocks.first)
        places = torch.arange(blocks.length, device=noise.device).expand(len(noise), -1)
        context = context[:, : blocks.length]
        hidden: Tensor = self.network(noise.flatten(1, 2), blocks.positions, context, places, blocks.visible)
        return hidden.view(len(noise), -1, self._config.block_size, hidden.shape[-1])

    def _judge(self, blocks: Blocks, features: Features) -> tuple[Tensor, Tensor]:
        """The loss, and the guesses ``[rows that count]``."""
        hidden = self._hidden(blocks, features)[:, :, 1:][blocks.valid]
        weights = self._weights.expand(blocks.valid.shape)[blocks.valid]
        return head_loss(hidden, self._head, blocks.labels[blocks.valid], weights)

    @torch.no_grad()
    def _right(self, blocks: Blocks, features: Features) -> Tensor:
        """Which guesses are right, False where they do not count: ``[W, N, K]``."""
        _, guesses = self._judge(blocks, features)
        right = torch.zeros_like(blocks.valid)
        right[blocks.valid] = guesses == blocks.labels[blocks.valid]
        return right


def new_network(config: DFlashConfig, seed: int) -> DFlashNetwork:
    """A network with norms of 1 and random matrices that keep the spread of what they are given; what leads back into
    the stream adds less, by the root of how often something is added to it."""
    generator = torch.Generator().manual_seed(seed)
    network = DFlashNetwork(config)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
                continue
            back = name.endswith(("o_proj.weight", "down_proj.weight"))
            spread = (parameter.shape[1] * (2 * config.num_layers if back else 1)) ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    return network


def final_norm(target: DecoderModel) -> Tensor:
    """The weight ``[H]`` of the norm before the target's head, read off what goes in and comes out: with it a drafter's
    first guesses are as sure as the target's, not many times as much."""
    ids = [index % target.vocab_size for index in range(min(PROBES, target.context_length))]
    capture = Capture(layers=(target.num_layers - 1,), final=True)
    weighted, squares = torch.zeros(2, target.hidden_size, dtype=torch.float64)
    for _, out in target.prefill(ids, target.new_cache(len(ids)), capture):
        assert out.final is not None
        before, after = out.layers[0].double().cpu(), out.final.double().cpu()
        unit = before * before.square().mean(-1, keepdim=True).rsqrt()
        weighted, squares = weighted + (after * unit).sum(0), squares + unit.square().sum(0)
    scale: Tensor = weighted / squares.clamp(min=torch.finfo(torch.float64).tiny)
    return scale


def load_weights(folder: Path, network: DFlashNetwork, target: LoadedTarget) -> None:
    """Fills the network with another drafter's weights.

    Raises:
        LoadError: there is no DFlash drafter of the target.
        OptionError: it has another shape.
    """
    found = find_dflash(folder)
    if found is None:
        raise OptionError(f"{folder} is no DFlash drafter; expected one to begin with. Name another, or none")
    loaded, _ = load_dflash(found, LoadOptions(dtype="float32"), target)
    for field in fields(DFlashConfig):
        theirs, ours = getattr(loaded.config, field.name), getattr(network.config, field.name)
        if theirs != ours and field.name != "num_target_layers":
            raise OptionError(
                f"{folder}: {field.name} is {theirs}, and the drafter to train has {ours}; expected the same. Give the "
                "options it was trained with, or leave --init out"
            )
    network.load_state_dict(loaded.state_dict())
