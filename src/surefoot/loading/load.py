"""Names in, models out: config, class, checked weights, tokenizer, in this order."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

import torch

from surefoot.errors import CheckpointError, OptionError
from surefoot.loading.checkpoint import FLOATS, check_tensors, check_tied_head, fill, shapes_of
from surefoot.loading.files import read_json_object, read_optional_object, regular_file
from surefoot.loading.formats import family_of, refuse_foreign
from surefoot.loading.generation import GENERATION, beyond_defaults, eos_ids, sampling_defaults
from surefoot.loading.header import StoredTensor
from surefoot.loading.loaded import LoadedTarget
from surefoot.loading.pairing import check_pair
from surefoot.loading.resolve import Place, resolve
from surefoot.loading.shards import stored_tensors
from surefoot.loading.tokenizer import load_tokenizer
from surefoot.models.config import DecoderConfig
from surefoot.models.decoder import DecoderModel
from surefoot.models.family import Family
from surefoot.options import Environment, LoadOptions

DTYPES: Mapping[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

HEAD = "lm_head.weight"


def load_target(name: str | os.PathLike[str], options: LoadOptions) -> LoadedTarget:
    """Loads the model called ``name``: a directory, a bundled name, or a hub id.

    Raises:
        ModelNotFoundError: there is nothing of that name.
        UnsupportedModelError: it is of a kind that is not implemented, or would execute code.
        CheckpointError: its files are damaged, incomplete or contradict each other.
        OptionError: the device does not exist here.
    """
    return _load(resolve(name, Environment.read()), options)


def load_draft(name: str | os.PathLike[str], options: LoadOptions, target: LoadedTarget) -> LoadedTarget:
    """Loads a draft model whose tokenizer must be the target's (``PairError``); ``notes`` say what else differs."""
    draft = _load(resolve(name, Environment.read()), options)
    return replace(draft, notes=draft.notes + check_pair(target, draft))


def _load(place: Place, options: LoadOptions) -> LoadedTarget:
    refuse_foreign(place.path)
    config_path = regular_file(place.path, "config.json")
    if config_path is None:
        raise CheckpointError(f"{place.path}: found no config.json; expected one. Complete the download")
    raw = read_json_object(config_path)
    family = family_of(raw, str(config_path))
    raw = family.flatten(raw)
    config = family.parse(raw)
    stored = stored_tensors(place.path)
    generation = read_optional_object(place.path, GENERATION)
    tokenizer, notes = load_tokenizer(place.path)
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        notes += (f"the tokenizer has ids up to {tokenizer.vocab_size - 1}, the model only {config.vocab_size} rows",)
    eos_token_ids = eos_ids(raw, generation, config.vocab_size)
    defaults = sampling_defaults(generation)
    return LoadedTarget(
        name=place.name,
        path=place.path,
        config=config,
        model=_read_model(family, config, raw, stored, options),
        tokenizer=tokenizer,
        eos_token_ids=eos_token_ids,
        sampling_defaults=defaults,
        notes=notes + family.notes(shapes_of(stored)) + beyond_defaults(generation),
    )


def _read_model(
    family: Family,
    config: DecoderConfig,
    raw: Mapping[str, object],
    stored: Mapping[str, StoredTensor],
    options: LoadOptions,
) -> DecoderModel:
    device = find_device(options.device)
    dtype = DTYPES[options.dtype] if options.dtype != "auto" else checkpoint_dtype(raw, stored)
    specs = family.layout(config, shapes_of(stored))
    check_tensors(specs, family, stored)
    if config.tied_head:
        embedding = next(spec.name for spec in specs if spec.parameter == "embedding")
        check_tied_head(stored, HEAD, embedding)
    with torch.device("meta"):
        model = DecoderModel(config)
    fill(model, specs, stored, dtype, device)
    model.prepare(exact=options.exact, prefill_chunk=options.prefill_chunk, trainable=options.trainable, release=True)
    return model


def checkpoint_dtype(raw: Mapping[str, object], stored: Mapping[str, StoredTensor]) -> torch.dtype:
    """The dtype that ``config.json`` names (``dtype``, formerly ``torch_dtype``), else the one all weights have."""
    named = {str(raw[key]).removeprefix("torch.") for key in ("dtype", "torch_dtype") if raw.get(key) is not None}
    kinds = {FLOATS[tensor.dtype] for tensor in stored.values() if tensor.dtype in FLOATS}
    if len(named) == 1 and named <= DTYPES.keys():
        return DTYPES[named.pop()]
    if named:
        raise CheckpointError(
            f"config.json: dtype and torch_dtype say {', '.join(sorted(named))}; expected one of {', '.join(DTYPES)}. "
            "Repair the file"
        )
    if len(kinds) > 1:
        raise CheckpointError(
            f"the weights are of the types {', '.join(sorted(map(str, kinds)))} and config.json names none; expected "
            "one. Choose a dtype"
        )
    return kinds.pop() if kinds else torch.float32


def find_device(name: str) -> torch.device:
    """The device called ``name``, known to work; ``auto`` is the accelerator, or the CPU where there is none."""
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return accelerator or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as fault:
        reason = str(fault).split("\n", maxsplit=1)[0]
        raise OptionError(
            f"device is {name!r:.80}; expected 'auto' or a device of this machine: {reason:.200}"
        ) from fault
    if device.type == "meta":
        raise OptionError("device is 'meta', which holds no values; expected 'auto' or a device of this machine")
    return device
