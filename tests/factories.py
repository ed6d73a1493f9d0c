"""Tiny random models and tokenizers for tests: in memory, or as directories in the real Hugging Face layout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from surefoot.models import FAMILIES
from surefoot.models.config import DecoderConfig
from surefoot.models.decoder import DecoderModel
from surefoot.options import Exactness

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
HYBRIDS = {
    "qwen3_5": "Qwen3_5ForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5_moe": "Qwen3_5MoeForCausalLM",
}
"""Families that mix Gated DeltaNets with attention."""
SPARSE = {"qwen3_moe": "Qwen3MoeForCausalLM"}
"""Families with experts and attention alone."""
RawConfig = dict[str, object]

DELTA_FIELDS: RawConfig = {
    "num_hidden_layers": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
}
"""Two value heads to a key head, keys and values of different sizes, attention neither first nor last."""
EXPERT_FIELDS: RawConfig = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}


def raw_config(family: str = "qwen3", **overrides: object) -> RawConfig:
    """A ``config.json`` of a tiny model of ``family``; ``overrides`` are fields of that file, and win.

    Any of ``ARCHITECTURES`` (dense), ``HYBRIDS`` and ``SPARSE`` will do. For a hybrid model with one expert-free delta
    layer of other sizes: ``raw_config("qwen3_5", linear_num_value_heads=2, linear_value_head_dim=16)``;
    ``layer_types`` says which layers have a Gated DeltaNet and must fit ``num_hidden_layers``.
    """
    raw: RawConfig = {
        "architectures": [(ARCHITECTURES | HYBRIDS | SPARSE)[family]],
        "model_type": family,
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    if family == "mistral":
        raw["sliding_window"] = None
    if family == "phi3":
        raw["pad_token_id"] = 0  # transformers takes 32000 where the config does not say, past this vocabulary
    if family in ("qwen3", *HYBRIDS, *SPARSE):
        raw["head_dim"] = 16
    if family in HYBRIDS:
        del raw["rope_theta"]
        raw |= DELTA_FIELDS
    if family in ("qwen3_next", "qwen3_5_moe", *SPARSE):
        raw |= EXPERT_FIELDS
    if family in ("qwen3_next", "qwen3_5_moe"):
        raw["shared_expert_intermediate_size"] = 56
    if family == "qwen3_next":
        raw["mlp_only_layers"] = [2]
    if family == "qwen3_5_moe":
        del raw["intermediate_size"]
    return raw | overrides


def random_tensors(config: DecoderConfig, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a checkpoint, fp32, drawn so that activations keep their size and logits have a spread of
    about 1."""
    generator = torch.Generator().manual_seed(seed)
    for spec in FAMILIES[config.model_type].tensors(config):
        drawn = torch.randn(spec.shape, generator=generator)
        if spec.name.endswith("norm.weight"):
            is_centred = config.centred_norms and not spec.name.endswith("linear_attn.norm.weight")
            yield spec.name, (0.0 if is_centred else 1.0) + 0.2 * drawn
        elif spec.name.endswith("A_log"):
            yield spec.name, 0.5 * drawn - 1.0  # the state forgets about a quarter with each token
        elif len(spec.shape) == 1:
            yield spec.name, 0.2 * drawn
        else:
            # An embedding of spread 1 is one token's whole input; a linear keeps the spread of its input.
            is_embedding = spec.name == "model.embed_tokens.weight" and not config.tied_head
            yield spec.name, drawn if is_embedding else drawn * spec.shape[-1] ** -0.5


def make_checkpoint(
    path: Path,
    family: str = "qwen3",
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float32,
    num_shards: int = 1,
    **overrides: object,
) -> Path:
    """Writes a random checkpoint of ``family`` into directory ``path``, made if need be, and returns it.

    ``overrides`` are fields of ``config.json``. With several shards there is an index, as exporters write it.
    """
    path.mkdir(parents=True, exist_ok=True)
    raw = raw_config(family, **{"torch_dtype": str(dtype).removeprefix("torch."), **overrides})
    (path / "config.json").write_text(json.dumps(raw, indent=2))
    tensors = {
        name: tensor.to(dtype).contiguous() for name, tensor in random_tensors(FAMILIES[family].parse(raw), seed)
    }
    metadata = {"format": "pt"}
    if num_shards == 1:
        save_file(tensors, path / "model.safetensors", metadata=metadata)
        return path
    weight_map = {}
    for shard in range(num_shards):
        names = list(tensors)[shard::num_shards]
        filename = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        save_file({name: tensors[name] for name in names}, path / filename, metadata=metadata)
        weight_map |= dict.fromkeys(names, filename)
    size = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return path


def make_model(
    family: str = "qwen3",
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    *,
    exact: Exactness = "auto",
    prefill_chunk: int = 512,
    trainable: bool = False,
    **overrides: object,
) -> DecoderModel:
    """The model of :func:`make_checkpoint` with the same seed and overrides, built in memory and prepared.

    ``trainable`` has torch compute what the native kernels would.
    """
    config = FAMILIES[family].parse(raw_config(family, **overrides))
    model = DecoderModel(config)
    model.cast(dtype)
    tensors = dict(random_tensors(config, seed))
    with torch.no_grad():
        for spec in FAMILIES[family].tensors(config):
            spec.fill(model.get_parameter(spec.parameter), tensors[spec.name])
    model.prepare(exact=exact, prefill_chunk=prefill_chunk, trainable=trainable)
    return model


TRAINING_LINES = (
    "def greet(name):\n    return f'hello, {name}!'\n",
    "for index, value in enumerate(values):\n    print(index, value)\n",
    "class Point:\n    def __init__(self, x, y):\n        self.x, self.y = x, y\n",
    "The quick brown fox jumps over the lazy dog, 1234567890 times.\n",
)


def make_tokenizer(path: Path, vocab_size: int = 300) -> Path:
    """Writes a real byte-level BPE ``tokenizer.json`` into directory ``path`` and returns the file.

    Ids 0 to 2 are ``<pad>``, ``<bos>`` and ``<eos>``; all 256 bytes follow, so ``vocab_size`` is at least 259, and any
    text can be encoded.
    """
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<pad>", "<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_LINES, trainer)
    tokenizer.save(str(path / "tokenizer.json"))
    return path / "tokenizer.json"
