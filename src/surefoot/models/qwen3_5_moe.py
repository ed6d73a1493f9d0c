"""Qwen 3.5 and 3.6 with experts: the layers of the dense model, every feed-forward sparse with a shared expert."""

from __future__ import annotations

from collections.abc import Mapping

from surefoot.models.config import DecoderConfig
from surefoot.models.family import Family
from surefoot.models.hybrid import experts_everywhere, flatten, read_hybrid
from surefoot.models.hybrid_tensors import LATER_TOKENS, VISION, both_cuts, flat_delta, refuse_converted
from surefoot.models.tensors import UNINFORMATIVE

EVERYWHERE: Mapping[str, object] = {"mlp_only_layers": [], "decoder_sparse_step": 1, "norm_topk_prob": True}


def parse(raw: Mapping[str, object]) -> DecoderConfig:
    """Reads a ``config.json``; what it says of images is passed over."""
    return read_hybrid(raw, "qwen3_5_moe", "Qwen3_5Moe", experts_everywhere, EVERYWHERE)


LAYOUTS = both_cuts("model.", flat_delta) + both_cuts("model.language_model.", flat_delta)

QWEN3_5_MOE = Family(
    model_type="qwen3_5_moe",
    parse=parse,
    tensors=LAYOUTS[0],
    other_layouts=LAYOUTS[1:],
    ignored=UNINFORMATIVE,
    left_out=(LATER_TOKENS, VISION),
    whole_models=frozenset({"Qwen3_5MoeForConditionalGeneration"}),
    flatten=flatten,
    refuse=refuse_converted,
)
