"""Reads ``--speculative-config``: vLLM's keys, each of them acted upon or refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Mapping

from surefoot.errors import OptionError
from surefoot.settings import Value

FLAG = "--speculative-config"

METHODS: Mapping[str, str] = {
    **dict.fromkeys(("ngram", "ngram_gpu", "suffix"), "lookup"),
    "draft_model": "draft",
    "dflash": "dflash",
}
"""Methods we have, under vLLM's names."""

TRAINED_METHODS = ("eagle", "eagle3", "medusa", "mtp", "mlp_speculator", "dspark", "custom_class")
"""Methods of vLLM whose heads are not served here."""

_CHOICES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "method": ("method", METHODS),
    "draft_sample_method": ("draft_sampling", {"greedy": "argmax", "probabilistic": "shared"}),
    "rejection_sample_method": ("acceptance", {"standard": "reject"}),
}
_NUMBERS: Mapping[str, str] = {"num_speculative_tokens": "num_draft", "prompt_lookup_min": "lookup_min"}

_ONE_PROCESS = "a draft model runs in this process, as it lies in its checkpoint"
_ALL_MATCHES = "lookup always copies after the longest match there is"
_NOT_MEASURED = "the acceptance here is the real one"
_ONE_SEQUENCE = "the draft length is one number here"
_SAME_TOKENIZER = "a draft model must have the target's tokenizer"
_HEADS = "it belongs to trained heads, which are not served here"

UNHONOURED: Mapping[str, str] = {
    "prompt_lookup_max": _ALL_MATCHES,
    "suffix_decoding_max_tree_depth": _ALL_MATCHES,
    "suffix_decoding_max_spec_factor": _ALL_MATCHES,
    "suffix_decoding_min_token_prob": _ALL_MATCHES,
    "suffix_decoding_max_cached_requests": "the store of past answers is bounded in bytes and is off by default",
    "draft_tensor_parallel_size": _ONE_PROCESS,
    "tensor_parallel_size": _ONE_PROCESS,
    "quantization": _ONE_PROCESS,
    "kv_cache_dtype": _ONE_PROCESS,
    "draft_load_config": _ONE_PROCESS,
    "moe_backend": _ONE_PROCESS,
    "attention_backend": _ONE_PROCESS,
    "enforce_eager": _ONE_PROCESS,
    "use_local_argmax_reduction": _ONE_PROCESS,
    "disable_padded_drafter_batch": _ONE_PROCESS,
    "max_model_len": "a draft model's own context is kept, and drafting pauses beyond it",
    "revision": "name the snapshot's directory instead",
    "code_revision": "code of a checkpoint is never run",
    "num_speculative_tokens_per_batch_size": _ONE_SEQUENCE,
    "enable_adaptive_verification": _ONE_SEQUENCE,
    "use_heterogeneous_vocab": _SAME_TOKENIZER,
    "parallel_drafting": _HEADS,
    "index_share_for_mtp_iteration": _HEADS,
    "disable_eagle_block_drop": _HEADS,
    "dspark_draft_topk": _HEADS,
    "synthetic_acceptance_rates": _NOT_MEASURED,
    "synthetic_acceptance_length": _NOT_MEASURED,
}
"""Keys vLLM knows and we cannot honour, and why."""

KNOWN = ("model", *_CHOICES, *_NUMBERS)
"""Keys that act."""


def expand(text: str) -> dict[str, Value]:
    """What a configuration says, by the names of our settings.

    Raises:
        OptionError: no JSON object, a key or value nobody knows, or one we cannot honour, with the reason.
    """
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise OptionError(f"{FLAG} is not JSON ({error}); expected an object in single quotes, {_EXAMPLE}") from error
    if not isinstance(given, dict):
        raise OptionError(f"{FLAG} holds {given!r}; expected an object, {_EXAMPLE}")
    settings = dict(_setting(key, value) for key, value in given.items())
    if "lookup_min" in settings and given.get("method") not in ("ngram", "ngram_gpu"):
        raise OptionError(f'{FLAG} has prompt_lookup_min; expected it with "method": "ngram"')
    if "method" not in settings and "draft_model" not in settings:
        raise OptionError(f'{FLAG} names no way to draft; expected "method" or "model", {_EXAMPLE}')
    return settings


_EXAMPLE = 'such as {"method": "draft_model", "model": "pebble-draft", "num_speculative_tokens": 4}'


def _setting(key: str, value: object) -> tuple[str, Value]:
    """One key as ours."""
    if key in UNHONOURED:
        raise OptionError(f"{FLAG} has {key}, which cannot be honoured: {UNHONOURED[key]}; leave it out")
    if key == "model" and isinstance(value, str) and value:
        return "draft_model", value
    if key in _NUMBERS and isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return _NUMBERS[key], value
    if key in _CHOICES:
        name, choices = _CHOICES[key]
        if isinstance(value, str) and value in choices:
            return name, choices[value]
        if value in TRAINED_METHODS or str(value).endswith("_mtp"):
            raise OptionError(f"{FLAG} has {key} {value!r}, which is not served here; expected {_names(choices)}")
        raise OptionError(f"{FLAG} has {key} {value!r}; expected {_names(choices)}")
    if key in KNOWN:
        expected = "a name" if key == "model" else "an integer of at least 1"
        raise OptionError(f"{FLAG} has {key} {value!r}; expected {expected}")
    raise OptionError(f"{FLAG} has the unknown key {key!r}; expected {', '.join(KNOWN)}")


def _names(choices: Mapping[str, str]) -> str:
    return f"one of {', '.join(choices)}" if len(choices) > 1 else ", ".join(choices)
