"""A universe in which every draw of the target is written down beforehand, to be walked through the production round.

A row of logits carries nothing but a mark of the context it was computed for, and the sampler looks the context's token
up in the script: a wrong row, a wrong history or a wrong path cannot stay unseen.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from tests.tables import TableCache, TableTarget
from torch import Tensor

from surefoot.decode import Decoding, Verify, decode
from surefoot.stops import Limits, NoText, RequestStops
from surefoot.types import Capture, DraftTree, Plan, TargetOutput, Tokens, Verdict
from surefoot.verify import verify

PROMPT: Tokens = (0, 1, 1)
Shape = tuple[int, ...]


def mixed(context: Sequence[int], salt: int, below: int) -> int:
    """A number below ``below`` that depends on the whole context."""
    return zlib.crc32(bytes([salt, *context])) % below


@dataclass
class Script:
    """The target's draw after every context: ``draws`` along the plain path, mixed from the context elsewhere."""

    vocab_size: int
    draws: Tokens
    contexts: list[Tokens] = field(default_factory=list)
    marks: dict[Tokens, int] = field(default_factory=dict)

    def token(self, context: Tokens) -> int:
        count = len(context) - len(PROMPT)
        if count < len(self.draws) and context == PROMPT + self.draws[:count]:
            return self.draws[count]
        return mixed(context, 1, self.vocab_size)

    def mark(self, context: Tokens) -> int:
        if context not in self.marks:
            self.marks[context] = len(self.contexts)
            self.contexts.append(context)
        return self.marks[context]

    def plain(self, count: int) -> Tokens:
        """The first ``count`` tokens of decoding without any machinery."""
        context = PROMPT
        while len(context) < len(PROMPT) + count:
            context += (self.token(context),)
        return context[len(PROMPT) :]


class ScriptedTarget(TableTarget):
    """Rows that carry the mark of their context."""

    def __init__(self, script: Script, cache_type: type[TableCache] = TableCache) -> None:
        super().__init__(script.vocab_size)
        self.script = script
        self.cache_type = cache_type

    def row(self, context: Sequence[int]) -> Tensor:
        return torch.full((self.vocab_size,), float(self.script.mark(tuple(context))), dtype=torch.float64)

    def new_cache(self, capacity: int) -> TableCache:
        return self.cache_type(capacity)


class ScriptedSampler:
    """Looks draws up; checks that the row drawn from is the one of its history and path."""

    def __init__(self, script: Script, *, greedy_rows: bool) -> None:
        self.script = script
        self.greedy_rows = greedy_rows
        self.history: Tokens = PROMPT

    def draw_rows(self, logits: Tensor) -> list[int]:
        return [self.script.token(self.script.contexts[int(mark)]) for mark in logits[:, 0].tolist()]

    def draw(self, logits: Tensor, prefix: Sequence[int] = ()) -> int:
        context = self.script.contexts[int(logits[0])]
        assert context == self.history + tuple(prefix), "the row belongs to another context"
        return self.script.token(context)

    def advance(self, tokens: Sequence[int]) -> None:
        self.history += tuple(tokens)


class ScriptedDrafter:
    """Proposes a given tree first and trees mixed from the context after it; checks what it is shown."""

    capture = Capture()

    def __init__(self, script: Script, sampler: ScriptedSampler, shape: Shape, guesses: Tokens) -> None:
        self.script = script
        self.sampler = sampler
        self.first: tuple[Shape, Tokens] | None = (shape, guesses)
        self.context: Tokens = ()

    def observe(self, tokens: Sequence[int], out: TargetOutput, path: Sequence[int] | None) -> None:
        for i, token in enumerate(tokens):
            self.context += (token,)
            if path is not None:
                assert out.logits is not None
                assert self.script.contexts[int(out.logits[path[i], 0])] == self.context, "a wrong row was shown"

    def propose(self, root: int, plan: Plan, sampler: ScriptedSampler) -> DraftTree:
        assert (*self.context, root) == sampler.history, "the drafter's context is not what was emitted"
        if self.first is not None:
            shape, guesses = self.first
            self.first = None
        else:
            history = sampler.history
            size = mixed(history, 2, 4)
            shape = (-1, *(mixed(history, 3 + node, node + 1) for node in range(size)))
            guesses = tuple(mixed(history, 13 + node, self.script.vocab_size) for node in range(size))
        tree = DraftTree(tokens=torch.tensor((root, *guesses)), parents=shape)
        return tree if plan.depth >= len(tree) - 1 else DraftTree(tokens=torch.tensor((root,)), parents=(-1,))

    def close(self) -> None:
        pass


class WidePolicy:
    """Allows any tree no deeper than what may be emitted."""

    def plan(self, remaining: int) -> Plan:
        return Plan(num_nodes=remaining + 5, depth=remaining - 1, width=9)

    def update(self, verdict: Verdict, seconds: float) -> None:
        pass


@dataclass(frozen=True)
class Variant:
    """The parts of a run that a negative control replaces."""

    verify: Verify = verify
    cache_type: type[TableCache] = TableCache
    drafter_type: type[ScriptedDrafter] = ScriptedDrafter
    stops_type: type[RequestStops] = RequestStops


PRODUCTION = Variant()


@dataclass(frozen=True)
class Case:
    """One run: the target's draws, the first round's tree, and when the request ends."""

    script: Script
    shape: Shape
    guesses: Tokens
    greedy_rows: bool
    max_tokens: int = 10
    stop_ids: tuple[int, ...] = ()


def run(case: Case, variant: Variant = PRODUCTION) -> list[Verdict]:
    """Decodes a case through the production round and checks everything that must hold; the verdicts."""
    target = ScriptedTarget(case.script, variant.cache_type)
    sampler = ScriptedSampler(case.script, greedy_rows=case.greedy_rows)
    drafter = variant.drafter_type(case.script, sampler, case.shape, case.guesses)
    limits = Limits(stop_ids=case.stop_ids, max_tokens=case.max_tokens, at_context_end=False)
    cache = target.new_cache(64)
    decoding = Decoding(
        cache=cache,
        drafter=drafter,
        sampler=sampler,
        stops=variant.stops_type(limits, NoText()),
        policy=WidePolicy(),
        verify=variant.verify,
        vocab_size=case.script.vocab_size,
    )
    verdicts = []
    for verdict in decode(target, PROMPT, decoding):
        verdicts.append(verdict)
        emitted = sampler.history[len(PROMPT) :]
        assert PROMPT + emitted[:-1] == tuple(cache.tokens), "the cache is not what was emitted"
    expected = ended(case.script.plain(case.max_tokens), case.stop_ids)
    assert emitted == expected, f"emitted {emitted}, the target's draws are {expected}"
    assert decoding.finish_reason == ("stop" if expected[-1] in case.stop_ids else "length")
    assert decoding.tally.fallbacks == 0
    return verdicts


def ended(tokens: Tokens, stop_ids: tuple[int, ...]) -> Tokens:
    """The tokens up to the first stop id, which is kept."""
    for i, token in enumerate(tokens):
        if token in stop_ids:
            return tokens[: i + 1]
    return tokens


def shapes(most_nodes: int) -> Iterator[Shape]:
    """The parents of every tree of at most ``most_nodes`` nodes whose parents come before their children."""
    for size in range(most_nodes):
        for parents in itertools.product(*(range(node + 1) for node in range(size))):
            yield (-1, *parents)


def cases(vocab_size: int, most_nodes: int, num_draws: int, **options: object) -> Iterator[Case]:
    """Every tree up to a size, labelled in every way, against every sequence of draws after the first token."""
    for draws in itertools.product(range(vocab_size), repeat=num_draws):
        script = Script(vocab_size, (1, *draws))
        for shape in shapes(most_nodes):
            for guesses in itertools.product(range(vocab_size), repeat=len(shape) - 1):
                yield Case(script, shape, guesses, **options)  # type: ignore[arg-type]


def run_all(every: Iterable[Case], variant: Variant = PRODUCTION) -> Iterator[list[Verdict]]:
    """The verdicts of each case."""
    return (run(case, variant) for case in every)
