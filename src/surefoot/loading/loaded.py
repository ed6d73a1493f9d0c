"""A model as it was loaded, with what its files say around the weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from surefoot.models.config import DecoderConfig
from surefoot.models.decoder import DecoderModel
from surefoot.options import SamplingParams
from surefoot.text import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTarget:
    """A model ready to run.

    Attributes:
        name: what the caller called it.
        path: the directory it was read from.
        config: its shape.
        model: the weights, on their device.
        tokenizer: its tokenizer with its chat template; None where there is no ``tokenizer.json``.
        eos_token_ids: ids that end an answer.
        sampling_defaults: its own sampling parameters, for whoever asks for them.
        notes: what a user should know: files not read, defaults that cannot be said.
    """

    name: str
    path: Path
    config: DecoderConfig
    model: DecoderModel
    tokenizer: Tokenizer | None
    eos_token_ids: tuple[int, ...]
    sampling_defaults: SamplingParams
    notes: tuple[str, ...]
