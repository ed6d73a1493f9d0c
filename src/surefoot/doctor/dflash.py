"""The check of a DFlash drafter's files against its target's."""

from __future__ import annotations

import math

import torch

from surefoot.doctor.check import Check
from surefoot.doctor.files import ModelFiles
from surefoot.drafters.dflash.config import DFlashConfig
from surefoot.drafters.dflash.network import DFlashNetwork
from surefoot.loading.checkpoint import check_tensors
from surefoot.loading.dflash import DFlashFiles, NoneLeftOut, check_fit, tensors_of
from surefoot.loading.formats import refuse_foreign
from surefoot.loading.shards import stored_tensors


def check_drafter(found: DFlashFiles, target: ModelFiles | None) -> tuple[Check, DFlashConfig]:
    """Whether its tensors are there and every count fits the target, where that was understood.

    Raises:
        LoadError: the files are refused, damaged or contradict each other, or it was made for another target.
    """
    refuse_foreign(found.place.path)
    config = found.config
    with torch.device("meta"):
        specs = tensors_of(DFlashNetwork(config))
    check_tensors(specs, NoneLeftOut(), stored_tensors(found.place.path))
    notes = () if target is None else check_fit(found.place.name, config, target.name, target.config)
    size = sum(math.prod(spec.shape) for spec in specs)
    layers = ", ".join(map(str, config.target_layer_ids))
    told = f"dflash, {size / 1e6:.1f} M parameters, blocks of {config.block_size}, reads layers {layers}"
    name = "draft model files"
    if notes:
        mend = "Keep requests shorter, or choose a drafter with a longer context"
        return Check(name=name, level="WARN", found=f"{told}; {notes[0]}", mend=mend), config
    return Check(name=name, level="PASS", found=told, details=(f"in {found.place.path}",)), config
