"""The round, for one sequence and for many: draft, score, verify, commit, observe.

Invariants, which hold before the first round and after every round, whatever was drafted and accepted:

- the target's cache holds every committed token except the last one, the root;
- ``drafter context + [root] == prompt + emitted``;
- nothing unverified is ever committed, so nothing committed is ever taken back;
- a round is atomic: no caller's code runs between propose and observe but ``Stops.take``, which comes before the
  commit; if anything fails, the cache is rolled back to the tokens committed before.

Plain decoding is this loop with ``drafters/none.py``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from torch import Tensor

from surefoot.drafters.none import NoDraft
from surefoot.errors import DrafterError, SurefootError, TargetError
from surefoot.protocols import Cache, Drafter, Policy, Sampler, Stops, Target
from surefoot.stats import Tally
from surefoot.tree import chain, depths
from surefoot.types import Capture, DraftTree, FinishReason, Plan, TargetOutput, Tokens, Verdict, host_tokens

Verify = Callable[[DraftTree, Tensor, Sampler], Verdict]
"""``verify.verify`` or ``verify.verify_reject``."""


@dataclass(slots=True, kw_only=True)
class Decoding:
    """One sequence being decoded: ``prefill``, then ``draft`` and ``absorb`` in turn, then ``close``."""

    cache: Cache
    drafter: Drafter
    sampler: Sampler
    stops: Stops
    policy: Policy
    verify: Verify
    vocab_size: int
    tally: Tally = field(default_factory=Tally)
    finish_reason: FinishReason | None = None
    root: int = -1
    failed: bool = False
    _draft_seconds: float = 0.0

    def prefill(self, target: Target, prompt: Sequence[int]) -> Verdict:
        """Feeds the prompt and draws the first token: plain decoding's time to first token."""
        started = perf_counter()
        logits: Tensor | None = None
        with _target_faults():
            for tokens, out in target.prefill(prompt, self.cache, self.drafter.capture):
                self._observe(tokens, out, None)
                logits = out.logits
        if logits is None:
            raise TargetError("the prefill gave no logits; expected the last row's with the last chunk")
        token = self.sampler.draw(logits[-1])
        self.tally.seconds.prefill += perf_counter() - started
        first = Verdict(path=(), fed=(), next_token=token, next_origin="plain", num_drafted=0)
        return self._emit(self._cut(first))

    def draft(self) -> DraftTree:
        """The round's tree: within the plan, rooted at the last emitted token."""
        started = perf_counter()
        plan = self.policy.plan(self.stops.remaining)
        try:
            tree = self.drafter.propose(self.root, plan, self.sampler)
            self._check_tree(tree, plan)
        except Exception as error:  # noqa: BLE001  (a failing drafter must not cost the answer)
            self._drop_drafter(error)
            tree = chain((self.root,))
        self._draft_seconds = perf_counter() - started
        self.tally.seconds.draft += self._draft_seconds
        return tree

    def absorb(self, tree: DraftTree, out: TargetOutput, score_seconds: float = 0.0) -> Verdict:
        """Draws, cuts, commits, and lets the drafter learn what was committed."""
        seconds = self.tally.seconds
        started = perf_counter()
        assert out.logits is not None
        verdict = self._cut(self.verify(tree, out.logits, self.sampler))
        verified = perf_counter()
        self.cache.commit(verdict.path)
        committed = perf_counter()
        self._observe(verdict.fed, out, verdict.path)
        observed = perf_counter()
        seconds.score += score_seconds
        seconds.verify += verified - started
        seconds.commit += committed - verified
        seconds.observe += observed - committed
        self.policy.update(verdict, self._draft_seconds + score_seconds + observed - started)
        self.tally.add(verdict, max(depths(tree.parents)))
        return self._emit(verdict)

    def close(self) -> None:
        """Leaves the cache valid: what was committed stays, what was tentative goes."""
        try:
            self.cache.rollback()
        finally:
            self.drafter.close()

    def _check_tree(self, tree: DraftTree, plan: Plan) -> None:
        """Holds a drafter to its plan, the root and the vocabulary."""
        depth = max(depths(tree.parents), default=0)
        if not 1 <= len(tree) <= plan.num_nodes + 1 or depth > plan.depth:
            raise DrafterError(f"it proposed {len(tree) - 1} nodes, depth {depth}; the plan allows {plan}")
        tokens = host_tokens(tree.tokens)  # the ids are needed on the host for the walk anyway
        if len(tokens) != len(tree) or tokens[0] != self.root or min(tokens) < 0 or max(tokens) >= self.vocab_size:
            raise DrafterError(
                f"it proposed ids {tokens} for {len(tree)} nodes; expected the root {self.root} first and ids below "
                f"{self.vocab_size}"
            )

    def _cut(self, verdict: Verdict) -> Verdict:
        count, self.finish_reason = self.stops.take(verdict)
        return verdict.cut(count)

    def _emit(self, verdict: Verdict) -> Verdict:
        self.sampler.advance(verdict.emitted)
        self.root = verdict.next_token
        return verdict

    def _observe(self, tokens: Tokens, out: TargetOutput, path: Sequence[int] | None) -> None:
        try:
            self.drafter.observe(tokens, out, path)
        except Exception as error:  # noqa: BLE001  (as in draft)
            self._drop_drafter(error)

    def _drop_drafter(self, error: Exception) -> None:
        """Goes on plainly for the rest of the request: warned, and counted in ``fallbacks``."""
        failed, self.drafter = self.drafter, NoDraft()
        self.tally.fallbacks += 1
        warnings.warn(
            f"the drafter {type(failed).__name__} failed and is dropped for this request: "
            f"{type(error).__name__}: {error}",
            RuntimeWarning,
            stacklevel=3,
        )
        failed.close()


def decode(target: Target, prompt: Sequence[int], decoding: Decoding) -> Iterator[Verdict]:
    """Decodes one sequence to its end; a verdict per round, the prefill's first.

    Closing the iterator anywhere leaves the cache valid.
    """
    try:
        yield decoding.prefill(target, prompt)
        while decoding.finish_reason is None:
            yield from advance(target, [decoding])
    finally:
        decoding.close()


def advance(target: Target, decodings: Sequence[Decoding]) -> list[Verdict]:
    """One round of several sequences in one forward (one per distinct ``Capture``); their verdicts in order.

    Whatever is raised, a sequence without a verdict keeps what it had committed and can be advanced again: its draws
    are keyed by position, so it goes on as if nothing had happened. The sequence that failed, if it was one, has
    ``failed`` set.

    Raises:
        TargetError: the target failed.
    """
    trees = [decoding.draft() for decoding in decodings]
    groups: dict[Capture, list[int]] = {}
    for i, decoding in enumerate(decodings):
        groups.setdefault(decoding.drafter.capture, []).append(i)
    verdicts: dict[int, Verdict] = {}
    try:
        for capture, group in groups.items():
            started = perf_counter()
            outs = _score(target, [(trees[i], decodings[i].cache) for i in group], capture)
            share = (perf_counter() - started) / len(group)
            for i, out in zip(group, outs, strict=True):
                decodings[i].failed = True
                verdicts[i] = decodings[i].absorb(trees[i], out, share)
                decodings[i].failed = False
    finally:
        for i, decoding in enumerate(decodings):
            if i not in verdicts:
                decoding.cache.rollback()
    return [verdicts[i] for i in range(len(decodings))]


def _score(target: Target, rounds: list[tuple[DraftTree, Cache]], capture: Capture) -> list[TargetOutput]:
    with _target_faults():
        return target.score(rounds, capture)


class _target_faults:  # noqa: N801  (reads as a statement)
    """Turns whatever a target raises into a ``TargetError``; our own errors pass."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, SurefootError):
            raise TargetError(f"the target failed: {type(error).__name__}: {error}") from error
