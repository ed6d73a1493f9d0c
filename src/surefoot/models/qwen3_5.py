"""Qwen 3.5 and 3.6, dense: three Gated DeltaNets to one gated attention; alone, or as a larger model's text part."""

from __future__ import annotations

from collections.abc import Mapping

from surefoot.models.config import DecoderConfig
from surefoot.models.family import Family
from surefoot.models.hybrid import flatten, read_hybrid
from surefoot.models.hybrid_tensors import LATER_TOKENS, VISION, HybridLayout, refuse_converted
from surefoot.models.reading import no_experts
from surefoot.models.tensors import UNINFORMATIVE

WITHOUT_EXPERTS: Mapping[str, object] = {"mlp_only_layers": [], "num_experts": 0}


def parse(raw: Mapping[str, object]) -> DecoderConfig:
    """Reads a ``config.json``; what it says of images is passed over."""
    return read_hybrid(raw, "qwen3_5", "Qwen3_5", no_experts, WITHOUT_EXPERTS)


QWEN3_5 = Family(
    model_type="qwen3_5",
    parse=parse,
    tensors=HybridLayout("model."),
    other_layouts=(HybridLayout("model.language_model."),),
    ignored=UNINFORMATIVE,
    left_out=(LATER_TOKENS, VISION),
    whole_models=frozenset({"Qwen3_5ForConditionalGeneration"}),
    flatten=flatten,
    refuse=refuse_converted,
)
