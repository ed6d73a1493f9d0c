"""What undoing a round of a hybrid costs: the tape against a stack of every state, the replay against the tokens again.

Ours alone, in this process. ``4b`` has the sizes of a Qwen3.5 of four billion parameters but for its vocabulary, which
no commit reads; its layers are random, and those of a kind share their weights. ``pebble-hybrid`` is the bundled one.

    python -m benchmarks.rollback --dtypes bfloat16
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from time import perf_counter
from typing import NamedTuple

import torch
from torch import nn

import surefoot
from benchmarks.figures import Aim, Figure, Findings, Options, prompts, run
from surefoot.cache.hybrid import HybridCache
from surefoot.errors import CacheError
from surefoot.loading import bundled
from surefoot.models import FAMILIES
from surefoot.models.decoder import DecoderModel
from surefoot.options import DTypeName
from surefoot.tree import chain
from surefoot.types import Capture

NUM_ROWS = 16
"""Nodes of the longest round."""
ROUNDS = ((8, 1), (8, 4), (8, 7), (16, 8), (16, 15))
"""Rows of a round, and how many of them are kept: none of them all, which is a swap."""
_DTYPES: tuple[DTypeName, ...] = ("bfloat16", "float32")
_NOTHING = Capture()
_SEED = 20261120


class Sizes(NamedTuple):
    """What decides the cost of a hybrid made here; every fourth layer has attention, with heads of 256 as published."""

    hidden: int
    inner: int
    layers: int
    heads: tuple[int, int]
    delta_heads: tuple[int, int]
    delta_dim: int
    vocabulary: int


SIZES = {
    "4b": Sizes(2560, 9216, 32, (16, 4), (16, 32), 128, 4096),
    "small": Sizes(64, 96, 4, (2, 1), (2, 4), 16, 512),  # shows that all works
}
MODELS = ("pebble-hybrid", *SIZES)


def memory(options: Options) -> Findings:
    """Megabytes of one sequence: the states, the tape of a round, and what keeping the state after each node takes."""
    figures = []
    for name, dtype, model in models(options):
        cache = ready(model, options)
        model.score([(chain(range(16, 16 + NUM_ROWS)), cache)], _NOTHING)
        states = cache.states
        tape, one = states.tape, states.committed
        assert tape is not None
        kept = sum(part[:, :NUM_ROWS].numel() * part.element_size() for part in tape)
        state = one.state.nbytes + one.history.nbytes
        case = f"{name} {dtype}: "
        figures += [
            Figure.of(f"{case}the states of all layers", "MB", [state / 1e6]),
            Figure.of(f"{case}the tape of {NUM_ROWS} nodes", "MB", [kept / 1e6]),
            Figure.of(f"{case}the states after each of {NUM_ROWS} nodes", "MB", [NUM_ROWS * state / 1e6]),
            Figure.of(f"{case}stack / tape", "times", [NUM_ROWS * state / kept]),
        ]
    return Findings(figures=tuple(figures), versions={})


def commit(options: Options) -> Findings:
    """Milliseconds of a commit by replay, beside those of computing the kept tokens again, and its share of a round."""
    figures = []
    for name, dtype, model in models(options):
        cache = ready(model, options)
        for rows, kept in ROUNDS:
            timed = [one_round(model, cache, rows, kept) for _ in range(options.warm_ups + options.turns)]
            turns = timed[options.warm_ups :]
            case = f"{name} {dtype}, {kept} of {rows} kept: "
            figures += [
                Figure.of(f"{case}commit by replay", "ms", [1e3 * turn.commit for turn in turns]),
                Figure.of(f"{case}the kept tokens again", "ms", [1e3 * turn.again for turn in turns]),
                Figure.of(f"{case}again / replay", "times", [turn.again / turn.commit for turn in turns]),
                Figure.of(f"{case}replay / round", "share", [turn.share for turn in turns], Aim(at_most=0.1)),
            ]
        turns = [one_round(model, cache, 8, 8) for _ in range(options.turns)]
        figures.append(
            Figure.of(f"{name} {dtype}, 8 of 8 kept: commit by swap", "ms", [1e3 * turn.commit for turn in turns])
        )
    return Findings(figures=tuple(figures), versions={})


MEASUREMENTS = {"memory": memory, "commit": commit}


class Timed(NamedTuple):
    """Seconds of a round's forward, of its commit, and of the kept tokens' forward from the same state."""

    score: float
    commit: float
    again: float

    @property
    def share(self) -> float:
        """How much of the round the commit took."""
        return self.commit / (self.score + self.commit)


def one_round(model: DecoderModel, cache: HybridCache, rows: int, kept: int) -> Timed:
    """Computes the kept tokens alone, forgets them, and then plays the round they come from."""
    tokens = range(16, 16 + rows)
    moments = [perf_counter()]
    model.score([(chain(tokens[:kept]), cache)], _NOTHING)
    moments.append(perf_counter())
    cache.rollback()
    moments.append(perf_counter())
    model.score([(chain(tokens), cache)], _NOTHING)
    moments.append(perf_counter())
    cache.commit(range(kept))
    moments.append(perf_counter())
    again, _, score, committed = (after - before for before, after in pairwise(moments))
    return Timed(score, committed, again)


def ready(model: DecoderModel, options: Options) -> HybridCache:
    """The cache of a sequence whose prompt was read, with room for every turn."""
    turns = options.warm_ups + 2 * options.turns
    cache = model.new_cache(options.prompt_tokens + turns * sum(kept for _, kept in (*ROUNDS, (8, 8))), spare=NUM_ROWS)
    if not isinstance(cache, HybridCache):
        raise CacheError("the model has no recurrent states; expected a hybrid")
    (prompt,) = prompts(1, options.prompt_tokens, model.vocab_size)
    for _ in model.prefill(prompt, cache, _NOTHING):
        pass
    return cache


def models(options: Options) -> Iterator[tuple[str, DTypeName, DecoderModel]]:
    """The hybrids asked for in each dtype, one at a time; the bundled one where it is there."""
    for name in options.models:
        for dtype in (dtype for dtype in _DTYPES if dtype in options.dtypes):
            if name in SIZES:
                yield name, dtype, shared_layers(SIZES[name], torch.bfloat16 if dtype == "bfloat16" else torch.float32)
            elif name in bundled():
                target = surefoot.load(name, dtype=dtype).target
                assert isinstance(target, DecoderModel), target
                yield name, dtype, target


def shared_layers(sizes: Sizes, dtype: torch.dtype) -> DecoderModel:
    """A random hybrid whose layers of a kind are one layer's parameters, so that only a copy in the kernels' own layout
    is as large as the whole."""
    with torch.device("meta"):
        model = DecoderModel(FAMILIES["qwen3_5"].parse(raw_config(sizes)))
    generator = torch.Generator().manual_seed(_SEED)
    drawn: dict[tuple[str, torch.Size], nn.Parameter] = {}
    for path, parameter in list(model.named_parameters()):
        owner, _, name = path.rpartition(".")
        key = (".".join(part for part in path.split(".") if not part.isdigit()), parameter.shape)
        if key not in drawn:
            scale = 0.1 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5
            values = scale * torch.randn(parameter.shape, generator=generator)
            kept = parameter.dtype if parameter.dim() == 1 and "log" in name else dtype
            drawn[key] = nn.Parameter(values.to(kept), requires_grad=False)
        setattr(model.get_submodule(owner), name, drawn[key])
    model.prepare(exact="auto", prefill_chunk=512)
    return model


def raw_config(sizes: Sizes) -> dict[str, object]:
    """The ``config.json`` of a hybrid."""
    heads, kv_heads = sizes.heads
    key_heads, value_heads = sizes.delta_heads
    period = ["linear_attention"] * 3 + ["full_attention"]
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.inner,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 256,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": 2,
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": sizes.delta_dim,
        "linear_value_head_dim": sizes.delta_dim,
        "linear_conv_kernel_dim": 4,
        "layer_types": period * (sizes.layers // 4),
    }


if __name__ == "__main__":
    run("rollback", __doc__, MEASUREMENTS, models=("pebble-hybrid", "4b"))
