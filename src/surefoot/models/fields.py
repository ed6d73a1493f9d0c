"""A careful reader of raw ``config.json`` files: a field that is not read must be known to be harmless."""

from __future__ import annotations

import math
from collections.abc import Mapping

from surefoot.errors import CheckpointError, UnsupportedModelError

_PROVENANCE = """
    model_type architectures transformers_version transformers.js_config _name_or_path name_or_path torch_dtype dtype
    tokenizer_class model_max_length bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id
    decoder_start_token_id unsloth_version unsloth_fixed is_llama_config _commit_hash
"""
_TRAINING = """
    initializer_range attention_dropout hidden_dropout embd_pdrop resid_pdrop attn_pdrop neftune_noise_alpha
    gradient_checkpointing tf_legacy_loss
"""
_EXECUTION = """
    use_cache pretraining_tp torchscript use_bfloat16 output_attentions output_hidden_states return_dict
    return_dict_in_generate output_scores chunk_size_feed_forward _attn_implementation _attn_implementation_autoset
    attn_implementation
"""
_CLASSIFICATION = "id2label label2id num_labels problem_type finetuning_task task_specific_params prefix"
_SAMPLING = """
    max_length min_length max_new_tokens do_sample early_stopping num_beams num_beam_groups diversity_penalty
    temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences forced_bos_token_id forced_eos_token_id
    remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
"""

MAX_COUNT = 2**31 - 1
"""No size in a config is larger; a lying one is refused before memory is spent on it."""

HARMLESS = frozenset(" ".join((_PROVENANCE, _TRAINING, _EXECUTION, _CLASSIFICATION, _SAMPLING)).split())
"""Fields that cannot change what a causal decoder computes."""

MUST_BE: Mapping[str, object] = {
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "tie_encoder_decoder": False,
    "use_mrope": False,
    "rope_interleaved": False,
    "is_causal": True,
    "partial_rotary_factor": 1.0,
    "pruned_heads": {},
    "hidden_act": "silu",
}
"""Fields that change the maths, with the one value that is implemented."""

REFUSED: Mapping[str, str] = {
    "quantization_config": "quantised weights",
    "compression_config": "compressed weights",
    "vision_config": "a model that also reads images",
    "audio_config": "a model that also reads sound",
    "text_config": "a model of several modalities",
    "auto_map": "code that comes with the checkpoint, which is never executed",
}
"""Fields whose presence alone decides, with what they announce."""


class FieldReader:
    """Reads fields of one config and remembers which; :meth:`finish` refuses the others by name.

    Whoever reads a field answers for its meaning, those of ``MUST_BE`` and ``REFUSED`` included.

    A field whose value is null counts as absent, as it does in the library that writes these files.
    """

    def __init__(self, raw: Mapping[str, object], where: str = "config.json") -> None:
        self._raw = {name: value for name, value in raw.items() if value is not None}
        self._null = raw.keys() - self._raw.keys()
        self._where = where
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._raw

    def is_null(self, name: str) -> bool:
        """Whether the field is there and null, where that means something else than its absence."""
        return name in self._null

    def get(self, name: str) -> object:
        """The raw value, or None where it is absent."""
        self._read.add(name)
        return self._raw.get(name)

    def count(self, name: str, default: int | None = None, most: int = MAX_COUNT) -> int:
        """An integer from 1 to ``most``; required where there is no default."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise self.damaged(name, value, f"an integer from 1 to {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number greater than 0; required where there is no default."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if not _is_positive(value):
            raise self.damaged(name, value, "a finite number greater than 0")
        return float(value)  # type: ignore[arg-type]  # checked just above

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.damaged(name, value, "true or false")
        return value

    def text(self, name: str, default: str) -> str:
        """A string."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.damaged(name, value, "a string")
        return value

    def section(self, name: str) -> FieldReader | None:
        """A nested object, or None where it is absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.damaged(name, value, "an object")
        return FieldReader(value, f"{self._where}, {name}")

    def strings(self, name: str) -> tuple[str, ...] | None:
        """A list of strings, or None where it is absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.damaged(name, value, "a list of strings")
        return tuple(value)

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        """A list of ``count`` finite numbers greater than 0; required."""
        value = self.get(name)
        if not isinstance(value, list) or len(value) != count or not all(_is_positive(item) for item in value):
            found = f"{len(value)} items" if isinstance(value, list) and len(value) != count else value
            raise self.damaged(name, found, f"a list of {count} finite numbers greater than 0")
        return tuple(float(item) for item in value)

    def expect(self, values: Mapping[str, object]) -> None:
        """Refuses fields that are there with another value than the one that is implemented."""
        for name, only in values.items():
            found = self.get(name)
            if found is not None and found != only:
                raise self.unsupported(name, found, f"{only!r}")

    def damaged(self, name: str, found: object, expected: str) -> CheckpointError:
        """The error of a field that is missing, malformed or contradicts another."""
        shown = "missing" if found is None else f"{found!r:.80}"
        return CheckpointError(
            f"{self._where}: {name} is {shown}; expected {expected}. Repair the file or download it again"
        )

    def unsupported(self, name: str, found: object, supported: str) -> UnsupportedModelError:
        """The error of a field that asks for something not implemented."""
        return UnsupportedModelError(
            f"{self._where}: {name} is {found!r:.80}, which is not implemented; expected {supported}. Use another model"
        )

    def finish(self) -> None:
        """Raises ``UnsupportedModelError`` naming every field that was not read and may change the maths."""
        for name, meaning in REFUSED.items():
            if name in self._raw and name not in self._read:
                raise UnsupportedModelError(f"{self._where}: {name} announces {meaning}; this is not implemented")
        self.expect({name: only for name, only in MUST_BE.items() if name not in self._read})
        unknown = sorted(self._raw.keys() - self._read - HARMLESS)
        if unknown:
            names = f"unknown field{'s' * (len(unknown) > 1)} {', '.join(unknown)}"
            raise UnsupportedModelError(
                f"{self._where}: {names}, which may change what the model computes; expected "
                f"only fields of its family. Remove them from the file if they are harmless"
            )


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0
