"""The seams of Surefoot: what a target, a cache, a drafter, a policy, a sampler and the stops must do for the loop.

``decode.py`` knows nothing else of them, so any object with these methods takes part. The tensors' shapes are in
``types.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import Tensor

from surefoot.types import Capture, DraftTree, FinishReason, Plan, TargetOutput, Tokens, Verdict


class Cache(Protocol):
    """A transaction over one sequence: tentative nodes of the open round lie beyond the committed tokens."""

    @property
    def length(self) -> int:
        """Committed tokens."""
        ...

    @property
    def capacity(self) -> int:
        """Tokens, committed and tentative together, that fit; fixed when the cache is made."""
        ...

    def commit(self, path: Sequence[int]) -> None:
        """Keeps the nodes of ``path`` (indices of the open round, root first), forgets the rest, closes the round."""
        ...

    def rollback(self) -> None:
        """Forgets all that is tentative; a no-op when no round is open."""
        ...

    def restorable(self, length: int) -> int:
        """The longest committed length, at most ``length``, that :meth:`truncate` can go back to; 0 always is one."""
        ...

    def truncate(self, length: int) -> None:
        """Goes back to an earlier committed length that is restorable, between rounds."""
        ...

    def fork(self, capacity: int) -> Cache:
        """A cache of its own with the same committed tokens, between rounds."""
        ...


class Target(Protocol):
    """A model we trust: its draws are the answer."""

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        ...

    @property
    def context_length(self) -> int:
        """Most tokens a sequence may have."""
        ...

    @property
    def strict(self) -> bool:
        """Whether a row's bits are known not to depend on what is computed beside it."""
        ...

    def new_cache(self, length: int, *, spare: int = 0) -> Cache:
        """An empty cache for one sequence of at most ``length`` tokens, with room for ``spare`` tentative ones beyond.

        Whatever depends on how long a sequence gets is chosen here, by ``length`` alone.
        """
        ...

    def serves(self, cache: Cache, length: int) -> bool:
        """Whether the committed tokens of ``cache`` lie there as in a cache for a sequence of at most ``length``."""
        ...

    def prefill(self, tokens: Sequence[int], cache: Cache, capture: Capture) -> Iterator[tuple[Tokens, TargetOutput]]:
        """Feeds committed tokens chunk by chunk; the last output carries the last row's logits, ``[-1]``."""
        ...

    def score(self, rounds: Sequence[tuple[DraftTree, Cache]], capture: Capture) -> list[TargetOutput]:
        """Appends each tree's nodes to its cache's open round (opened if need be) in one forward.

        May be called again before the commit; parents then index all nodes of the round.
        """
        ...

    def embed(self, tokens: Tensor) -> Tensor:
        """Input embeddings of ``tokens``: ``[...] -> [..., H]``."""
        ...

    def unembed(self, hidden: Tensor) -> Tensor:
        """Logits of normalised hidden states: ``[..., H] -> [..., V]``, at least fp32."""
        ...


class Sampler(Protocol):
    """Draws the tokens of one request.

    It holds the history (prompt and emitted tokens). ``prefix`` is always the path of drafted tokens between that
    history and the token to be drawn, so that row ``i`` sees exactly its own past.
    """

    @property
    def greedy_rows(self) -> bool:
        """Whether every draw is the plain argmax of its row, so that :meth:`draw_rows` may take them all at once."""
        ...

    def draw_rows(self, logits: Tensor) -> Sequence[int]:
        """The greedy tokens of rows ``[N, V]``, ties to the lowest id.

        A row that no token can be drawn from gives -1; only one the target walks to is an error.
        """
        ...

    def draw(self, logits: Tensor, prefix: Sequence[int] = ()) -> int:
        """The target's own token for the position after ``prefix``, from its row ``[V]``."""
        ...

    def draft(self, logits: Tensor, prefix: Sequence[int], *, shared_noise: bool) -> tuple[int, Tensor | None]:
        """A drafter's guess from its own row ``[V]``: the argmax, or the draw under the shared position noise, in whose
        place a sample is drawn with its law ``[V]`` where the request's acceptance is ``reject``."""
        ...

    def law(self, logits: Tensor, prefix: Sequence[int] = ()) -> Tensor:
        """The processed probabilities fp64 ``[V]`` of the position after ``prefix``."""
        ...

    @property
    def choices(self) -> Choices:
        """The request's own streams of randomness, used by ``acceptance="reject"`` alone."""
        ...

    def advance(self, tokens: Sequence[int]) -> None:
        """Appends emitted tokens to the history and opens the next round's streams."""
        ...


class Choices(Protocol):
    """A source of random choices: production binds it to counter-based streams, a proof to an enumerating oracle.

    ``node`` is the tree node the choice belongs to and ``purpose`` its role there; with the seed and the round they
    key a stream, so no two choices share randomness.
    """

    def categorical(self, probs: Tensor, node: int, purpose: str) -> int:
        """An index drawn with probabilities ``probs [V]``; never one of probability zero."""
        ...

    def bernoulli(self, probability: float, node: int, purpose: str) -> bool:
        """True with ``probability``, by strict comparison: never at 0, always at 1."""
        ...


class Drafter(Protocol):
    """One sequence's guesses.

    Tokens that the target did not compute again, kept by a conversation, are observed as a prefill chunk without rows,
    and only by a drafter whose ``capture`` is empty.
    """

    @property
    def capture(self) -> Capture:
        """What it wants to see of the target."""
        ...

    def observe(self, tokens: Sequence[int], out: TargetOutput, path: Sequence[int] | None) -> None:
        """Learns committed tokens: ``tokens[i]`` was fed at row ``path[i]`` of ``out``; None: a prefill chunk's rows.

        ``out`` is valid until the next ``score``.
        """
        ...

    def propose(self, root: int, plan: Plan, sampler: Sampler) -> DraftTree:
        """A tree rooted at ``root`` within the plan; the root alone where it has no guess."""
        ...

    def truncate(self, length: int) -> None:
        """Goes back to the first ``length`` tokens it observed, between rounds."""
        ...

    def close(self) -> None:
        """Frees what the sequence held."""
        ...


class DrafterModel(Protocol):
    """Shared weights of a drafter."""

    @property
    def method(self) -> str:
        """What its way of guessing is called: ``lookup``, ``draft``, ..."""
        ...

    def start(self, target: Target) -> Drafter:
        """A drafter for one new sequence of ``target``."""
        ...


class Policy(Protocol):
    """Decides what to draft next, and whether at all."""

    def plan(self, remaining: int) -> Plan:
        """The next round's allowance when ``remaining`` more tokens may be emitted."""
        ...

    def update(self, verdict: Verdict, seconds: float) -> None:
        """Learns how a round went and what it cost."""
        ...


class Stops(Protocol):
    """Ends a request."""

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether the request was cancelled from outside: asked between a prefill's chunks; later ``take`` ends it."""
        ...

    def take(self, verdict: Verdict, logits: Tensor) -> tuple[int, FinishReason | None]:
        """Reads the tokens a round emits, in order: how many stand, and why the request ends if it does.

        Token ``i`` was drawn from row ``verdict.path[i]`` of ``logits [N, V]``, the prefill's from its last row.
        """
        ...
