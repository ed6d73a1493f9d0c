"""Hybrids of delta layers and attention beside ``transformers``: plain decoding, and forwards of several rows.

``small`` has the sizes of the bundled hybrid, ``0.8b`` those of a Qwen3.5 of 0.8 billion parameters; both are made here
in the folder ``--cache``, of random weights. Arms take turns on fresh random prompts, greedy, as in ``decode.py``.

    python -m benchmarks.hybrid --only plain --models small
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.decode import CONTEXT, OURS, ROWS, Collection, faster, rate, same_tokens, vocabulary
from benchmarks.figures import Aim, Figure, Findings, Options, prompts, run
from benchmarks.peers.client import Arm, in_turn, running
from surefoot.loading import bundled
from surefoot.models import FAMILIES
from surefoot.models.config import DecoderConfig

PEER = "transformers"
MODELS = ("small", "0.8b")
_FAMILY = "qwen3_5"
_SEED = 20261120

PLAIN_AIMS = {"small": Aim(at_least=3), "0.8b": Aim(at_least=1.5)}
"""Plain decoding against ``transformers``, bf16."""
ROW_AIMS = {("0.8b", 8): Aim(at_most=1.4)}
"""A forward of several rows against one of a single row, bf16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid:
    """What decides the cost of a hybrid's forward; every fourth layer has attention, heads and keys as published."""

    hidden: int
    inner: int
    layers: int
    heads: tuple[int, int]
    head_dim: int
    delta_heads: int
    key_dim: int
    value_dim: int
    vocabulary: int


SHAPES = {
    "small": Hybrid(
        hidden=320,
        inner=864,
        layers=8,
        heads=(5, 1),
        head_dim=64,
        delta_heads=5,
        key_dim=32,
        value_dim=64,
        vocabulary=4096,
    ),
    "0.8b": Hybrid(
        hidden=1024,
        inner=3584,
        layers=24,
        heads=(8, 2),
        head_dim=256,
        delta_heads=16,
        key_dim=128,
        value_dim=128,
        vocabulary=248320,
    ),
}


def plain(options: Options) -> Findings:
    """Plain decoding against ``transformers``."""
    found = Collection()
    for model, dtype in product(options.models, options.dtypes):
        path = checkpoint(model, options.cache)
        arms = found.installed({name: Arm(engine=name, model=path) for name in (OURS, PEER)})
        answers = found.answers(arms, options, model, dtype)
        label = f"{model} {dtype}"
        aim = PLAIN_AIMS.get(model) if dtype == "bfloat16" else None
        found.figures += [rate(f"{label}: {name}", answers[name]) for name in arms]
        found.figures += [faster(label, answers, OURS, PEER, aim), same_tokens(label, answers, PEER)]
    return found.findings()


def verification(options: Options) -> Findings:
    """Whole forwards of 1 to 16 rows after a context of 256, logits of every row; none of them is committed."""
    found = Collection()
    rows = (1, 8) if options.quick else ROWS
    for model, dtype in product(options.models, options.dtypes):
        path = checkpoint(model, options.cache)
        context = prompts(1, 32 if options.quick else CONTEXT, vocabulary(path))[0]
        taken: list[dict[int, float]] = []
        with running({OURS: Arm(engine=OURS, model=path)}, found.setup(options, dtype)) as peers:
            found.note(peers)
            for turn in range(options.turns + 1):
                for _, peer in in_turn(peers, turn):
                    seconds = peer.forwards(context, rows, 1 if options.quick else 3)
                    if turn:  # the first one warms up
                        taken.append(seconds)
        label = f"{model} {dtype}"
        for count in rows:
            found.figures.append(Figure.of(f"{label}, {count} rows", "ms", [1e3 * one[count] for one in taken]))
        for count in rows[1:]:
            aim = ROW_AIMS.get((model, count)) if dtype == "bfloat16" else None
            growth = [one[count] / one[1] for one in taken]
            found.figures.append(Figure.of(f"{label}: {count} rows / 1 row", "times", growth, aim))
    return found.findings()


MEASUREMENTS = {"plain": plain, "verification": verification}


def checkpoint(name: str, cache: Path) -> Path:
    """The directory of a checkpoint in bf16, written on first use; a bundled name stands for its own directory."""
    if name in bundled():
        return bundled()[name]
    path = cache / f"hybrid-{name}"
    if not (path / "model.safetensors").exists():
        part = path.with_name(path.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        raw = raw_config(SHAPES[name])
        (part / "config.json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
        tokenizer = bundled()["pebble"]
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(tokenizer / file, part / file)
        weights = dict(tensors(FAMILIES[_FAMILY].parse(raw)))
        save_file(weights, part / "model.safetensors", metadata={"format": "pt"})
        part.rename(path)
    return path


def raw_config(shape: Hybrid) -> dict[str, object]:
    """The ``config.json`` of a shape."""
    kinds = ["full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(shape.layers)]
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 1,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.inner,
        "layer_types": kinds,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": shape.key_dim,
        "linear_num_key_heads": shape.delta_heads,
        "linear_num_value_heads": shape.delta_heads,
        "linear_value_head_dim": shape.value_dim,
        "max_position_embeddings": 4096,
        "num_attention_heads": shape.heads[0],
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.heads[1],
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": shape.vocabulary,
    }


def tensors(config: DecoderConfig) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the checkpoint, bf16 but for what is read in fp32, drawn to keep activations at their size."""
    generator = torch.Generator().manual_seed(_SEED)
    for spec in FAMILIES[_FAMILY].tensors(config):
        drawn = torch.randn(spec.shape, generator=generator)
        if spec.name.endswith("norm.weight"):
            drawn = 0.1 * drawn + float(spec.name.endswith("linear_attn.norm.weight"))  # others act as 1 + w
        elif spec.name.endswith(("A_log", "dt_bias")):
            yield spec.name, 0.5 * drawn - 1.0
            continue
        elif spec.name.endswith("embed_tokens.weight"):
            drawn = torch.nn.functional.normalize(drawn, dim=1)
        else:
            drawn = drawn * spec.shape[-1] ** -0.5
        yield spec.name, drawn.to(torch.bfloat16)


if __name__ == "__main__":
    run("hybrid", __doc__, MEASUREMENTS, MODELS)
