"""Values that travel between the layers: frozen, without behaviour beyond reading themselves.

What a round makes of each kind is a named tuple, which costs a fraction of a frozen dataclass to make.

Shape legend: N nodes of a round, V vocabulary, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

Tokens: TypeAlias = tuple[int, ...]

Origin = Literal["plain", "draft", "correction", "bonus"]
"""Where an emitted token came from.

``plain``: drawn in a round without drafts (the first token too); ``draft``: drafted and confirmed by the target;
``correction``: the target's own token where every drafted child was wrong; ``bonus``: the target's own token after a
path whose last node had no child to confirm.
"""

FinishReason = Literal["stop", "length", "context", "cancelled"]
"""Why a request ended: an EOS id, stop id or stop string; ``max_tokens``; the end of the context; or its caller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """Names what a drafter wants to see of the target's forwards.

    ``layers`` counts layer outputs: ``i`` is the residual stream after decoder layer ``i``. ``final`` is the normalised
    hidden state that the output head reads. ``logits`` asks for the logits of every row of a prefill chunk; in
    ``score`` they are always there.
    """

    layers: tuple[int, ...] = ()
    final: bool = False
    logits: bool = False


class DraftTree:
    """Guessed continuations as a tree: node 0 is the root, the last emitted token, which the target has not seen yet.

    Made from ids on the host, or from a tensor on any device; either becomes the other when it is first asked for.

    Attributes:
        parents: ``N`` node indices; a parent comes before its children. The root's parent is -1. When a round is built
            by several ``score`` calls, each call's tree holds only its new nodes, and parents index all nodes of the
            round.
        score: log probability the drafter gives each node, ``[N]``, or None. Only the policy reads it.
        q: the law each node but the root was sampled from, float ``[N - 1, V]`` (row ``i - 1`` belongs to node ``i``),
            or None for drafts chosen without sampling.
    """

    __slots__ = ("_ids", "_tokens", "parents", "q", "score")

    def __init__(
        self,
        *,
        tokens: Tensor | Tokens,
        parents: tuple[int, ...],
        score: Tensor | None = None,
        q: Tensor | None = None,
    ) -> None:
        """``tokens``: the nodes' ids ``[N]``, as integers or as int64."""
        self._ids: Tokens | None = None
        self._tokens: Tensor | None = None
        if isinstance(tokens, tuple):
            self._ids = tokens
        else:
            self._tokens = tokens
        self.parents, self.score, self.q = parents, score, q

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def tokens(self) -> Tensor:
        """The ids as int64 ``[N]``, on the device they came from."""
        if self._tokens is None:
            self._tokens = torch.tensor(self._ids, dtype=torch.int64)
        return self._tokens

    @property
    def ids(self) -> Tokens:
        """The ids on the host; of a device tensor the first call costs a transfer."""
        if self._ids is None:
            self._ids = tuple(host_tokens(self.tokens))
        return self._ids

    @property
    def has_an_id_per_node(self) -> bool:
        """Whether as many ids were given as there are nodes, of the right kind."""
        if self._tokens is None:
            return len(self.ids) == len(self.parents)
        return self._tokens.shape == (len(self.parents),) and self._tokens.dtype == torch.int64


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOutput:
    """What one forward of the target shows, a row per node or per prefill token.

    Attributes:
        logits: ``[N, V]``, at least fp32. After a prefill chunk: None, or ``[1, V]`` of the last row of the last
            chunk, or all rows where ``Capture.logits`` asks for them. None too for tokens that were not computed again.
        layers: captured layer outputs, each ``[N, H]``, in the order of ``Capture.layers``.
        final: the normalised hidden states ``[N, H]``, or None.
    """

    logits: Tensor | None
    layers: tuple[Tensor, ...] = ()
    final: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a policy allows the drafter this round.

    ``num_nodes`` drafted nodes at most (0: do not draft), no deeper than ``depth``, no node with more than ``width``
    children.
    """

    num_nodes: int
    depth: int
    width: int = 1


class Verdict(NamedTuple):
    """What the target makes of a tree.

    Attributes:
        path: nodes to commit, root first; empty for the token drawn after the prefill.
        fed: the tokens at those nodes.
        next_token: the last token emitted this round, the next round's root.
        next_origin: where ``next_token`` came from; ``draft`` only after a cut inside the accepted run.
        num_drafted: nodes of the tree without its root.
    """

    path: tuple[int, ...]
    fed: Tokens
    next_token: int
    next_origin: Origin
    num_drafted: int

    @property
    def emitted(self) -> Tokens:
        """Tokens of this round in order: the accepted drafts, then ``next_token``."""
        return (*self.fed[1:], self.next_token)

    @property
    def origins(self) -> tuple[Origin, ...]:
        """The origin of each emitted token."""
        drafted: list[Origin] = ["draft"] * (len(self.fed) - 1)
        return (*drafted, self.next_origin)

    @property
    def num_accepted(self) -> int:
        """Emitted tokens that had been drafted."""
        return (len(self.path) or 1) - 1 + (self.next_origin == "draft")

    def cut(self, count: int) -> Verdict:
        """The same verdict ended after its first ``count`` emitted tokens: commits the first ``count`` walked nodes."""
        num_emitted = len(self.fed) or 1
        if count == num_emitted:
            return self
        assert 1 <= count < num_emitted, (count, self)
        return Verdict(
            path=self.path[:count],
            fed=self.fed[:count],
            next_token=self.fed[count],
            next_origin="draft",
            num_drafted=self.num_drafted,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """How likely the target thought a token, by its raw logits: before temperature and every processor.

    Attributes:
        token: the token that stands there.
        logprob: its natural log probability.
        rank: 1 for the likeliest token; of equals the lowest id comes first.
        top: the likeliest ids with their log probabilities, likeliest first.
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


class Event(NamedTuple):
    """One emitted token as a stream shows it.

    Attributes:
        token: its id.
        text: the text that became complete with it: "" while a UTF-8 sequence is open; the deltas concatenate to the
            result's text. "" without a tokenizer.
        origin: where the token came from.
        round: the round that emitted it; 0 is the prefill.
        finish_reason: set on the last event of a request.
        logprobs: set where the request asked for them.
    """

    token: int
    text: str
    origin: Origin
    round: int
    finish_reason: FinishReason | None = None
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of a request: the prompt's, the emitted ones (the terminating id included), and those of the prompt that
    a conversation's cache held already."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


def host_tokens(tokens: Tensor) -> list[int]:
    """The ids of a token tensor on the host; a device tensor costs one transfer."""
    assert tokens.dtype == torch.int64, tokens.dtype
    result: list[int] = tokens.tolist()
    return result
