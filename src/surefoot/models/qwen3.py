"""Qwen 3, dense: each head's query and key normalised before rotation, heads of a size of their own."""

from __future__ import annotations

from collections.abc import Mapping

from surefoot.models.config import DecoderConfig
from surefoot.models.family import Family
from surefoot.models.fields import FieldReader
from surefoot.models.reading import Traits, read_decoder, some_sliding
from surefoot.models.tensors import UNINFORMATIVE, decoder_tensors


def parse(raw: Mapping[str, object]) -> DecoderConfig:
    """Reads a ``config.json``; heads have 128 dimensions where it does not say."""
    fields = FieldReader(raw)
    bias = fields.flag("attention_bias", False)
    traits = Traits(
        architectures=("Qwen3ForCausalLM",),
        windows=some_sliding,
        head_dim=128,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=True,
    )
    return read_decoder(fields, traits)


QWEN3 = Family(model_type="qwen3", parse=parse, tensors=decoder_tensors, ignored=UNINFORMATIVE)
