"""Describes whole models: those this version computes, and those it does not."""

from __future__ import annotations

import math

import torch

from surefoot.describe.contents import Contents
from surefoot.describe.description import Description, Fact, count_in_words, facts_of
from surefoot.doctor.files import size_in_words
from surefoot.doctor.memory import cache_numbers, state_bytes
from surefoot.errors import CheckpointError, LoadError
from surefoot.loading.checkpoint import shapes_of, structural_problems
from surefoot.loading.files import read_optional_object
from surefoot.loading.formats import family_of, refuse_foreign
from surefoot.loading.generation import GENERATION, beyond_defaults, eos_ids, sampling_defaults
from surefoot.loading.load import checkpoint_dtype
from surefoot.loading.shards import stored_tensors
from surefoot.loading.tokenizer import load_tokenizer
from surefoot.models.config import DecoderConfig
from surefoot.models.decoder import CPU_CACHE_DTYPE
from surefoot.options import SamplingParams
from surefoot.text import Tokenizer

USABLE = "This version can use it as a target, and as a draft model for targets with the same tokenizer"
_NUM_PROBLEMS = 5


def describe_model(contents: Contents) -> Description:
    """A whole model: a known family in full, anything else as far as its config speaks a common language."""
    try:
        return _usable(contents)
    except LoadError as error:
        found, _, advice = str(error).partition("\n")[0].rpartition(". ")
        return Description(
            path=str(contents.path),
            kind=_foreign_kind(contents),
            facts=_common_facts(contents),
            usable=False,
            verdict=f"This version cannot use it: {found or advice}",
            needs=advice if found else "Use a model of a supported family",
        )


def _usable(contents: Contents) -> Description:
    """The description of a model that loads; its weights are not read, so they may still hold NaN."""
    refuse_foreign(contents.path)
    raw = contents.raw
    if not raw:
        raise CheckpointError(f"{contents.path}: found no config.json; expected one. Complete the download")
    family = family_of(raw, str(contents.path / "config.json"))
    raw = family.flatten(raw)
    config = family.parse(raw)
    stored = stored_tensors(contents.path)
    specs = family.layout(config, shapes_of(stored))
    problems = list(structural_problems(specs, family, stored))
    if problems:
        shown = "; ".join(problems[:_NUM_PROBLEMS]) + ("; ..." if len(problems) > _NUM_PROBLEMS else "")
        raise CheckpointError(f"its tensors do not fit its config ({shown}). Download the checkpoint again")
    generation = read_optional_object(contents.path, GENERATION)
    tokenizer, notes = load_tokenizer(contents.path)
    ends = eos_ids(raw, generation, config.vocab_size)
    dtype = checkpoint_dtype(raw, stored)
    parameters = sum(math.prod(spec.shape) for spec in specs)
    return Description(
        path=str(contents.path),
        kind=f"a {config.model_type} language model",
        facts=(
            *facts_of(parameters=count_in_words(parameters), weights=f"{contents.stored}, loads as {_name(dtype)}"),
            *_shape_facts(config),
            *facts_of(
                cache=_cache(config, dtype),
                tokenizer=_tokenizer(tokenizer),
                chat_template=_template(tokenizer),
                ends_at=", ".join(map(str, ends)) or "no id",
                sampling_defaults=_sampling(sampling_defaults(generation)),
            ),
        ),
        usable=True,
        verdict=USABLE,
        notes=notes + family.notes(shapes_of(stored)) + beyond_defaults(generation),
    )


def _shape_facts(config: DecoderConfig) -> tuple[Fact, ...]:
    windows = sorted({window for window in config.windows if window is not None})
    sliding = sum(window is not None for window in config.windows)
    return facts_of(
        family=config.model_type,
        layers=_layers(config),
        heads=f"{config.num_heads} query, {config.num_kv_heads} key-value, of {config.head_dim}",
        hidden_size=config.hidden_size,
        delta_heads=_delta_heads(config),
        feed_forward=config.intermediate_size or None,
        experts=_experts(config),
        vocabulary=f"{config.vocab_size} rows",
        context=f"{config.context_length} tokens",
        positions=f"rope {config.rope.kind}, theta {config.rope.theta:g}{_rotated(config)}",
        sliding_windows=f"{', '.join(map(str, windows))} tokens in {sliding} layers" if sliding else None,
        output_head="tied to the embedding" if config.tied_head else "its own",
    )


def _layers(config: DecoderConfig) -> str | int:
    if not config.delta_layers:
        return config.num_layers
    return (
        f"{config.num_layers}: {len(config.delta_layers)} with a Gated DeltaNet, "
        f"{len(config.attention_layers)} with {'gated ' * config.gated_attention}attention"
    )


def _delta_heads(config: DecoderConfig) -> str | None:
    if config.delta is None:
        return None
    shape = config.delta
    return f"{shape.num_key_heads} key of {shape.key_dim}, {shape.num_value_heads} value of {shape.value_dim}"


def _experts(config: DecoderConfig) -> str | None:
    if config.experts is None:
        return None
    shape, sparse = config.experts, len(config.sparse_layers)
    shared = f", and a shared one of {shape.shared_size}" if shape.shared_size else ""
    where = f" in {sparse} layers" if sparse < config.num_layers else ""
    return f"{shape.num_experts} of {shape.inner_size}, {shape.num_active} for each token{shared}{where}"


def _rotated(config: DecoderConfig) -> str:
    return f", {config.rope.dim} dimensions of a head" if config.rope.dim < config.head_dim else ""


def _cache(config: DecoderConfig, dtype: torch.dtype) -> str:
    """What a token takes in the cache, on a CPU too where that differs, and what a sequence takes of any length."""
    numbers, states = cache_numbers(config), state_bytes(config, dtype)
    told = f"{dtype.itemsize * numbers / 1e3:.4g} kB a token in {_name(dtype)}"
    on_cpu = CPU_CACHE_DTYPE.get(dtype, dtype)
    if on_cpu != dtype:
        told += f"; {on_cpu.itemsize * numbers / 1e3:.4g} kB on a CPU, in {_name(on_cpu)}"
    return f"{told}; and {size_in_words(states)} of recurrent states" if states else told


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tokenizer(tokenizer: Tokenizer | None) -> str:
    if tokenizer is None:
        return "none that is read: only token ids can be given"
    return f"{type(tokenizer.core.model).__name__}, {tokenizer.vocab_size} ids, {len(tokenizer.special_ids)} special"


def _template(tokenizer: Tokenizer | None) -> str:
    return "no" if tokenizer is None or tokenizer.chat_template is None else "yes"


def _sampling(params: SamplingParams) -> str:
    if params.greedy:
        return "greedy"
    shown = {"temperature": params.temperature, "top_k": params.top_k, "top_p": params.top_p, "min_p": params.min_p}
    return ", ".join(f"{name} {value:g}" for name, value in shown.items())


def _foreign_kind(contents: Contents) -> str:
    if contents.with_ending(".bin", ".pt", ".pth", ".ckpt", ".pkl") and not contents.tensors:
        return "a model in pickled weights, which can execute code and are never opened"
    name = contents.raw.get("model_type")
    return f"a model of type {name}" if isinstance(name, str) else "a model of unknown type"


def _common_facts(contents: Contents) -> tuple[Fact, ...]:
    """What configs of most families call alike."""
    parameters = contents.num_parameters
    context = contents.number("max_position_embeddings")
    return facts_of(
        parameters=None if parameters is None else count_in_words(parameters),
        weights=contents.stored if contents.weight_bytes else None,
        architectures=", ".join(contents.architectures),
        layers=contents.number("num_hidden_layers"),
        heads=contents.number("num_attention_heads"),
        hidden_size=contents.number("hidden_size"),
        vocabulary=contents.number("vocab_size"),
        context=None if context is None else f"{context} tokens",
    )
