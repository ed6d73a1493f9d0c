"""Whether this version can draft with a DFlash drafter, from its config and headers."""

from __future__ import annotations

import torch

from surefoot.describe.contents import Contents
from surefoot.drafters.dflash.network import DFlashNetwork
from surefoot.drafters.dflash.reading import parse
from surefoot.errors import CheckpointError, LoadError
from surefoot.loading.checkpoint import structural_problems
from surefoot.loading.dflash import NoneLeftOut, tensors_of
from surefoot.loading.formats import refuse_foreign
from surefoot.loading.shards import stored_tensors

USABLE = "This version can use it as a drafter of the target it was trained for: --draft-model"
_NUM_PROBLEMS = 5


def why_not(contents: Contents) -> LoadError | None:
    """What keeps it from being loaded, whatever its target; None where nothing does."""
    try:
        refuse_foreign(contents.path)
        config = parse(contents.raw)
        with torch.device("meta"):
            network = DFlashNetwork(config)
        problems = list(structural_problems(tensors_of(network), NoneLeftOut(), stored_tensors(contents.path)))
        if problems:
            shown = "; ".join(problems[:_NUM_PROBLEMS]) + ("; ..." if len(problems) > _NUM_PROBLEMS else "")
            raise CheckpointError(f"its tensors do not fit its config ({shown}). Download the checkpoint again")
    except LoadError as error:
        return error
    return None
