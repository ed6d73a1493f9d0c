"""Phi 3, 3.5 and 4-mini: the Llama layout with fused linears, one window for all layers, partly rotated heads."""

from __future__ import annotations

from collections.abc import Mapping

from surefoot.models.config import DecoderConfig
from surefoot.models.family import Family
from surefoot.models.fields import FieldReader
from surefoot.models.positions import RopeTraits, read_default, read_longrope
from surefoot.models.reading import Traits, perhaps_alike, read_decoder
from surefoot.models.tensors import UNINFORMATIVE, fused_decoder_tensors

ROPE_TYPES = {"default": read_default, "longrope": read_longrope, "su": read_longrope, "yarn": read_longrope}
"""Phi called LongRoPE ``su`` and ``yarn`` before the type had its name; it never used YaRN."""

ABSENT_PARTS: Mapping[str, object] = {
    "attention_bias": False,
    "mlp_bias": False,
    "lm_head_bias": False,
    "full_attn_mod": 1,
    "interpolate_factor": 1,
}
"""Fields of Phi 4 that name parts no published model has, with the value that says so."""

OWN_CODE = frozenset(
    {
        ("AutoConfig", "configuration_phi3.Phi3Config"),
        ("AutoModelForCausalLM", "modeling_phi3.Phi3ForCausalLM"),
        ("AutoTokenizer", "Xenova/gpt-4o"),
    }
)
"""What the published checkpoints name. The tokenizer is no code, but where theirs came from; it lies beside them."""


def parse(raw: Mapping[str, object]) -> DecoderConfig:
    """Reads a ``config.json``; where it does not say, 4096 tokens were the context before an extension."""
    fields = FieldReader(raw)
    fields.expect(ABSENT_PARTS)
    if "auto_map" in fields and not PHI3.names_own_code(raw["auto_map"]):
        raise fields.unsupported("auto_map", raw["auto_map"], "the code this family was published with")
    fields.get("auto_map")
    original = fields.count("original_max_position_embeddings", 4096)
    traits = Traits(
        architectures=("Phi3ForCausalLM",),
        windows=perhaps_alike,
        kv_heads_required=False,
        rms_norm_eps=1e-5,
        rope=RopeTraits(types=ROPE_TYPES, partial=1.0, original=original),
    )
    return read_decoder(fields, traits)


PHI3 = Family(model_type="phi3", parse=parse, tensors=fused_decoder_tensors, ignored=UNINFORMATIVE, own_code=OWN_CODE)
