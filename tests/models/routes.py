"""Routes that must lead to the same logits: whole trees against one token after another."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from surefoot.models.decoder import DecoderModel
from surefoot.tree import chain, path_to
from surefoot.types import Capture, DraftTree

NOTHING = Capture()


@dataclass(frozen=True)
class Case:
    """A prompt and a tree after it, given to ``score`` in calls of ``sizes`` nodes."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    sizes: tuple[int, ...]

    def trees(self) -> list[DraftTree]:
        """The tree of each call."""
        result, start = [], 0
        for size in self.sizes:
            stop = start + size
            result.append(DraftTree(tokens=torch.tensor(self.tokens[start:stop]), parents=self.parents[start:stop]))
            start = stop
        return result


def random_case(seed: int, vocab_size: int, prompt_length: int, num_nodes: int, num_calls: int = 1) -> Case:
    """A random prompt and tree: some nodes side by side, some deep."""
    source = random.Random(seed)
    parents = (-1, *(source.randrange(max(0, node - 3), node) for node in range(1, num_nodes)))
    cuts = sorted(source.sample(range(1, num_nodes), num_calls - 1))
    return Case(
        prompt=tuple(source.randrange(vocab_size) for _ in range(prompt_length)),
        tokens=tuple(source.randrange(vocab_size) for _ in range(num_nodes)),
        parents=parents,
        sizes=tuple(stop - start for start, stop in zip((0, *cuts), (*cuts, num_nodes), strict=True)),
    )


def chain_case(seed: int, vocab_size: int, prompt_length: int, num_nodes: int, num_calls: int = 1) -> Case:
    """A random prompt and a chain after it."""
    case = random_case(seed, vocab_size, prompt_length, num_nodes, num_calls)
    return Case(case.prompt, case.tokens, tuple(range(-1, num_nodes - 1)), case.sizes)


def tree_logits(model: DecoderModel, case: Case) -> Tensor:
    """A row for each node, ``[N, V]``, scored as the case says."""
    cache = model.new_cache(len(case.prompt) + len(case.tokens))
    if case.prompt:
        list(model.prefill(case.prompt, cache, NOTHING))
    outputs = [model.score([(tree, cache)], NOTHING)[0].logits for tree in case.trees()]
    return torch.cat([logits for logits in outputs if logits is not None])


def step_logits(model: DecoderModel, case: Case) -> Tensor:
    """A row for each node, ``[N, V]``, each reached from the prompt by plain decoding, one token to a round."""
    rows: dict[int, Tensor] = {}
    leaves = [node for node in range(len(case.tokens)) if node not in case.parents]
    for leaf in leaves:
        path = path_to(case.parents, leaf)
        cache = model.new_cache(len(case.prompt) + len(path))
        if case.prompt:
            list(model.prefill(case.prompt, cache, NOTHING))
        for node in path:
            rows[node] = last_logits(model, cache, case.tokens[node : node + 1])
            cache.commit((0,))
    return torch.stack([rows[node] for node in range(len(case.tokens))])


def last_logits(model: DecoderModel, cache: object, tokens: Sequence[int]) -> Tensor:
    """Scores a chain and returns its last row ``[V]``; the round stays open."""
    logits = model.score([(chain(tokens), cache)], NOTHING)[0].logits  # type: ignore[list-item]
    assert logits is not None
    return logits[-1]
