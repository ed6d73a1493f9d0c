"""Mistral: the Llama layout without biases, all layers with one sliding window or none."""

from __future__ import annotations

from collections.abc import Mapping

from surefoot.models.config import DecoderConfig
from surefoot.models.family import Family
from surefoot.models.fields import FieldReader
from surefoot.models.reading import Traits, all_alike, read_decoder
from surefoot.models.tensors import UNINFORMATIVE, decoder_tensors


def parse(raw: Mapping[str, object]) -> DecoderConfig:
    """Reads a ``config.json``; ``sliding_window`` must be there: releases differ in what its absence means."""
    return read_decoder(FieldReader(raw), Traits(architectures=("MistralForCausalLM",), windows=all_alike))


MISTRAL = Family(model_type="mistral", parse=parse, tensors=decoder_tensors, ignored=UNINFORMATIVE)
