"""Recognises drafters and adapters by their configs and tensors, in the layouts they are published in.

The layouts: EAGLE (SafeAILab/EAGLE, ``cnets.py``), Medusa (FasterDecoding/Medusa), DFlash (z-lab/dflash), speculators
(vllm-project/speculators, ``config.py``), multi-token prediction of DeepSeek-V3 and Qwen3-Next, peft adapters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from surefoot.describe.blocks import USABLE, why_not
from surefoot.describe.contents import Contents
from surefoot.describe.description import Description, Fact, count_in_words, facts_of
from surefoot.loading.files import read_optional_object

HAVE = "This version cannot use it: its drafters are lookup, whole draft models and DFlash"
_MTP = re.compile(r"(?:^|\.)mtp\.|\.(?:enorm|hnorm|eh_proj)\.weight$")


def _head(
    contents: Contents, kind: str, needs: str, facts: tuple[Fact, ...], notes: tuple[str, ...] = ()
) -> Description:
    parameters = contents.num_parameters
    size = facts_of(parameters=None if parameters is None else count_in_words(parameters), weights=contents.stored)
    pickled = contents.with_ending(".bin", ".pt", ".pth", ".ckpt")
    if pickled and not contents.tensors:
        notes += (
            f"{pickled[0]} is a pickle, which can execute code and is never opened: its tensors are unknown here",
        )
    return Description(
        path=str(contents.path),
        kind=kind,
        facts=(*size, *facts),
        usable=False,
        verdict=HAVE,
        needs=needs,
        notes=notes,
    )


def _fusion(contents: Contents) -> tuple[int, ...] | None:
    """The shape of an EAGLE head's first linear; a module of multi-token prediction has one of its own."""
    tensor = contents.tensors.get("fc.weight") or contents.tensors.get("model.fc.weight")
    return None if tensor is None else tensor.shape


def adapter(contents: Contents) -> Description | None:
    """A peft adapter (LoRA)."""
    if "adapter_config.json" not in contents.names:
        return None
    raw = read_optional_object(contents.path, "adapter_config.json")
    return Description(
        path=str(contents.path),
        kind=f"a peft adapter ({raw.get('peft_type', 'type not given')})",
        facts=facts_of(base_model=raw.get("base_model_name_or_path"), rank=raw.get("r"), weights=contents.stored),
        usable=False,
        verdict="This version cannot use it: it loads whole models",
        needs="Merge it into its base model (peft: merge_and_unload), save that with save_pretrained and load it",
    )


def speculators(contents: Contents) -> Description | None:
    """A drafter in the speculators layout, of whatever kind."""
    config = contents.section("speculators_config")
    kind = contents.raw.get("speculators_model_type") or config.get("algorithm")
    if kind is None:
        return None
    verifier = config.get("verifier")
    trained_for = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    layer = contents.section("transformer_layer_config")
    methods = config.get("proposal_methods")
    first = methods[0] if isinstance(methods, list) and methods and isinstance(methods[0], Mapping) else {}
    lossy = first.get("accept_tolerance") not in (None, 0, 0.0) or first.get("verifier_accept_k") not in (None, 1)
    notes = ("its proposal method asks for lossy acceptance, which is never done here",) if lossy else ()
    return _head(
        contents,
        f"a drafter in the speculators layout: {kind}",
        f"A drafter of the kind {kind}, and the target it was trained for ({trained_for or 'not named'})",
        facts_of(
            trained_for=trained_for,
            drafts_a_round=first.get("speculative_tokens"),
            draft_vocabulary=contents.number("draft_vocab_size"),
            layer_family=layer.get("model_type"),
            hidden_size=layer.get("hidden_size"),
            reads_target_layers=contents.raw.get("eagle_aux_hidden_state_layer_ids"),
        ),
        notes,
    )


def dflash(contents: Contents) -> Description | None:
    """A block-diffusion drafter: DFlash, or its relatives with a Markov or projector head."""
    section = contents.section("dflash_config")
    named = any("DFlash" in name or "DSpark" in name for name in contents.architectures)
    if not named and not section:
        return None

    def either(name: str) -> object:
        return contents.raw.get(name, section.get(name))

    relative = either("projector_type") or ("dspark" if either("markov_rank") is not None else None)
    kind = "a DFlash drafter" if relative is None else f"a drafter of the DFlash family ({relative})"
    head = _head(
        contents,
        kind,
        "A DFlash drafter, and the target it was trained for: it reads that target's hidden states and output head",
        facts_of(
            block=either("block_size"),
            layers=contents.number("num_hidden_layers"),
            hidden_size=contents.number("hidden_size"),
            target_layers=contents.number("num_target_layers"),
            reads_target_layers=either("target_layer_ids"),
            mask_token=either("mask_token_id"),
            sliding_window=contents.number("sliding_window"),
        ),
    )
    problem = why_not(contents)
    if problem is None:
        return replace(head, usable=True, verdict=USABLE, needs="")
    found, _, advice = str(problem).partition("\n")[0].rpartition(". ")
    return replace(head, verdict=f"This version cannot use it: {found or advice}")


def eagle3(contents: Contents) -> Description | None:
    """An EAGLE-3 head: it reads three layers of the target, and may draft over a vocabulary of its own."""
    fusion = _fusion(contents)
    hidden = contents.number("hidden_size") or (fusion[0] if fusion else None)
    triple = fusion is not None and len(fusion) == 2 and fusion[1] == 3 * fusion[0]
    mapped = contents.shape("d2t") is not None
    named = any("Eagle3" in name for name in contents.architectures)
    if not (named or mapped or triple or (contents.number("draft_vocab_size") and not contents.tensors)):
        return None
    section = contents.section("eagle_config")
    return _head(
        contents,
        "an EAGLE-3 head",
        "An EAGLE-3 drafter, and the target it was trained for: it reads that target's hidden states and embedding",
        facts_of(
            hidden_size=hidden,
            layers=contents.number("num_hidden_layers"),
            target_vocabulary=contents.number("vocab_size"),
            draft_vocabulary=contents.number("draft_vocab_size"),
            vocabulary_map="d2t, offsets from draft ids to target ids" if mapped else None,
            reads_target_layers=section.get("eagle_aux_hidden_state_layer_ids"),
        ),
    )


def medusa(contents: Contents) -> Description | None:
    """Medusa heads: each guesses one further position from the target's last hidden state."""
    heads = contents.number("medusa_num_heads")
    if heads is None and not any(name.startswith("medusa_lm_head") for name in contents.names):
        return None
    base = contents.raw.get("base_model_name_or_path")
    return _head(
        contents,
        "Medusa heads",
        f"A Medusa drafter, and the target it was trained for ({base or 'not named'})",
        facts_of(trained_for=base, heads=heads, layers_a_head=contents.number("medusa_num_layers")),
    )


def eagle(contents: Contents) -> Description | None:
    """An EAGLE-1 or EAGLE-2 head: one decoder layer behind a linear of embedding and hidden state."""
    fusion = _fusion(contents)
    if fusion is not None:
        if len(fusion) != 2 or fusion[1] != 2 * fusion[0]:
            return None
    elif not any("eagle" in name.lower() for name in contents.architectures):
        return None
    return _head(
        contents,
        "an EAGLE-1 or EAGLE-2 head (the two differ in how they are used, not in their weights)",
        "An EAGLE drafter, and the target it was trained for: it reads that target's last hidden state and embedding",
        facts_of(
            hidden_size=contents.number("hidden_size") or (fusion[0] if fusion else None),
            layers=contents.number("num_hidden_layers"),
            vocabulary=contents.number("vocab_size"),
            linear_has_a_bias="yes" if contents.shape("fc.bias") else None,
        ),
    )


def mtp(contents: Contents) -> Description | None:
    """Multi-token prediction alone, without the model it belongs to."""
    modules = mtp_modules(contents)
    own = [name for name in contents.tensors if _MTP.search(name)]
    if not modules or len(own) == 0 or contents.shape("embed_tokens.weight") is not None:
        return None
    return _head(
        contents,
        "multi-token prediction modules without their model",
        "An MTP drafter, and the target they were trained with",
        facts_of(modules=modules, hidden_size=contents.number("hidden_size")),
    )


def mtp_modules(contents: Contents) -> int:
    """Multi-token prediction modules that come with a model."""
    for name in ("num_nextn_predict_layers", "mtp_num_hidden_layers"):
        found = contents.number(name)
        if found is not None:
            return found
    return int(any(_MTP.search(name) for name in contents.tensors))


RECOGNISERS: tuple[Callable[[Contents], Description | None], ...] = (
    *(adapter, speculators, dflash, medusa, eagle3, eagle, mtp),
)
"""In this order: a layout that says what it is goes before one that is told by its tensors."""


def recognise(contents: Contents) -> Description | None:
    """The first layout that fits; None for what is no drafter of a known one."""
    found = (recogniser(contents) for recogniser in RECOGNISERS)
    return next((description for description in found if description is not None), None)
