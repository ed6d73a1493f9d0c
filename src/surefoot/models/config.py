"""The shape of a decoder: everything the shared stack needs to know, whichever family it came from."""

from __future__ import annotations

from dataclasses import dataclass

from surefoot.errors import CheckpointError
from surefoot.ops.delta_rule import DeltaShape
from surefoot.ops.moe import ExpertShape
from surefoot.ops.rope import Rope

MAX_LAYERS = 1024
MAX_CONTEXT = 2**22
"""More layers or positions than these are taken for a damaged config, before memory is spent on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A decoder-only model with RMS norms: each layer a mixer (attention with rotary positions, or a Gated DeltaNet)
    and a SwiGLU feed-forward (dense, or a mixture of experts).

    Attributes:
        model_type: the family it was read by.
        vocab_size: rows of the embedding and width of the logits.
        intermediate_size: width of the gate of a dense feed-forward; 0 where every layer is sparse.
        num_heads, num_kv_heads, head_dim: query heads, key-value heads, and the size of each.
        context_length: most tokens a sequence may have, an extension of the trained context by RoPE included.
        rms_norm_eps: added to the mean square in every norm.
        rope: how positions become angles.
        tied_head: whether the output head is the embedding.
        qkv_bias, out_bias, mlp_bias: which linears have biases (query, key and value; attention output; feed-forward).
        qk_norm: whether each head's query and key are normalised before they are rotated.
        windows: for each layer, how many positions a token sees, its own included; None sees all before it.
        gated_attention: whether attention's output is multiplied by the sigmoid of a gate of the layer's input.
        centred_norms: whether the norms' weights act as ``1 + w``; that of a delta layer's output never does.
        delta, delta_layers: the Gated DeltaNet's sizes, and which layers have one in place of attention.
        experts, sparse_layers: the experts' sizes, and which layers' feed-forwards are sparse.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    rms_norm_eps: float
    rope: Rope
    tied_head: bool
    windows: tuple[int | None, ...]
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    gated_attention: bool = False
    centred_norms: bool = False
    delta: DeltaShape | None = None
    delta_layers: frozenset[int] = frozenset()
    experts: ExpertShape | None = None
    sparse_layers: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        _require(self.num_layers <= MAX_LAYERS, f"num_hidden_layers is {self.num_layers}", f"at most {MAX_LAYERS}")
        context = self.context_length
        _require(context <= MAX_CONTEXT, f"the context has {context} positions", f"at most {MAX_CONTEXT}")
        _require(
            self.num_heads % self.num_kv_heads == 0,
            f"num_attention_heads is {self.num_heads} and num_key_value_heads {self.num_kv_heads}",
            "query heads in equal groups, one per key-value head",
        )
        _require(self.head_dim % 2 == 0, f"head_dim is {self.head_dim}", "an even number, for rotary positions")
        rotated = self.rope.dim
        _require(rotated <= self.head_dim, f"{rotated} dimensions are rotated", f"at most head_dim, {self.head_dim}")
        _require(
            len(self.windows) == self.num_layers,
            f"layer_types has {len(self.windows)} entries",
            f"one for each of the {self.num_layers} layers",
        )
        assert self.delta is not None or not self.delta_layers, self.delta_layers
        assert self.experts is not None or not self.sparse_layers, self.sparse_layers

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """The layers with attention, in ascending order: the n-th of them has the n-th place in a cache of keys."""
        return tuple(layer for layer in range(self.num_layers) if layer not in self.delta_layers)

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together; the value heads are as wide."""
        return self.num_kv_heads * self.head_dim


def _require(condition: bool, found: str, expected: str) -> None:
    if not condition:
        raise CheckpointError(f"config.json: {found}; expected {expected}. The file is damaged or not of this family")
