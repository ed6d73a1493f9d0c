"""Qwen 2 and 2.5: the Llama layout with biases on query, key and value, and on some layers a sliding window."""

from __future__ import annotations

from collections.abc import Mapping

from surefoot.models.config import DecoderConfig
from surefoot.models.family import Family
from surefoot.models.fields import FieldReader
from surefoot.models.reading import Traits, read_decoder, some_sliding
from surefoot.models.tensors import UNINFORMATIVE, decoder_tensors


def parse(raw: Mapping[str, object]) -> DecoderConfig:
    """Reads a ``config.json``; the biases are part of the family and have no field."""
    traits = Traits(architectures=("Qwen2ForCausalLM",), windows=some_sliding, qkv_bias=True)
    return read_decoder(FieldReader(raw), traits)


QWEN2 = Family(model_type="qwen2", parse=parse, tensors=decoder_tensors, ignored=UNINFORMATIVE)
