"""Qwen 3 with experts: the dense model's attention, feed-forwards sparse without a shared expert."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from surefoot.models.config import DecoderConfig
from surefoot.models.family import Family
from surefoot.models.fields import FieldReader
from surefoot.models.hybrid import SILENT, experts_somewhere
from surefoot.models.hybrid_tensors import both_cuts
from surefoot.models.reading import Traits, all_alike_if_used, read_decoder
from surefoot.models.tensors import UNINFORMATIVE

ONE_VALUE: Mapping[str, object] = {"qkv_bias": False, "use_qk_norm": True, "shared_expert_intermediate_size": 0}
"""Fields that say what all models of the family do, and that some files of it have (Qwen3-Coder)."""


def parse(raw: Mapping[str, object]) -> DecoderConfig:
    """Reads a ``config.json``; the weights of chosen experts are as they are where it does not say."""
    fields = FieldReader(raw)
    fields.expect(ONE_VALUE)
    for name in SILENT:
        fields.get(name)
    bias = fields.flag("attention_bias", False)
    traits = Traits(
        architectures=("Qwen3MoeForCausalLM",),
        windows=all_alike_if_used,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=True,
        experts=partial(experts_somewhere, shared=False, renormalised=False),
    )
    return read_decoder(fields, traits)


LAYOUTS = both_cuts("model.")

QWEN3_MOE = Family(
    model_type="qwen3_moe", parse=parse, tensors=LAYOUTS[0], other_layouts=LAYOUTS[1:], ignored=UNINFORMATIVE
)
