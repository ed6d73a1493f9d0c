"""From the fields the families share to a ``DecoderConfig``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from surefoot.models.config import MAX_CONTEXT, MAX_LAYERS, DecoderConfig
from surefoot.models.fields import FieldReader
from surefoot.ops.rope import Rope

DEFAULT_THETA = 10000.0
FULL, SLIDING = "full_attention", "sliding_attention"

Windows = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What distinguishes one family from another.

    Attributes:
        architecture: the class name a causal model of the family has in ``architectures``.
        windows: reads the attention windows of ``num_layers`` layers.
        head_dim: size of a head where the config does not say; None: the hidden size divided among the heads.
        kv_heads_required: whether the config must give the number of key-value heads (null: as many as query heads).
    """

    architecture: str
    windows: Callable[[FieldReader, int], Windows]
    head_dim: int | None = None
    kv_heads_required: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False


def read_decoder(fields: FieldReader, traits: Traits) -> DecoderConfig:
    """The config of a decoder, every field of the file accounted for."""
    model_type = fields.text("model_type", "")
    architectures = fields.strings("architectures")
    if architectures is not None and architectures != (traits.architecture,):
        raise fields.unsupported("architectures", list(architectures), traits.architecture)
    num_layers, num_heads = fields.count("num_hidden_layers", most=MAX_LAYERS), fields.count("num_attention_heads")
    hidden_size = fields.count("hidden_size")
    config = DecoderConfig(
        model_type=model_type,
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_read_kv_heads(fields, num_heads, traits),
        head_dim=_read_head_dim(fields, hidden_size, num_heads, traits),
        context_length=fields.count("max_position_embeddings", most=MAX_CONTEXT),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=read_rope(fields),
        tied_head=fields.flag("tie_word_embeddings", False),
        windows=traits.windows(fields, num_layers),
        qkv_bias=traits.qkv_bias,
        out_bias=traits.out_bias,
        mlp_bias=traits.mlp_bias,
        qk_norm=traits.qk_norm,
    )
    fields.finish()
    return config


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


def some_sliding(fields: FieldReader, num_layers: int) -> Windows:
    """``layer_types`` says which layers slide; else those from ``max_window_layers`` on, if ``use_sliding_window``."""
    sliding = fields.flag("use_sliding_window", False)
    first_sliding = _read_natural(fields, "max_window_layers", 28)
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


def _read_natural(fields: FieldReader, name: str, default: int) -> int:
    return 0 if fields.get(name) == 0 else fields.count(name, default)


def read_rope(fields: FieldReader) -> Rope:
    """RoPE from ``rope_theta`` and ``rope_scaling``, or from ``rope_parameters`` as transformers 5 writes it."""
    top_theta = fields.number("rope_theta", DEFAULT_THETA)
    legacy, modern = fields.section("rope_scaling"), fields.section("rope_parameters")
    if legacy is not None and modern is not None:
        raise fields.damaged("rope_scaling", fields.get("rope_scaling"), "nothing beside rope_parameters")
    section = modern if modern is not None else legacy
    if section is None:
        return Rope(theta=top_theta)
    theta = section.number("rope_theta", top_theta)
    if "rope_theta" in fields and theta != top_theta:
        raise fields.damaged("rope_theta", top_theta, f"the {theta} of rope_parameters")
    kind = section.text("rope_type", section.text("type", "default"))
    if "type" in section and section.get("type") != kind:
        raise section.damaged("type", section.get("type"), f"the {kind!r} of rope_type")
    rope = _read_rope_kind(section, kind, theta)
    section.finish()
    return rope


def _read_rope_kind(section: FieldReader, kind: str, theta: float) -> Rope:
    if kind == "default":
        return Rope(theta=theta)
    if kind == "linear":
        return Rope(theta=theta, kind="linear", factor=section.number("factor"))
    if kind != "llama3":
        raise section.unsupported("rope_type", kind, "default, linear, llama3")
    low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
    if low >= high:
        raise section.damaged("low_freq_factor", low, f"less than high_freq_factor ({high})")
    return Rope(
        theta=theta,
        kind="llama3",
        factor=section.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_context=section.count("original_max_position_embeddings"),
    )
