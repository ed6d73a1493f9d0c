"""Exact output laws: every branch of every choice, by replaying the production round under an enumerating oracle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from tests.lossless.tables import PROMPT, DepthPolicy, TableDrafter, ZeroTable
from tests.tables import TableCache
from torch import Tensor

from surefoot.decode import Decoding, Verify, advance, prefill
from surefoot.options import SamplingParams, SpeculativeOptions
from surefoot.protocols import Choices, Drafter
from surefoot.sampling import RequestSampler
from surefoot.stops import Limits, NoText, RequestStops
from surefoot.types import Tokens
from surefoot.verify import verify_reject

Law = dict[Tokens, float]
T = TypeVar("T")


class Oracle:
    """Choices that are written on a tape, branch after branch, depth first."""

    def __init__(self) -> None:
        self.tape: list[list[tuple[int, float]]] = []
        self.read = 0
        self.weight = 1.0

    def categorical(self, probs: Tensor, node: int, purpose: str) -> int:
        return self.choose([(i, p) for i, p in enumerate(probs.tolist()) if p > 0])

    def bernoulli(self, probability: float, node: int, purpose: str) -> bool:
        return bool(self.choose([(i, p) for i, p in ((1, probability), (0, 1 - probability)) if p > 0]))

    def choose(self, options: list[tuple[int, float]]) -> int:
        if self.read == len(self.tape):
            self.tape.append(options)
        picked, probability = self.tape[self.read][0]
        self.read += 1
        self.weight *= probability
        return picked

    def next_branch(self) -> bool:
        """Turns to the next branch; False after the last."""
        while self.tape and len(self.tape[-1]) == 1:
            self.tape.pop()
        self.read, self.weight = 0, 1.0
        if self.tape:
            self.tape[-1] = self.tape[-1][1:]
        return bool(self.tape)


def branches(run: Callable[[Choices], T]) -> Iterator[tuple[T, float]]:
    """What ``run`` gives on every branch of its choices, with the branch's probability."""
    oracle = Oracle()
    while True:
        result = run(oracle)
        yield result, oracle.weight
        if not oracle.next_branch():
            return


@dataclass(frozen=True)
class State:
    """All that a sequence is between two rounds, so that equal states may be merged."""

    emitted: Tokens = ()
    cached: Tokens = ()
    observed: Tokens = ()
    root: int = -1
    ended: bool = False


@dataclass(frozen=True)
class Setting:
    """Target, drafter and parameters of a proof, and the parts a negative control replaces."""

    params: SamplingParams
    table: ZeroTable
    drafter: TableDrafter
    depth: int
    length: int
    stop_ids: tuple[int, ...] = ()
    verify: Verify = verify_reject
    cache_type: type[TableCache] = TableCache

    def sampler(self, emitted: Tokens, choices: Choices | None = None) -> RequestSampler:
        """A sampler that has seen the prompt and these tokens."""
        sampler = RequestSampler(
            self.params,
            PROMPT,
            seed=0,
            vocab_size=self.table.vocab_size,
            stop_ids=self.stop_ids,
            speculative=SpeculativeOptions(acceptance="reject"),
            choices=choices,
        )
        sampler.advance(emitted)
        return sampler

    def decoding(self, state: State, choices: Choices | None, drafter: Drafter) -> Decoding:
        """The production objects of a sequence in a state."""
        cache = self.cache_type(64)
        cache.tokens = list(state.cached)
        limits = Limits(stop_ids=self.stop_ids, max_tokens=self.length - len(state.emitted), at_context_end=False)
        return Decoding(
            cache=cache,
            drafter=drafter,
            sampler=self.sampler(state.emitted, choices),
            stops=RequestStops(limits, NoText()),
            policy=DepthPolicy(self.depth),
            verify=self.verify,
            vocab_size=self.table.vocab_size,
            root=state.root,
        )

    def step(self, state: State, choices: Choices) -> State:
        """The prefill from the first state, one production round from any other."""
        drafter = self.drafter.start(self.table)
        drafter.context = list(state.observed)
        decoding = self.decoding(state, choices, drafter)
        if state.root < 0:
            (verdict,) = prefill(self.table, PROMPT, [decoding])
        else:
            (verdict,) = advance(self.table, [decoding])
        assert decoding.tally.fallbacks == 0
        assert isinstance(decoding.cache, TableCache)
        return State(
            emitted=state.emitted + verdict.emitted,
            cached=tuple(decoding.cache.tokens),
            observed=tuple(drafter.context),
            root=decoding.root,
            ended=decoding.finish_reason is not None,
        )

    def speculative_law(self) -> Law:
        """The law of the emitted tokens, one round per distinct state."""
        law: defaultdict[Tokens, float] = defaultdict(float)
        live = {State(): 1.0}
        while live:
            reached: defaultdict[State, float] = defaultdict(float)
            for state, weight in live.items():
                for after, share in branches(lambda choices, state=state: self.step(state, choices)):
                    if after.ended:
                        law[after.emitted] += weight * share
                    else:
                        reached[after] += weight * share
            live = reached
        return dict(law)

    def plain_law(self) -> Law:
        """The law of drawing token by token, by definition."""
        law: Law = {}
        live: Law = {(): 1.0}
        while live:
            reached: Law = {}
            for emitted, weight in live.items():
                probs = self.sampler(emitted).law(self.table.row([*PROMPT, *emitted])).tolist()
                for token, prob in enumerate(probs):
                    if prob > 0:
                        ends = token in self.stop_ids or len(emitted) + 1 == self.length
                        (law if ends else reached)[(*emitted, token)] = weight * prob
            live = reached
        return law

    def distance(self) -> float:
        """Total variation between the two laws."""
        return total_variation(self.speculative_law(), self.plain_law())


def total_variation(first: Law, second: Law) -> float:
    """Half the sum of absolute differences."""
    return sum(abs(first.get(key, 0.0) - second.get(key, 0.0)) for key in first.keys() | second.keys()) / 2
