"""``surefoot.load``: names in, an engine out."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from typing import TypeAlias

from surefoot.drafters import DRAFTERS
from surefoot.drafters.dflash.drafter import DFlash
from surefoot.drafters.draft_model import DraftModel
from surefoot.drafters.lookup import Lookup
from surefoot.drafters.stacked import MIN_MATCH, Stacked
from surefoot.engine import Engine
from surefoot.loading import LoadedTarget, find_dflash, load_dflash, load_draft, load_target
from surefoot.options import DTypeName, Exactness, LoadOptions
from surefoot.protocols import DrafterModel

Guess: TypeAlias = str | PathLike[str] | DrafterModel
"""What guesses: a name, or the object itself."""


def load(
    target: str | PathLike[str],
    drafter: Guess | tuple[Guess, Guess] | None = None,
    *,
    dtype: DTypeName = "auto",
    device: str = "auto",
    exact: Exactness = "auto",
    prefill_chunk: int = 512,
    trainable: bool = False,
) -> Engine:
    """Loads a target, and a drafter for it.

    Args:
        target: a directory, the name of a bundled model (``pebble``), or a hub id (``org/name``), in this order.
        drafter: ``lookup``, ``none``, a draft model or a DFlash drafter named like a target, or any drafter object. Of
            two, such as ``("lookup", "pebble-draft")``, the second drafts where the first has no guess.
        dtype: ``auto`` keeps the checkpoint's.
        device: ``auto``, or any torch device.
        exact: ``require`` insists on row-exact arithmetic, which the CPU kernels are; ``auto`` takes the fast path
            and reports ``stats.strict``.
        prefill_chunk: prompt tokens per forward.
        trainable: keep the target's weights as torch parameters and compute with torch.

    Raises:
        LoadError: with what was found, what was expected and what to do.
    """
    options = LoadOptions(dtype=dtype, device=device, exact=exact, prefill_chunk=prefill_chunk, trainable=trainable)
    loaded = load_target(target, options)
    guesser, notes = _drafter(drafter, options, loaded)
    return Engine(
        loaded.model,
        guesser,
        loaded.tokenizer,
        eos_token_ids=loaded.eos_token_ids,
        sampling_defaults=loaded.sampling_defaults,
        notes=(*loaded.notes, *(f"draft model: {note}" for note in notes)),
    )


def _drafter(
    drafter: Guess | tuple[Guess, Guess] | None, options: LoadOptions, target: LoadedTarget
) -> tuple[DrafterModel | None, tuple[str, ...]]:
    """The drafter object, and what was noted while it was loaded."""
    if isinstance(drafter, tuple):
        first, _ = _drafter(Lookup(min_match=MIN_MATCH) if drafter[0] == "lookup" else drafter[0], options, target)
        then, notes = _drafter(drafter[1], options, target)
        assert first is not None
        assert then is not None
        return Stacked(first, then), notes
    if not isinstance(drafter, (str, PathLike)):
        return drafter, ()
    if str(drafter) in DRAFTERS:
        return DRAFTERS[str(drafter)](), ()
    found = find_dflash(drafter)
    if found is not None:
        network, notes = load_dflash(found, options, target)
        return DFlash(network), notes
    # Drafts are checked whatever they are, so the draft model always takes the fast path.
    draft = load_draft(drafter, replace(options, exact="auto", trainable=False), target)
    return DraftModel(draft.model), draft.notes
