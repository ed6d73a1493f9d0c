"""Llama 1, 2, 3.x and the models of its layout (TinyLlama, SmolLM)."""

from __future__ import annotations

from collections.abc import Mapping

from surefoot.models.config import DecoderConfig
from surefoot.models.family import Family
from surefoot.models.fields import FieldReader
from surefoot.models.reading import Traits, all_full, read_decoder
from surefoot.models.tensors import UNINFORMATIVE, decoder_tensors


def parse(raw: Mapping[str, object]) -> DecoderConfig:
    """Reads a ``config.json``; one flag puts biases on all four attention linears, another on the feed-forward."""
    fields = FieldReader(raw)
    bias = fields.flag("attention_bias", False)
    traits = Traits(
        architectures=("LlamaForCausalLM",),
        windows=all_full,
        kv_heads_required=False,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=fields.flag("mlp_bias", False),
    )
    return read_decoder(fields, traits)


LLAMA = Family(model_type="llama", parse=parse, tensors=decoder_tensors, ignored=UNINFORMATIVE)
