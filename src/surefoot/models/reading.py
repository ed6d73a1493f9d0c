"""From the fields the families share to a ``DecoderConfig``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from surefoot.models.config import MAX_LAYERS, DecoderConfig
from surefoot.models.fields import FieldReader
from surefoot.models.positions import ALL_TYPES, RopeTraits, read_positions
from surefoot.ops.delta_rule import DeltaShape
from surefoot.ops.moe import ExpertShape

FULL, SLIDING = "full_attention", "sliding_attention"

Windows = tuple[int | None, ...]
Layers = frozenset[int]


def no_delta(fields: FieldReader, num_layers: int) -> tuple[None, Layers]:
    """Every layer has attention."""
    return None, frozenset()


def no_experts(fields: FieldReader, num_layers: int) -> tuple[None, Layers]:
    """Every feed-forward is dense."""
    return None, frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What distinguishes one family from another.

    Attributes:
        architectures: the class names a model of the family may have in ``architectures``, the causal one first.
        windows: reads the attention windows of ``num_layers`` layers.
        head_dim: size of a head where the config does not say; None: the hidden size divided among the heads.
        kv_heads_required: whether the config must give the number of key-value heads (null: as many as query heads).
        rms_norm_eps: the norms' epsilon where the config does not say.
        rope: what it may say of positions.
        delta, experts: read which of ``num_layers`` layers are of these kinds, and their sizes.
    """

    architectures: tuple[str, ...]
    windows: Callable[[FieldReader, int], Windows]
    head_dim: int | None = None
    kv_heads_required: bool = True
    rms_norm_eps: float = 1e-6
    rope: RopeTraits = ALL_TYPES
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    gated_attention: bool = False
    centred_norms: bool = False
    delta: Callable[[FieldReader, int], tuple[DeltaShape | None, Layers]] = no_delta
    experts: Callable[[FieldReader, int], tuple[ExpertShape | None, Layers]] = no_experts


def read_decoder(fields: FieldReader, traits: Traits) -> DecoderConfig:
    """The config of a decoder, every field of the file accounted for."""
    model_type = fields.text("model_type", "")
    architectures = fields.strings("architectures")
    if architectures is not None and (len(architectures) != 1 or architectures[0] not in traits.architectures):
        raise fields.unsupported("architectures", list(architectures), " or ".join(traits.architectures))
    num_layers, num_heads = fields.count("num_hidden_layers", most=MAX_LAYERS), fields.count("num_attention_heads")
    hidden_size = fields.count("hidden_size")
    head_dim = _read_head_dim(fields, hidden_size, num_heads, traits)
    rope, context_length = read_positions(fields, traits.rope, head_dim)
    delta, delta_layers = traits.delta(fields, num_layers)
    experts, sparse_layers = traits.experts(fields, num_layers)
    config = DecoderConfig(
        model_type=model_type,
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_read_inner(fields, len(sparse_layers) == num_layers),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_read_kv_heads(fields, num_heads, traits),
        head_dim=head_dim,
        context_length=context_length,
        rms_norm_eps=fields.number("rms_norm_eps", traits.rms_norm_eps),
        rope=rope,
        tied_head=fields.flag("tie_word_embeddings", False),
        windows=traits.windows(fields, num_layers),
        qkv_bias=traits.qkv_bias,
        out_bias=traits.out_bias,
        mlp_bias=traits.mlp_bias,
        qk_norm=traits.qk_norm,
        gated_attention=traits.gated_attention,
        centred_norms=traits.centred_norms,
        delta=delta,
        delta_layers=delta_layers,
        experts=experts,
        sparse_layers=sparse_layers,
    )
    fields.finish()
    return config


def _read_inner(fields: FieldReader, all_sparse: bool) -> int:
    if all_sparse:
        fields.get("intermediate_size")  # without a dense layer it says nothing
        return 0
    return fields.count("intermediate_size")


def _read_kv_heads(fields: FieldReader, num_heads: int, traits: Traits) -> int:
    required = traits.kv_heads_required and not fields.is_null("num_key_value_heads")
    return fields.count("num_key_value_heads", None if required else num_heads)


def _read_head_dim(fields: FieldReader, hidden_size: int, num_heads: int, traits: Traits) -> int:
    if "head_dim" in fields or traits.head_dim is not None:
        return fields.count("head_dim", traits.head_dim)
    if hidden_size % num_heads:
        raise fields.damaged("hidden_size", hidden_size, f"a multiple of the {num_heads} heads, or a head_dim")
    return hidden_size // num_heads


def all_full(fields: FieldReader, num_layers: int) -> Windows:
    """Every layer sees all positions before it."""
    return (None,) * num_layers


def all_alike(fields: FieldReader, num_layers: int) -> Windows:
    """Every layer has the window ``sliding_window``, or none where that is null; the file must say which."""
    if fields.is_null("sliding_window"):
        return all_full(fields, num_layers)
    return (fields.count("sliding_window"),) * num_layers


def perhaps_alike(fields: FieldReader, num_layers: int) -> Windows:
    """Every layer has the window ``sliding_window``, or none where it is null or not there."""
    if "sliding_window" not in fields:
        return all_full(fields, num_layers)
    return (fields.count("sliding_window"),) * num_layers


def all_alike_if_used(fields: FieldReader, num_layers: int) -> Windows:
    """Every layer has the window ``sliding_window`` if ``use_sliding_window``; ``max_window_layers`` is passed over."""
    fields.get("max_window_layers")
    if not fields.flag("use_sliding_window", False):
        fields.get("sliding_window")
        return all_full(fields, num_layers)
    return (fields.count("sliding_window"),) * num_layers


def some_sliding(fields: FieldReader, num_layers: int) -> Windows:
    """``layer_types`` says which layers slide; else those from ``max_window_layers`` on, if ``use_sliding_window``."""
    sliding = fields.flag("use_sliding_window", False)
    first_sliding = read_natural(fields, "max_window_layers", 28)
    default = tuple(SLIDING if sliding and layer >= first_sliding else FULL for layer in range(num_layers))
    kinds = fields.strings("layer_types")
    kinds = default if kinds is None else kinds
    for kind in kinds:
        if kind not in (FULL, SLIDING):
            raise fields.unsupported("layer_types", kind, f"{FULL}, {SLIDING}")
        if kind == SLIDING and not sliding:
            raise fields.damaged("layer_types", kind, f"only {FULL}, as use_sliding_window is not true")
    if SLIDING not in kinds:
        fields.get("sliding_window")  # without a layer that slides it says nothing
        return (None,) * len(kinds)
    window = fields.count("sliding_window")
    return tuple(window if kind == SLIDING else None for kind in kinds)


def read_natural(fields: FieldReader, name: str, default: int) -> int:
    """An integer of at least 0."""
    return 0 if fields.get(name) == 0 else fields.count(name, default)
