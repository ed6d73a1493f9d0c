"""Drafters and adapters in the layouts they are published in: each told apart from the others, none opened."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.drafters.blockers import random_network, save_network
from tests.factories import make_checkpoint

from surefoot.describe import Description, describe

H, V, D = 16, 64, 24
Shapes = Mapping[str, tuple[int, ...]]


def write(path: Path, config: object = None, shapes: Shapes | None = None, **files: bytes) -> str:
    """A directory with a config, tensors of zeros, and other files."""
    path.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    if shapes:
        save_file({name: torch.zeros(shape) for name, shape in shapes.items()}, path / "model.safetensors")
    for name, content in files.items():
        (path / name.replace("__", ".")).write_bytes(content)
    return str(path)


def facts(description: Description) -> dict[str, str]:
    return {fact.name: fact.value for fact in description.facts}


def layer(prefix: str) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}.self_attn.q_proj.weight": (H, H), f"{prefix}.mlp.down_proj.weight": (H, D)}


SPECULATORS = {
    "speculators_model_type": "eagle3",
    "architectures": ["Eagle3Speculator"],
    "draft_vocab_size": 32,
    "eagle_aux_hidden_state_layer_ids": [2, 16, 29],
    "transformer_layer_config": {"model_type": "llama", "hidden_size": H},
    "speculators_config": {
        "algorithm": "eagle3",
        "proposal_methods": [{"speculative_tokens": 5, "verifier_accept_k": 1, "accept_tolerance": 0.0}],
        "verifier": {"name_or_path": "some/target"},
    },
}
DFLASH = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "num_hidden_layers": 5,
    "block_size": 16,
    "dflash_config": {"mask_token_id": 63, "target_layer_ids": [1, 9, 17]},
}
LAYOUTS: dict[str, tuple[str, Callable[[Path], str], dict[str, str]]] = {
    "EAGLE-1": (
        "an EAGLE-1 or EAGLE-2 head",
        lambda path: write(path, {"hidden_size": H}, {"fc.weight": (H, 2 * H), "fc.bias": (H,), **layer("layers.0")}),
        {"linear has a bias": "yes"},
    ),
    "EAGLE-3": (
        "an EAGLE-3 head",
        lambda path: write(
            path,
            {"architectures": ["LlamaForCausalLMEagle3"], "vocab_size": V, "draft_vocab_size": 32, "hidden_size": H},
            {"fc.weight": (H, 3 * H), "d2t": (32,), "t2d": (V,), **layer("midlayer")},
        ),
        {"draft vocabulary": "32", "target vocabulary": "64"},
    ),
    "EAGLE-3 by its tensors alone": (
        "an EAGLE-3 head",
        lambda path: write(path, {}, {"fc.weight": (H, 3 * H), **layer("midlayer")}),
        {"hidden size": "16"},
    ),
    "EAGLE-3 in a pickle": (
        "an EAGLE-3 head",
        lambda path: write(path, {"draft_vocab_size": 32, "vocab_size": V}, pytorch_model__bin=b"not opened"),
        {"draft vocabulary": "32"},
    ),
    "Medusa": (
        "Medusa heads",
        lambda path: write(
            path,
            {"medusa_num_heads": 5, "medusa_num_layers": 1, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"},
            medusa_lm_head__pt=b"not opened",
        ),
        {"heads": "5", "trained for": "lmsys/vicuna-7b-v1.3"},
    ),
    "DFlash": (
        "a DFlash drafter",
        lambda path: write(path, DFLASH, {"fc.weight": (H, 3 * H), **layer("layers.0")}),
        {"block": "16", "reads target layers": "[1, 9, 17]", "mask token": "63"},
    ),
    "DSpark": (
        "a drafter of the DFlash family (dspark)",
        lambda path: write(path, {**DFLASH, "markov_rank": 256}, {"fc.weight": (H, 3 * H)}),
        {"block": "16"},
    ),
    "speculators": (
        "a drafter in the speculators layout: eagle3",
        lambda path: write(path, SPECULATORS, {"fc.weight": (H, 3 * H), "d2t": (32,), **layer("layers.0")}),
        {"trained for": "some/target", "drafts a round": "5", "layer family": "llama"},
    ),
    "peft": (
        "a peft adapter (LORA)",
        lambda path: write(
            path,
            adapter_config__json=json.dumps(
                {"peft_type": "LORA", "r": 8, "base_model_name_or_path": "some/base"}
            ).encode(),
        ),
        {"rank": "8", "base model": "some/base"},
    ),
    "MTP": (
        "multi-token prediction modules without their model",
        lambda path: write(path, {"mtp_num_hidden_layers": 1}, {"mtp.fc.weight": (H, 2 * H), **layer("mtp.layers.0")}),
        {"modules": "1"},
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_is_recognised_and_honestly_refused(tmp_path: Path, layout: str) -> None:
    kind, make, expected = LAYOUTS[layout]
    description = describe(make(tmp_path / "drafter"))
    assert description.kind.startswith(kind)
    assert expected.items() <= facts(description).items()
    assert not description.usable
    assert description.verdict.startswith("This version cannot use it")
    assert description.needs


def test_a_dflash_drafter_that_is_whole_can_be_used(tmp_path: Path) -> None:
    directory = save_network(tmp_path / "whole", random_network())
    description = describe(str(directory))
    assert description.usable
    assert "--draft-model" in description.verdict
    (directory / "model.safetensors").unlink()
    damaged = describe(str(directory))
    assert not damaged.usable
    assert damaged.needs
    unknown = describe(str(save_network(tmp_path / "unknown", random_network(), attention_sink_bias=True)))
    assert "attention_sink_bias" in unknown.verdict


def test_a_pickle_is_named_and_not_opened(tmp_path: Path) -> None:
    _, make, _ = LAYOUTS["Medusa"]
    (note,) = describe(make(tmp_path / "drafter")).notes
    assert "medusa_lm_head.pt is a pickle" in note
    assert "never opened" in note


def test_a_proposal_that_asks_for_lossy_acceptance_is_pointed_out(tmp_path: Path) -> None:
    lossy = json.loads(json.dumps(SPECULATORS))
    lossy["speculators_config"]["proposal_methods"][0]["accept_tolerance"] = 0.1
    assert "lossy" in describe(write(tmp_path / "drafter", lossy)).notes[0]
    assert describe(write(tmp_path / "other", SPECULATORS)).notes == ()


def test_a_whole_model_with_modules_that_predict_further_tokens_is_no_head(tmp_path: Path) -> None:
    shapes = {"model.embed_tokens.weight": (V, H), "mtp.fc.weight": (H, 2 * H), **layer("model.layers.0")}
    description = describe(write(tmp_path / "model", {"model_type": "qwen3_5", "mtp_num_hidden_layers": 1}, shapes))
    assert description.kind == "a model of type qwen3_5"
    assert "1 multi-token prediction module(s)" in description.notes[-1]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_whole_model_is_no_head(tmp_path: Path, family: str) -> None:
    description = describe(str(make_checkpoint(tmp_path / "model", family, num_hidden_layers=1)))
    assert description.usable
    assert description.kind == f"a {family} language model"
