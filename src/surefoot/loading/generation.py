"""When a model's answers end and how it likes to be sampled: ``config.json`` and ``generation_config.json``."""

from __future__ import annotations

from collections.abc import Mapping

from surefoot.errors import CheckpointError, OptionError
from surefoot.options import SamplingParams

GENERATION = "generation_config.json"

NEUTRAL: Mapping[str, object] = {
    "num_beams": 1,
    "num_beam_groups": 1,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "top_h": None,
    "no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "diversity_penalty": 0.0,
    "penalty_alpha": None,
    "guidance_scale": None,
    "bad_words_ids": None,
    "force_words_ids": None,
    "constraints": None,
    "sequence_bias": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "watermarking_config": None,
}
"""Fields that change what is drawn and that ``SamplingParams`` cannot say, with the value that changes nothing."""


def eos_ids(config: Mapping[str, object], generation: Mapping[str, object], vocab_size: int) -> tuple[int, ...]:
    """The ids that end an answer: those of both files, each once."""
    found: dict[int, None] = {}
    for where, raw in (("config.json", config), (GENERATION, generation)):
        value = raw.get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        for token in ids:
            if type(token) is not int or not 0 <= token < vocab_size:
                raise CheckpointError(
                    f"{where}: eos_token_id is {value!r:.80}; expected ids from 0 to {vocab_size - 1}, as vocab_size "
                    f"is {vocab_size}. Repair the file or download it again"
                )
            found[token] = None
    return tuple(found)


def sampling_defaults(generation: Mapping[str, object]) -> SamplingParams:
    """The model's own sampling parameters; greedy unless ``do_sample`` is true. Lengths are the caller's business."""
    sampled = generation.get("do_sample") is True
    suppressed = generation.get("suppress_tokens")
    temperature = _number(generation, "temperature", 1.0)
    try:
        return SamplingParams(
            temperature=temperature if sampled else 0.0,
            top_k=_count(generation, "top_k"),
            top_p=_number(generation, "top_p", 1.0),
            min_p=_number(generation, "min_p", 0.0),
            repetition_penalty=_number(generation, "repetition_penalty", 1.0),
            forbidden_tokens=tuple(suppressed) if isinstance(suppressed, list) else (),
        )
    except OptionError as fault:
        raise CheckpointError(f"{GENERATION}: {fault}. Repair the file or download it again") from fault


def beyond_defaults(generation: Mapping[str, object]) -> tuple[str, ...]:
    """Notes on fields that ask for what :func:`sampling_defaults` cannot say."""
    asked = [
        f"{name}={generation[name]!r:.40}"
        for name, neutral in NEUTRAL.items()
        if generation.get(name) is not None and generation[name] != neutral
    ]
    if not asked:
        return ()
    return (f"{GENERATION} also asks for {', '.join(asked)}, which the model's sampling defaults here leave out",)


def _number(generation: Mapping[str, object], name: str, default: float) -> float:
    value = generation.get(name)
    if value is None:
        return default
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise CheckpointError(f"{GENERATION}: {name} is {value!r:.80}; expected a number. Repair the file")
    return value


def _count(generation: Mapping[str, object], name: str) -> int:
    value = generation.get(name)
    if value is None:
        return 0
    if type(value) is not int:
        raise CheckpointError(f"{GENERATION}: {name} is {value!r:.80}; expected an integer. Repair the file")
    return value
