"""Times a drafter at work: what a draft costs by its length, and what reading the prompt costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter

from surefoot.control.cost import Clock, DraftCost
from surefoot.options import SamplingParams
from surefoot.protocols import Drafter, DrafterModel, Target
from surefoot.sampling import RequestSampler
from surefoot.types import Plan


class DraftTimer:
    """Times greedy drafts at the end of ``tokens``, whose last is the root.

    It is a ``before`` of :func:`surefoot.control.cost.measure_cost`: drafts and forwards then alternate as in rounds,
    and each finds the processor's caches as the other left them.
    """

    def __init__(
        self, model: DrafterModel, target: Target, tokens: Sequence[int], *, clock: Clock = perf_counter
    ) -> None:
        assert len(tokens) > 1, tokens
        self._model, self._target, self._clock = model, target, clock
        self._tokens = tuple(tokens)
        self._sampler = RequestSampler(SamplingParams(), self._tokens, seed=0, vocab_size=target.vocab_size)
        self._measured: dict[int, list[float]] = {}
        self._drafter = self._reader()

    def __call__(self, rows: int) -> None:
        """Drafts ``rows - 1`` tokens, as a round of so many rows does."""
        if rows > 1:
            self._measured.setdefault(rows - 1, []).append(self._seconds(self._drafter, rows - 1))

    def cost(self, repeats: int = 3) -> DraftCost:
        """What was measured so far, the first draft of each length left out, as it warms up.

        The reading of the prompt is measured here, ``repeats`` times, by what a new drafter's first draft takes longer.
        """
        line = DraftCost.of({count: seconds[1:] or seconds for count, seconds in self._measured.items()})
        firsts = []
        for _ in range(repeats):
            drafter = self._reader()
            try:
                firsts.append(self._seconds(drafter, 1))
            finally:
                drafter.close()
        return replace(line, reading=max(0.0, median(firsts) - line.at(1)))

    def close(self) -> None:
        """Frees the drafter."""
        self._drafter.close()

    def _reader(self) -> Drafter:
        """A new drafter that has observed all tokens but the root."""
        drafter = self._model.start(self._target)
        cache = self._target.new_cache(len(self._tokens))
        for tokens, out in self._target.prefill(self._tokens[:-1], cache, drafter.capture):
            drafter.observe(tokens, out, None)
        return drafter

    def _seconds(self, drafter: Drafter, count: int) -> float:
        started = self._clock()
        tree = drafter.propose(self._tokens[-1], Plan(num_nodes=count, depth=count), self._sampler)
        _ = tree.ids  # the loop reads them too; on a device it waits for them here
        return self._clock() - started
