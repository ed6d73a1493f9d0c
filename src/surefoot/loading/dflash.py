"""Finds out that a directory holds a DFlash drafter, that it fits its target, and loads it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from surefoot.drafters.dflash.config import DFlashConfig
from surefoot.drafters.dflash.network import DFlashNetwork
from surefoot.drafters.dflash.reading import is_dflash, parse
from surefoot.errors import CheckpointError, PairError
from surefoot.loading.checkpoint import check_tensors, fill
from surefoot.loading.files import read_json_object, read_optional_object, regular_file
from surefoot.loading.formats import refuse_foreign
from surefoot.loading.load import DTYPES
from surefoot.loading.loaded import LoadedTarget
from surefoot.loading.resolve import Place, resolve
from surefoot.loading.shards import stored_tensors
from surefoot.models.config import DecoderConfig
from surefoot.models.family import TensorSpec
from surefoot.options import Environment, LoadOptions

RECORD = "run.json"
"""What ``surefoot train`` writes beside a drafter: where it comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashFiles:
    """A directory whose ``config.json`` is a DFlash drafter's.

    Attributes:
        place: where it lies, and what it was called.
        raw: its ``config.json``.
    """

    place: Place
    raw: Mapping[str, object]

    @property
    def config(self) -> DFlashConfig:
        """What the file means. Raises ``LoadError`` as ``reading.parse`` does."""
        return parse(self.raw, str(self.place.path / "config.json"))


class NoneLeftOut:
    """A layout without tensors beside its own."""

    def is_known(self, name: str) -> bool:
        """Never."""
        return False


def find_dflash(name: str | os.PathLike[str]) -> DFlashFiles | None:
    """The drafter called ``name``, or None where that is something else.

    Raises:
        ModelNotFoundError: there is nothing of that name.
        CheckpointError: its ``config.json`` cannot be read.
    """
    place = resolve(name, Environment.read())
    path = regular_file(place.path, "config.json")
    raw = {} if path is None else read_json_object(path)
    return DFlashFiles(place=place, raw=raw) if is_dflash(raw) else None


def load_dflash(
    found: DFlashFiles, options: LoadOptions, target: LoadedTarget
) -> tuple[DFlashNetwork, tuple[str, ...]]:
    """The network, every weight checked, where its target is and in its dtype unless another is asked for; and notes.

    Raises:
        PairError: it was made for another target.
        UnsupportedModelError, CheckpointError: its files are refused, damaged or contradict each other.
    """
    refuse_foreign(found.place.path)
    config = found.config
    notes = check_fit(found.place.name, config, target.name, target.config)
    another = trained_for_another(found.place.path, target.path)
    notes += () if another is None else (another,)
    stored = stored_tensors(found.place.path)
    with torch.device("meta"):
        network = DFlashNetwork(config)
    specs = tensors_of(network)
    check_tensors(specs, NoneLeftOut(), stored)
    dtype = target.model.dtype if options.dtype == "auto" else DTYPES[options.dtype]
    fill(network, specs, stored, dtype, target.model.device)
    return network.requires_grad_(False), notes


def tensors_of(network: DFlashNetwork) -> list[TensorSpec]:
    """Every tensor of its checkpoint; the parameters have the released names."""
    return [
        TensorSpec(name=name, shape=tuple(parameter.shape), parameter=name)
        for name, parameter in network.named_parameters()
    ]


def check_fit(name: str, config: DFlashConfig, target_name: str, target: DecoderConfig) -> tuple[str, ...]:
    """Raises ``PairError`` naming every count in which the drafter and the target disagree; returns notes."""
    problems = [
        f"{what}: {ours} | {theirs}"
        for what, ours, theirs in (
            ("hidden_size", target.hidden_size, config.hidden_size),
            ("vocab_size", target.vocab_size, config.vocab_size),
            ("layers of the target", target.num_layers, config.num_target_layers or target.num_layers),
        )
        if ours != theirs
    ]
    last = target.num_layers - 1
    outside = [layer for layer in config.target_layer_ids if layer >= last]
    if outside:
        # The last layer's output is read after the final norm elsewhere, so what was trained on it is unclear.
        problems.append(f"layers to read: 0 to {last - 1}, all but the last | {', '.join(map(str, outside))}")
    if problems:
        raise PairError(
            f"{name} is a DFlash drafter made for another target than {target_name}; expected the one it was trained "
            f"with. Choose a drafter of this target ({target_name} | {name}):\n"
            + "\n".join(f"  {problem}" for problem in problems)
        )
    if config.context_length >= target.context_length:
        return ()
    ours, theirs = target.context_length, config.context_length
    return (f"the drafter's context of {theirs} tokens is shorter than the target's {ours}: no drafts beyond it",)


def config_digest(path: Path) -> str:
    """Sha256 of a checkpoint's ``config.json``, in hexadecimal digits: how a record names a target."""
    return hashlib.sha256((path / "config.json").read_bytes()).hexdigest()


def trained_for_another(drafter: Path, target: Path) -> str | None:
    """A note where the record beside a drafter says that it was trained for a target of another ``config.json``.

    Every count may agree all the same: output is exact then too, and drafts are poor. Weights are not compared, which
    would read them once more; and a record that is missing, damaged or not ours says nothing.
    """
    try:
        record = read_optional_object(drafter, RECORD)
    except CheckpointError:  # nothing that is computed depends on it
        return None
    made_for, config = record.get("target"), regular_file(target, "config.json")
    recorded = made_for.get("config_sha256") if isinstance(made_for, dict) else None
    if not isinstance(recorded, str) or config is None:
        return None
    if recorded == config_digest(target):
        return None
    name = record.get("target_name")
    named = f" ({name:.80})" if isinstance(name, str) else ""
    return f"the drafter's {RECORD} names another target{named}, by its config.json: expect poor drafts, and exact text"
