"""What a target checks of each call before it computes: tokens, trees, caches, captures."""

from __future__ import annotations

from collections.abc import Sequence

from surefoot.cache.kv import KVCache
from surefoot.errors import CacheError, TargetError
from surefoot.models.config import DecoderConfig
from surefoot.models.forward import Span
from surefoot.protocols import Cache
from surefoot.types import Capture, DraftTree, Tokens


def own_cache(cache: Cache, owner: object) -> KVCache:
    """``cache`` as one that ``owner`` made."""
    if not isinstance(cache, KVCache) or cache.owner is not owner:
        raise CacheError("a cache of another model was given; expected one of this model's new_cache")
    return cache


def check_capture(capture: Capture, config: DecoderConfig) -> None:
    """Refuses layers the model does not have."""
    for layer in capture.layers:
        if not 0 <= layer < config.num_layers:
            raise TargetError(f"layer {layer} was to be captured; expected 0 to {config.num_layers - 1}")


def check_tokens(tokens: Sequence[int], config: DecoderConfig) -> Tokens:
    """The tokens of a prompt as a tuple, each known to be in the vocabulary."""
    ids = tuple(tokens)
    if not ids:
        raise TargetError("no tokens were given to prefill; expected at least one")
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool):
            raise TargetError(f"a token is {token!r:.40}; expected integers")
    _check_range(min(ids), max(ids), config)
    return ids


def check_rounds(rounds: Sequence[tuple[DraftTree, Cache]], owner: object, config: DecoderConfig) -> list[Span]:
    """The share of each tree in the forward, with its cache's nodes as they will be; changes nothing.

    Reads the tokens, which costs a transfer where a drafter left them on an accelerator.
    """
    if not rounds:
        raise TargetError("no trees were given to score; expected at least one")
    spans = []
    for tree, cache in rounds:
        own = own_cache(cache, owner)
        num_nodes = len(tree.parents)
        if not tree.has_an_id_per_node:
            raise TargetError(
                f"a tree of {num_nodes} parents has tokens of shape {tuple(tree.tokens.shape)}, {tree.tokens.dtype}; "
                f"expected ({num_nodes},) and torch.int64"
            )
        spans.append(Span(own, own.transaction.extended(tree.parents), num_nodes))
        _check_range(min(tree.ids), max(tree.ids), config)
    if len(rounds) > 1 and len({id(cache) for _, cache in rounds}) < len(rounds):
        raise TargetError("the same cache was given twice in one call; expected one tree for each sequence")
    return spans


def _check_range(lowest: int, highest: int, config: DecoderConfig) -> None:
    if lowest < 0 or highest >= config.vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise TargetError(f"token {wrong} was given; expected 0 to {config.vocab_size - 1}, the model's vocabulary")
