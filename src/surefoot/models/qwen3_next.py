"""Qwen3-Next: three Gated DeltaNets to one gated attention, experts in most layers, projections grouped by head."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from surefoot.models.config import DecoderConfig
from surefoot.models.family import Family
from surefoot.models.hybrid import experts_somewhere, read_hybrid
from surefoot.models.hybrid_tensors import LATER_TOKENS, both_cuts, flat_delta, grouped_delta, refuse_converted
from surefoot.models.tensors import UNINFORMATIVE


def parse(raw: Mapping[str, object]) -> DecoderConfig:
    """Reads a ``config.json``; the weights of chosen experts are divided by their sum where it does not say."""
    experts = partial(experts_somewhere, shared=True, renormalised=True)
    return read_hybrid(raw, "qwen3_next", "Qwen3Next", experts, {})


LAYOUTS = both_cuts("model.", grouped_delta) + both_cuts("model.", flat_delta)

QWEN3_NEXT = Family(
    model_type="qwen3_next",
    parse=parse,
    tensors=LAYOUTS[0],
    other_layouts=LAYOUTS[1:],
    ignored=UNINFORMATIVE,
    left_out=(LATER_TOKENS,),
    refuse=refuse_converted,
)
