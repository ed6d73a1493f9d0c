"""Whether a draft model speaks its target's language: tokenizers compared by content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from surefoot.errors import PairError
from surefoot.loading.loaded import LoadedTarget
from surefoot.text import Tokenizer

NUM_SHOWN = 5
"""Differing tokens an error shows."""


def check_pair(target: LoadedTarget, draft: LoadedTarget) -> tuple[str, ...]:
    """Raises ``PairError`` unless each id means the same to both; returns notes on what differs harmlessly.

    Embeddings padded to different sizes are harmless, and so is a shorter context of the draft model: beyond it the
    loop decodes plainly.
    """
    ours, theirs = target.tokenizer, draft.tokenizer
    rows = (target.config.vocab_size, draft.config.vocab_size)
    if ours is None or theirs is None:
        if rows[0] != rows[1]:
            without = " and ".join(side.name for side in (target, draft) if side.tokenizer is None)
            raise PairError(
                f"{draft.name} has a vocabulary of {rows[1]} and {target.name} of {rows[0]}, and {without} has no "
                "tokenizer.json to compare; expected tokenizers, or vocabularies of one size. Add the tokenizer.json"
            )
        return (*_context_notes(target, draft), "the tokenizers could not be compared: one is missing")
    differences = list(islice(different_tokens(ours, theirs), NUM_SHOWN + 1)) or list(different_rules(ours, theirs))
    if differences:
        shown = [*differences[:NUM_SHOWN], *(["..."] if len(differences) > NUM_SHOWN else [])]
        raise PairError(
            f"{draft.name} has another tokenizer than {target.name}; expected the same ids for the same text. Choose a "
            f"draft model of the target's own family ({target.name} | {draft.name}):\n"
            + "\n".join(f"  {difference}" for difference in shown)
        )
    if rows[1] < theirs.vocab_size:
        raise PairError(
            f"{draft.name} has {rows[1]} embedding rows for a tokenizer of {theirs.vocab_size} ids; expected a row for "
            "each. Choose another draft model"
        )
    return _context_notes(target, draft)


def _context_notes(target: LoadedTarget, draft: LoadedTarget) -> tuple[str, ...]:
    ours, theirs = target.config.context_length, draft.config.context_length
    if theirs >= ours:
        return ()
    return (f"the draft model's context of {theirs} tokens is shorter than the target's {ours}: no drafts beyond it",)


def different_tokens(ours: Tokenizer, theirs: Tokenizer) -> Iterator[str]:
    """The ids, in ascending order, that stand for other bytes or are special on one side only."""
    for token in range(max(ours.vocab_size, theirs.vocab_size)):
        left, right = _meaning(ours, token), _meaning(theirs, token)
        if left != right:
            yield f"{token}: {left} | {right}"


def _meaning(tokenizer: Tokenizer, token: int) -> str:
    piece = tokenizer.piece(token)
    if piece is None:
        return "no token"
    if token in tokenizer.special_ids:
        return f"special {piece!r}"
    return repr(tokenizer.token_bytes(token))


def different_rules(ours: Tokenizer, theirs: Tokenizer) -> Iterator[str]:
    """What differs in how text becomes ids: normalizer, pre-tokenizer, merges, added tokens."""
    left, right = ours.encoding_rules(), theirs.encoding_rules()
    for part in left:
        if left[part] != right[part]:
            yield f"{part}: {_difference(left[part], right[part])}"


def _difference(left: object, right: object, where: str = "") -> str:
    """The first place where two JSON values differ, shown as ``path: left | right``."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in sorted(left.keys() | right.keys()):
            if left.get(key) != right.get(key):
                return _difference(left.get(key), right.get(key), f"{where}.{key}")
    if isinstance(left, list) and isinstance(right, list):
        for index, (one, other) in enumerate(zip(left, right, strict=False)):
            if one != other:
                return _difference(one, other, f"{where}[{index}]")
        return f"{where} has {len(left)} entries | {len(right)} entries"
    return f"{where} {left!r:.80} | {right!r:.80}"
