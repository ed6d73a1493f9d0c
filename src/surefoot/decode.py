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
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import NoReturn

from torch import Tensor

from surefoot.drafters.none import NoDraft
from surefoot.errors import SurefootError, TargetError
from surefoot.protocols import Cache, Drafter, Policy, Sampler, Stops, Target
from surefoot.stats import RoundRecord, Seconds, Tally
from surefoot.tree import chain, check_proposal, depth_of
from surefoot.types import Capture, DraftTree, FinishReason, TargetOutput, Tokens, Verdict

Verify = Callable[[DraftTree, Tensor, Sampler], Verdict]
"""``verify.verify`` or ``verify.verify_reject``."""


@dataclass(slots=True, kw_only=True)
class Decoding:
    """One sequence being decoded: ``prefill`` below, then ``draft`` and ``absorb`` in turn, then ``close``.

    Attributes:
        keeps_drafter: the drafter outlives the request; ``close`` leaves it open, unless it failed.
        on_prompt: called with each chunk of the prompt and the logits ``[N, V]`` of all its rows.
        on_round: called with a record of each round, after it.
        failed: whether this sequence's round failed.
    """

    cache: Cache
    drafter: Drafter
    sampler: Sampler
    stops: Stops
    policy: Policy
    verify: Verify
    vocab_size: int
    keeps_drafter: bool = False
    on_prompt: Callable[[Tokens, Tensor], None] | None = None
    on_round: Callable[[RoundRecord], None] | None = None
    tally: Tally = field(default_factory=Tally)
    finish_reason: FinishReason | None = None
    root: int = -1
    failed: bool = False
    _draft_seconds: float = 0.0
    _closed: bool = False

    def begin(self, logits: Tensor) -> Verdict:
        """Draws the first token from the prompt's last row, ``logits [1, V]`` or more rows: the first root."""
        started = perf_counter()
        token = self.sampler.draw(logits[-1])
        first = Verdict(path=(), fed=(), next_token=token, next_origin="plain", num_drafted=0)
        verdict = self._cut(first, logits)
        self._emit(verdict)
        self.tally.seconds.prefill += perf_counter() - started
        return verdict

    def draft(self) -> DraftTree:
        """The round's tree: within the plan, rooted at the last emitted token."""
        started = perf_counter()
        plan = self.policy.plan(self.stops.remaining)
        try:
            tree = self.drafter.propose(self.root, plan, self.sampler)
            check_proposal(tree, plan, self.root, self.vocab_size)
        except Exception as error:  # noqa: BLE001  (a failing drafter must not cost the answer)
            self._drop_drafter(error)
            tree = chain((self.root,))
        self._draft_seconds = perf_counter() - started
        return tree

    def absorb(self, tree: DraftTree, out: TargetOutput, score_seconds: float = 0.0) -> Verdict:
        """Draws, cuts, commits, and lets the drafter learn what was committed."""
        started = perf_counter()
        logits = out.logits
        assert logits is not None
        verdict = self._cut(self.verify(tree, logits, self.sampler), logits)
        verified = perf_counter()
        self.cache.commit(verdict.path)
        committed = perf_counter()
        self.observe(verdict.fed, out, verdict.path)
        observed = perf_counter()
        tally = self.tally
        tally.add(verdict, depth_of(tree.parents) if verdict.num_drafted else 0)
        spent = tally.seconds
        spent.draft += self._draft_seconds
        spent.score += score_seconds
        spent.verify += verified - started
        spent.commit += committed - verified
        spent.observe += observed - committed
        self.policy.update(verdict, self._draft_seconds + score_seconds + observed - started)
        if self.on_round is not None:
            self._report(tree, verdict, (score_seconds, verified - started, committed - verified, observed - committed))
        self._emit(verdict)
        return verdict

    def observe(self, tokens: Tokens, out: TargetOutput, path: Sequence[int] | None) -> None:
        """Shows the drafter what was committed."""
        try:
            self.drafter.observe(tokens, out, path)
        except Exception as error:  # noqa: BLE001  (as in draft)
            self._drop_drafter(error)

    def close(self) -> None:
        """Leaves the cache valid: what was committed stays, what was tentative goes. Does nothing the second time."""
        if self._closed:
            return
        self._closed = True
        try:
            self.cache.rollback()
        finally:
            if not self.keeps_drafter:
                self.drafter.close()

    def _report(self, tree: DraftTree, verdict: Verdict, after_draft: tuple[float, float, float, float]) -> None:
        assert self.on_round is not None
        score, verify, commit, observe = after_draft
        seconds = Seconds(draft=self._draft_seconds, score=score, verify=verify, commit=commit, observe=observe)
        number, ids = self.tally.rounds, tree.ids
        self.on_round(RoundRecord(number=number, tokens=ids, parents=tree.parents, verdict=verdict, seconds=seconds))

    def _cut(self, verdict: Verdict, logits: Tensor) -> Verdict:
        count, self.finish_reason = self.stops.take(verdict, logits)
        return verdict.cut(count)

    def _emit(self, verdict: Verdict) -> None:
        self.sampler.advance(verdict.emitted)
        self.root = verdict.next_token

    def _drop_drafter(self, error: Exception) -> None:
        """Goes on plainly for the rest of the request: warned, and counted in ``fallbacks``."""
        failed, self.drafter = self.drafter, NoDraft()
        self.tally.fallbacks += 1
        reason = f"{type(error).__name__}: {error}"
        try:
            failed.close()
        except Exception as another:  # noqa: BLE001  (as in draft)
            reason += f"; closing it failed too: {type(another).__name__}: {another}"
        warnings.warn(
            f"the drafter {type(failed).__name__} failed and is dropped for this request: {reason}",
            RuntimeWarning,
            stacklevel=3,
        )


def decode(target: Target, prompt: Sequence[int], decoding: Decoding) -> Iterator[Verdict]:
    """Decodes one sequence to its end; a verdict per round, the prefill's first.

    Closing the iterator anywhere leaves the cache valid.
    """
    try:
        yield from prefill(target, prompt, [decoding])
        while decoding.finish_reason is None:
            yield _advance_one(target, decoding)
    finally:
        decoding.close()


def prefill(target: Target, prompt: Sequence[int], decodings: Sequence[Decoding]) -> list[Verdict]:
    """Feeds the prompt once and draws each sequence's first token: plain decoding's time to first token.

    Several sequences of one prompt share the first one's cache until it is full; then the others go on with forks.
    Empty where the request was cancelled on the way.
    """
    logits = read_prompt(target, prompt, decodings)
    if logits is None:
        return []
    first = decodings[0]
    for other in decodings[1:]:
        other.cache = first.cache.fork(first.cache.capacity)
    return [decoding.begin(logits) for decoding in decodings]


def read_prompt(target: Target, prompt: Sequence[int], decodings: Sequence[Decoding]) -> Tensor | None:
    """Feeds what the first one's cache lacks of the prompt; the logits of the last chunk, its last row last.

    None where all were cancelled before the end: their ``finish_reason`` says so, and what was fed stays committed.
    """
    started = perf_counter()
    first = decodings[0]
    capture = first.drafter.capture
    if first.on_prompt is not None:
        capture = replace(capture, logits=True)
    logits: Tensor | None = None
    try:
        for tokens, out in target.prefill(prompt[first.cache.length :], first.cache, capture):
            for decoding in decodings:
                decoding.observe(tokens, out, None)
            logits = out.logits
            if first.on_prompt is not None and logits is not None:
                first.on_prompt(tokens, logits)
            if first.cache.length < len(prompt) and all(decoding.stops.cancelled for decoding in decodings):
                for decoding in decodings:
                    decoding.finish_reason = "cancelled"
                return None
    except Exception as error:  # noqa: BLE001  (it is raised again, typed)
        _raise_typed(error)
    if logits is None:
        raise TargetError("the prefill gave no logits; expected the last row's with the last chunk")
    for decoding in decodings:
        decoding.tally.seconds.prefill += perf_counter() - started
    return logits


def advance(target: Target, decodings: Sequence[Decoding]) -> list[Verdict]:
    """One round of several sequences in one forward (one per distinct ``Capture``); their verdicts in order.

    Whatever is raised, a sequence without a verdict keeps what it had committed and can be advanced again: its draws
    are keyed by position, so it goes on as if nothing had happened. The sequence that failed, if it was one, has
    ``failed`` set.

    Raises:
        TargetError: the target failed.
    """
    if len(decodings) == 1:
        return [_advance_one(target, decodings[0])]
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


def _advance_one(target: Target, decoding: Decoding) -> Verdict:
    """:func:`advance` of one sequence, without the tables of several."""
    tree = decoding.draft()
    try:
        started = perf_counter()
        (out,) = _score(target, [(tree, decoding.cache)], decoding.drafter.capture)
        taken = perf_counter() - started
        decoding.failed = True
        verdict = decoding.absorb(tree, out, taken)
        decoding.failed = False
    except BaseException:
        decoding.cache.rollback()
        raise
    return verdict


def _score(target: Target, rounds: list[tuple[DraftTree, Cache]], capture: Capture) -> list[TargetOutput]:
    try:
        return target.score(rounds, capture)
    except Exception as error:  # noqa: BLE001  (it is raised again, typed)
        _raise_typed(error)


def _raise_typed(error: Exception) -> NoReturn:
    """Turns whatever a target raises into a ``TargetError``; our own errors pass."""
    if isinstance(error, SurefootError):
        raise error
    raise TargetError(f"the target failed: {type(error).__name__}: {error}") from error
