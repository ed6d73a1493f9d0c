"""The fields of models that mix Gated DeltaNets with attention, and of models whose feed-forwards have experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from surefoot.errors import CheckpointError
from surefoot.models.config import DecoderConfig
from surefoot.models.family import RawConfig
from surefoot.models.fields import HARMLESS, FieldReader
from surefoot.models.positions import ROPE_TYPES, RopeTraits
from surefoot.models.reading import FULL, Layers, Traits, all_full, read_decoder
from surefoot.ops.delta_rule import DeltaShape
from surefoot.ops.moe import ExpertShape

LINEAR = "linear_attention"
MOST_EXPERTS = 2**14

MODALITIES = frozenset(
    (
        *("vision_config", "vision_start_token_id", "vision_end_token_id"),
        *("image_token_id", "video_token_id", "language_model_only"),
    )
)
"""Fields around the text part of a model that also reads images: none changes what it computes of text."""

HYBRID_ROPE = RopeTraits(types=ROPE_TYPES, partial=0.25, silent=("mrope_section", "mrope_interleaved"))
"""A quarter of each head is rotated. The sections of multimodal RoPE part a head's frequencies among a token's time,
height and width; text has the same position in all three, and so ordinary RoPE."""

ONE_VALUE: Mapping[str, object] = {
    "attention_bias": False,
    "attn_output_gate": True,
    "mamba_ssm_dtype": "float32",
    "output_gate_type": "swish",
    "use_sliding_window": False,
}
"""Fields of hybrid models with the one value that is implemented, which is also what their absence means."""

SILENT = (
    *("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "num_nextn_predict_layers"),
    *("router_aux_loss_coef", "output_router_logits"),
)
"""What belongs to the weights that predict several tokens, which are not read, and to training."""

WINDOWLESS = ("sliding_window", "max_window_layers")
"""What would say which layers slide: they are there in hybrid models too, where none does."""

ReadExperts = Callable[[FieldReader, int], tuple[ExpertShape | None, Layers]]


def flatten(raw: RawConfig) -> dict[str, object]:
    """The text part of a model of several modalities with the fields around it; another config as it is.

    Fields around it win, though those that say what is computed may not contradict it: elsewhere only the tie of the
    embeddings is read there.
    """
    text = raw.get("text_config")
    if not isinstance(text, Mapping):
        return dict(raw)
    around = {
        name: value
        for name, value in raw.items()
        if value is not None and name not in MODALITIES and name not in ("text_config", "model_type")
    }
    for name in around.keys() & text.keys() - HARMLESS - {"tie_word_embeddings"}:
        if text[name] is not None and text[name] != around[name]:
            raise CheckpointError(
                f"config.json: {name} is {around[name]!r:.80}, and {text[name]!r:.80} in text_config; expected one "
                "value. Repair the file or download it again"
            )
    return {name: value for name, value in text.items() if name != "architectures"} | around


def read_hybrid(
    raw: RawConfig, model_type: str, classes: str, experts: ReadExperts, one_value: Mapping[str, object]
) -> DecoderConfig:
    """A config of the family ``model_type``, whose classes' names begin with ``classes``, or of a model's text part.

    ``one_value`` has the fields that are implemented with one value alone, beside those of every hybrid model.
    """
    fields = FieldReader(flatten(raw))
    if fields.text("model_type", "") not in (model_type, f"{model_type}_text"):
        raise fields.unsupported("model_type", fields.get("model_type"), f"{model_type}, or {model_type}_text")
    fields.expect({**ONE_VALUE, **one_value})
    for name in SILENT + WINDOWLESS:
        fields.get(name)
    traits = Traits(
        architectures=(f"{classes}ForCausalLM", f"{classes}ForConditionalGeneration"),
        windows=all_full,
        head_dim=256,
        rope=HYBRID_ROPE,
        qk_norm=True,
        gated_attention=True,
        centred_norms=True,
        delta=read_delta,
        experts=experts,
    )
    return replace(read_decoder(fields, traits), model_type=model_type)


def read_delta(fields: FieldReader, num_layers: int) -> tuple[DeltaShape | None, Layers]:
    """The Gated DeltaNets' sizes, and their layers: as ``layer_types`` says, else all but every fourth."""
    interval = fields.count("full_attention_interval", 4)
    kinds = fields.strings("layer_types")
    if kinds is None:
        kinds = tuple(LINEAR if (layer + 1) % interval else FULL for layer in range(num_layers))
    if len(kinds) != num_layers:
        raise fields.damaged("layer_types", kinds, f"one entry for each of the {num_layers} layers")
    for kind in kinds:
        if kind not in (FULL, LINEAR):
            raise fields.unsupported("layer_types", kind, f"{FULL}, {LINEAR}")
    if FULL not in kinds:
        raise fields.unsupported("layer_types", kinds, f"at least one layer of {FULL}")
    shape = DeltaShape(
        num_key_heads=fields.count("linear_num_key_heads"),
        num_value_heads=fields.count("linear_num_value_heads"),
        key_dim=fields.count("linear_key_head_dim"),
        value_dim=fields.count("linear_value_head_dim"),
        conv_size=fields.count("linear_conv_kernel_dim", 4),
    )
    if shape.num_value_heads % shape.num_key_heads:
        raise fields.damaged(
            "linear_num_value_heads", shape.num_value_heads, f"a multiple of the {shape.num_key_heads} key heads"
        )
    if shape.conv_size < 2:
        raise fields.unsupported("linear_conv_kernel_dim", shape.conv_size, "at least 2")
    layers = frozenset(layer for layer, kind in enumerate(kinds) if kind == LINEAR)
    return (shape if layers else None), layers


def experts_everywhere(fields: FieldReader, num_layers: int) -> tuple[ExpertShape | None, Layers]:
    """Experts and a shared expert in every layer, their weights always divided by their sum (Qwen 3.5)."""
    return _read_shape(fields, shared=True, renormalised=True), frozenset(range(num_layers))


def experts_somewhere(
    fields: FieldReader, num_layers: int, *, shared: bool, renormalised: bool
) -> tuple[ExpertShape | None, Layers]:
    """Experts in every ``decoder_sparse_step``-th layer that is not one of ``mlp_only_layers``.

    ``shared`` says whether there is a shared expert, ``renormalised`` what the absence of ``norm_topk_prob`` means.
    """
    step, dense = fields.count("decoder_sparse_step", 1), fields.get("mlp_only_layers")
    dense = [] if dense is None else dense
    if not isinstance(dense, list) or not all(type(layer) is int and 0 <= layer < num_layers for layer in dense):
        raise fields.damaged("mlp_only_layers", dense, f"a list of layers from 0 to {num_layers - 1}")
    layers = frozenset(layer for layer in range(num_layers) if (layer + 1) % step == 0 and layer not in dense)
    shape = _read_shape(fields, shared=shared, renormalised=fields.flag("norm_topk_prob", renormalised))
    return (None, frozenset()) if shape is None or not layers else (shape, layers)


def _read_shape(fields: FieldReader, *, shared: bool, renormalised: bool) -> ExpertShape | None:
    """The experts' sizes; None where the config says that there are no experts."""
    names = [name for name in ("num_experts", "num_local_experts") if name in fields] or ["num_experts"]
    found = [fields.get(name) for name in names]
    if found[0] != found[-1]:
        raise fields.damaged(names[-1], found[-1], f"the {found[0]!r} of {names[0]}")
    if found[0] == 0:
        for name in ("num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"):
            fields.get(name)  # without experts they say nothing
        return None
    shape = ExpertShape(
        num_experts=fields.count(names[0], most=MOST_EXPERTS),
        num_active=fields.count("num_experts_per_tok"),
        inner_size=fields.count("moe_intermediate_size"),
        shared_size=fields.count("shared_expert_intermediate_size") if shared else 0,
        renormalised=renormalised,
    )
    if shape.num_active > shape.num_experts:
        raise fields.damaged("num_experts_per_tok", shape.num_active, f"at most the {shape.num_experts} experts")
    return shape
