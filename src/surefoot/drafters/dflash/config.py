"""The shape of a DFlash drafter, and how the released checkpoints' ``config.json`` says it."""

from __future__ import annotations

from dataclasses import dataclass

from surefoot.errors import CheckpointError, OptionError
from surefoot.models.config import MAX_CONTEXT, MAX_LAYERS
from surefoot.ops.rope import Rope

ARCHITECTURE = "DFlashDraftModel"
SECTION = "dflash_config"
FULL, SLIDING = "full_attention", "sliding_attention"
MOST_SLOTS = 1024
"""A larger block is taken for a damaged config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashConfig:
    """A stack of Qwen 3 layers that reads ``len(target_layer_ids)`` layers of its target and fills in a block.

    Attributes:
        vocab_size: rows of the target's embedding and width of its logits; the drafter has neither of its own.
        hidden_size: width of its stream, which is the target's.
        context_length: positions its rotation is meant for.
        block_size: rows of a trained block: the anchor, and a slot for each token drafted.
        target_layer_ids: the target's layers whose outputs it reads, in this order.
        mask_token_id: the id whose embedding stands in every slot.
        num_target_layers: layers of the target it was made for; None where the file does not say.
        windows: for each layer, how many positions a row sees, its own included; None sees all.
        causal: for each layer, whether a row of the block sees only rows of the block before it.

    Raises:
        CheckpointError: sizes that no drafter has.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: Rope
    context_length: int
    block_size: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    num_target_layers: int | None
    windows: tuple[int | None, ...]
    causal: tuple[bool, ...]

    def __post_init__(self) -> None:
        _require(self.num_layers <= MAX_LAYERS, f"num_hidden_layers is {self.num_layers}", f"at most {MAX_LAYERS}")
        _require(self.context_length <= MAX_CONTEXT, f"the context is {self.context_length}", f"at most {MAX_CONTEXT}")
        _require(2 <= self.block_size <= MOST_SLOTS, f"block_size is {self.block_size}", f"from 2 to {MOST_SLOTS}")
        _require(
            self.num_heads % self.num_kv_heads == 0,
            f"num_attention_heads is {self.num_heads} and num_key_value_heads {self.num_kv_heads}",
            "query heads in equal groups, one per key-value head",
        )
        _require(self.head_dim % 2 == 0, f"head_dim is {self.head_dim}", "an even number, for rotary positions")
        _require(self.rope.dim == self.head_dim, f"{self.rope.dim} dimensions are rotated", f"all {self.head_dim}")
        _require(
            0 <= self.mask_token_id < self.vocab_size,
            f"mask_token_id is {self.mask_token_id}",
            f"a row of the embedding, 0 to {self.vocab_size - 1}",
        )
        _require(len(self.target_layer_ids) > 0, "target_layer_ids is empty", "at least one layer")
        for name, values in (("windows", self.windows), ("causal", self.causal)):
            _require(len(values) == self.num_layers, f"{name} has {len(values)} entries", f"{self.num_layers}, a layer")
        _require(len(set(self.windows) - {None}) <= 1, f"windows are {self.windows}", "one size")
        last = max(self.target_layer_ids) if self.num_target_layers is None else self.num_target_layers - 1
        for layer in self.target_layer_ids:
            _require(0 <= layer <= last, f"target_layer_ids holds {layer}", f"layers of the target, 0 to {last}")

    @property
    def num_taps(self) -> int:
        """Layers of the target it reads."""
        return len(self.target_layer_ids)

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together; the value heads are as wide."""
        return self.num_kv_heads * self.head_dim


def layers_by_rule(num_target_layers: int, count: int) -> tuple[int, ...]:
    """The ``count`` layers of a target that are read where nothing else is said: evenly spaced, from 1 to three before
    the end, halves rounded to even; the middle one where it is only one."""
    if count == 1:
        return (num_target_layers // 2,)
    return tuple(round(1 + i * (num_target_layers - 4) / (count - 1)) for i in range(count))


def to_json(config: DFlashConfig, dtype: str = "float32") -> dict[str, object]:
    """The public layout of ``config.json``, which ``reading.parse`` reads back.

    Raises:
        OptionError: the config cannot be said there.
    """
    if config.rope.kind != "default":
        raise OptionError(f"the rotation is of type {config.rope.kind!r}; expected 'default' to write a config of it")
    kinds = [FULL if window is None else SLIDING for window in config.windows]
    found: dict[str, object] = {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "dtype": dtype,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope.theta,
        "max_position_embeddings": config.context_length,
        "tie_word_embeddings": False,
        "layer_types": kinds,
        "block_size": config.block_size,
        SECTION: {"mask_token_id": config.mask_token_id, "target_layer_ids": list(config.target_layer_ids)},
    }
    if config.num_target_layers is not None:
        found["num_target_layers"] = config.num_target_layers
    if SLIDING in kinds:
        found |= {"sliding_window": next(window for window in config.windows if window), "use_sliding_window": True}
    if config.causal != tuple(kind == SLIDING for kind in kinds):
        if len(set(config.causal)) > 1:
            raise OptionError(f"causal is {config.causal}; expected it alike in all layers, or with the windows")
        found["is_causal"] = config.causal[0]
    return found


def _require(condition: bool, found: str, expected: str) -> None:
    if not condition:
        raise CheckpointError(f"{found}; expected {expected}")  # whoever makes one says where it comes from
