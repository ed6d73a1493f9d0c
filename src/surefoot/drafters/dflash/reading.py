"""Reads a DFlash drafter's ``config.json``, in any of the released forms.

The files differ in where a field stands: at the top or in ``dflash_config``. Both are read, and must agree. A wrong
rotation or causality would only lower acceptance, so a field that is not understood is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from surefoot.drafters.dflash.config import ARCHITECTURE, FULL, SECTION, SLIDING, DFlashConfig, layers_by_rule
from surefoot.errors import CheckpointError
from surefoot.models.config import MAX_LAYERS
from surefoot.models.fields import FieldReader
from surefoot.models.positions import RopeTraits, read_default, read_linear, read_llama3, read_positions, read_yarn
from surefoot.models.reading import read_natural
from surefoot.ops.rope import Rope

ROPE = RopeTraits(types={"default": read_default, "linear": read_linear, "yarn": read_yarn, "llama3": read_llama3})
"""Types whose angles do not depend on how long a sequence becomes, which a drafter is not told."""

NOT_IMPLEMENTED: Mapping[str, tuple[str, tuple[object, ...]]] = {
    "projector_type": ("a Domino or DSpark head", ("dflash",)),
    "markov_rank": ("DSpark's Markov head", (0,)),
    "markov_head": ("DSpark's Markov head", (False,)),
    "confidence_head": ("DSpark's confidence head", (False,)),
    "sample_from_anchor": ("labels shifted by one slot, as DSpark has them", (False,)),
    "candidate_selector": ("DFlash2's path selector", (False,)),
    "selector_rank": ("DFlash2's path selector", (0,)),
    "conv_taps": ("DFlash2's dynamic convolutions", (0,)),
    "attention_bias": ("biases of the attention's linears", (False,)),
    "attention_sink_bias": ("attention sinks", (False,)),
    "attention_value_scale": ("scaled values", (1, 1.0)),
    "attn_output_gate": ("a gated attention output", (False,)),
    "is_neox_style": ("interleaved rotation", (True,)),
    "input_embedding_scale": ("scaled embeddings", (1, 1.0)),
    "output_multiplier": ("scaled outputs", (1, 1.0)),
    "final_logit_softcapping": ("capped logits", ()),
    "sliding_window_non_causal": ("windows counted from the anchor", ()),
    "speculators_config": ("the speculators layout", ()),
    "transformer_layer_config": ("the speculators layout", ()),
    "aux_hidden_state_layer_ids": ("the speculators layout", ()),
}
"""What other drafters of this kind have, with the values that mean its absence."""


def is_dflash(raw: Mapping[str, object]) -> bool:
    """Whether a raw ``config.json`` is a DFlash drafter's."""
    names = raw.get("architectures")
    return (isinstance(names, list) and ARCHITECTURE in names) or SECTION in raw


def parse(raw: Mapping[str, object], where: str = "config.json") -> DFlashConfig:
    """Reads a raw ``config.json`` of any of the released forms.

    Where they are absent, head size, epsilon and block size take the released checkpoints' values; the rotation's base
    and the mask's id must be there.

    Raises:
        UnsupportedModelError: a field asks for something not implemented, or is not known.
        CheckpointError: a field is missing, malformed or contradicts another.
    """
    fields = FieldReader(raw, where)
    section = fields.section(SECTION) or FieldReader({}, f"{where}, {SECTION}")
    _check_kind(fields)
    num_layers = fields.count("num_hidden_layers", most=MAX_LAYERS)
    head_dim, hidden_size = fields.count("head_dim", 128), fields.count("hidden_size")
    rope, context_length = _read_rope(fields, head_dim)
    windows, causal = _read_sight(fields, section, num_layers)
    num_target_layers = fields.count("num_target_layers", most=MAX_LAYERS) if "num_target_layers" in fields else None
    vocab_size = fields.count("vocab_size")
    make = partial(
        DFlashConfig,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=fields.count("num_attention_heads"),
        num_kv_heads=fields.count("num_key_value_heads"),
        head_dim=head_dim,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=rope,
        context_length=context_length,
        block_size=_natural(fields, section, "block_size", 16),
        target_layer_ids=_read_layer_ids(fields, section, num_layers, num_target_layers),
        mask_token_id=_natural(fields, section, "mask_token_id"),
        num_target_layers=num_target_layers,
        windows=windows,
        causal=causal,
    )
    try:
        config = make()
    except CheckpointError as fault:
        raise CheckpointError(f"{where}: {fault}. Repair the file or download it again") from fault
    for reader in (fields, section):
        reader.get("mask_token")  # its text; the id decides
        for name, size in (("target_hidden_size", hidden_size), ("draft_vocab_size", vocab_size)):
            if reader.get(name) not in (None, size):
                raise reader.unsupported(name, reader.get(name), f"{size}, as of the drafter's own")
    fields.flag("tie_word_embeddings", False)  # it has neither
    section.finish()
    fields.finish()
    return config


def _check_kind(fields: FieldReader) -> None:
    """Refuses what is another architecture, or announces a part that is not implemented."""
    architectures, model_type = fields.strings("architectures"), fields.text("model_type", "qwen3")
    if architectures not in (None, (ARCHITECTURE,)):
        raise fields.unsupported("architectures", list(architectures or ()), ARCHITECTURE)
    if model_type != "qwen3":
        raise fields.unsupported("model_type", model_type, "qwen3")
    code = fields.get("auto_map")
    if code is not None:
        names = list(code.values()) if isinstance(code, Mapping) else [code]
        if any(not isinstance(name, str) or name.rpartition(".")[2] != ARCHITECTURE for name in names):
            raise fields.unsupported("auto_map", code, f"{ARCHITECTURE} alone, which is never executed")
    for reader in (fields, fields.section(SECTION) or FieldReader({})):
        for name, (meaning, absent) in NOT_IMPLEMENTED.items():
            if reader.get(name) is not None and reader.get(name) not in absent:
                raise reader.unsupported(name, reader.get(name), f"a drafter without {meaning}")


def _read_rope(fields: FieldReader, head_dim: int) -> tuple[Rope, int]:
    """The rotation, over whole heads; its base has no default."""
    modern = fields.section("rope_parameters")
    if "rope_theta" not in fields and (modern is None or "rope_theta" not in modern):
        raise fields.damaged("rope_theta", None, "the base of the drafter's rotation")
    return read_positions(fields, ROPE, head_dim)


def _read_sight(
    fields: FieldReader, section: FieldReader, num_layers: int
) -> tuple[tuple[int | None, ...], tuple[bool, ...]]:
    """Each layer's window, and whether it is causal inside the block: as ``is_causal`` says, else as
    ``dflash_config.causal``, else where it slides. Where ``layer_types`` does not say which do, those from
    ``max_window_layers`` on, as the class these files are of (Qwen 3's) fills it in."""
    kinds = fields.strings("layer_types")
    sliding = fields.flag("use_sliding_window", kinds is not None and SLIDING in kinds)
    first_sliding = num_layers
    if kinds is None and sliding:
        if "max_window_layers" not in fields:
            raise fields.damaged("layer_types", None, "which layers slide, as use_sliding_window is true")
        first_sliding = read_natural(fields, "max_window_layers", 0)
    fields.get("max_window_layers")  # where layer_types is there, that says it
    if kinds is None:
        kinds = tuple(FULL if layer < first_sliding else SLIDING for layer in range(num_layers))
    if len(kinds) != num_layers:
        raise fields.damaged("layer_types", len(kinds), f"one for each of the {num_layers} layers")
    for kind in kinds:
        if kind not in (FULL, SLIDING):
            raise fields.unsupported("layer_types", kind, f"{FULL}, {SLIDING}")
        if kind == SLIDING and not sliding:
            raise fields.damaged("layer_types", kind, f"only {FULL}, as use_sliding_window is false")
    everywhere = section.flag("use_swa", False)
    slides = tuple(everywhere or kind == SLIDING for kind in kinds)
    window = None
    if any(slides):
        own = section.count("swa_window_size") if "swa_window_size" in section else None
        window = own if everywhere and own is not None else fields.count("sliding_window", own)
    for reader, name in ((fields, "sliding_window"), (section, "swa_window_size")):
        reader.get(name)  # without a layer that slides it says nothing
    causal = tuple(not everywhere and kind == SLIDING for kind in kinds)
    for reader, name in ((section, "causal"), (fields, "is_causal")):
        if name in reader:
            causal = (reader.flag(name, False),) * num_layers
        reader.get(name)
    return tuple(window if slide else None for slide in slides), causal


def _read_layer_ids(
    fields: FieldReader, section: FieldReader, num_layers: int, num_target_layers: int | None
) -> tuple[int, ...]:
    """The layers to read; by the rule as many as the drafter has layers, where they are not given."""
    reader, value = _either(fields, section, "target_layer_ids")
    if value is None:
        if num_target_layers is None:
            raise reader.damaged("target_layer_ids", None, "the target's layers to read, or num_target_layers")
        return layers_by_rule(num_target_layers, num_layers)
    if not isinstance(value, list) or not value or not all(_is_natural(layer) for layer in value):
        raise reader.damaged("target_layer_ids", value, "a list of layer numbers from 0 up")
    return tuple(value)


def _natural(fields: FieldReader, section: FieldReader, name: str, default: int | None = None) -> int:
    reader, value = _either(fields, section, name)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or not _is_natural(value):
        raise reader.damaged(name, value, "an integer from 0 up")
    return value


def _is_natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _either(fields: FieldReader, section: FieldReader, name: str) -> tuple[FieldReader, object]:
    """The value of a field that may stand at the top or in the section, and where it stands."""
    outer, inner = fields.get(name), section.get(name)
    if outer is not None and inner is not None and outer != inner:
        raise fields.damaged(name, outer, f"the {inner!r:.80} of {SECTION}")
    return (fields, outer) if inner is None else (section, inner)
