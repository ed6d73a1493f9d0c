"""The check of a DFlash drafter's files against its target's."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from surefoot.doctor.check import Check
from surefoot.doctor.files import ModelFiles
from surefoot.doctor.memory import Need
from surefoot.drafters.dflash.config import DFlashConfig
from surefoot.drafters.dflash.drafter import kernels_for
from surefoot.drafters.dflash.network import DFlashNetwork
from surefoot.loading.checkpoint import check_tensors
from surefoot.loading.dflash import DFlashFiles, NoneLeftOut, check_fit, tensors_of, trained_for_another
from surefoot.loading.formats import refuse_foreign
from surefoot.loading.load import DTYPES
from surefoot.loading.shards import stored_tensors
from surefoot.options import DTypeName


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterFiles:
    """A DFlash drafter whose files fit together.

    Attributes:
        config: what its ``config.json`` means.
        num_parameters: numbers in all its weights.
    """

    config: DFlashConfig
    num_parameters: int

    def need(self, target: ModelFiles, dtype: DTypeName, device: torch.device) -> Need:
        """What it takes beside ``target``, whose dtype it is loaded in unless another is asked for: its weights, and
        keys and values of every token in each of its layers."""
        loaded = DTYPES[target.dtype if dtype == "auto" else dtype]
        cached = loaded if kernels_for(self.config, loaded, device) is None else torch.float32
        return Need(
            weights=self.num_parameters * loaded.itemsize,
            per_token=2 * self.config.num_layers * self.config.kv_size * cached.itemsize,
            context_length=self.config.context_length,
        )


def check_drafter(found: DFlashFiles, target: ModelFiles | None) -> tuple[Check, DrafterFiles]:
    """Whether its tensors are there and every count fits the target, where that was understood.

    Raises:
        LoadError: the files are refused, damaged or contradict each other, or it was made for another target.
    """
    refuse_foreign(found.place.path)
    config = found.config
    with torch.device("meta"):
        specs = tensors_of(DFlashNetwork(config))
    check_tensors(specs, NoneLeftOut(), stored_tensors(found.place.path))
    shorter = () if target is None else check_fit(found.place.name, config, target.name, target.config)
    another = None if target is None else trained_for_another(found.place.path, target.path)
    files = DrafterFiles(config=config, num_parameters=sum(math.prod(spec.shape) for spec in specs))
    layers = ", ".join(map(str, config.target_layer_ids))
    told = (
        f"dflash, {files.num_parameters / 1e6:.1f} M parameters, blocks of {config.block_size}, reads layers {layers}"
    )
    name = "draft model files"
    if another is not None:
        mend = "Take a drafter that was trained for this target, or train one: surefoot train dflash"
        return Check(name=name, level="WARN", found=f"{told}; {another}", mend=mend, details=shorter), files
    if shorter:
        mend = "Keep requests shorter, or choose a drafter with a longer context"
        return Check(name=name, level="WARN", found=f"{told}; {shorter[0]}", mend=mend), files
    return Check(name=name, level="PASS", found=told, details=(f"in {found.place.path}",)), files
