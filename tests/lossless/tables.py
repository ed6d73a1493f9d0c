"""Targets and drafters that are tables with exact zeros, for proofs with the production sampler."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import torch
from tests.tables import TableTarget
from torch import Tensor

from surefoot.protocols import Sampler, Target
from surefoot.tree import chain
from surefoot.types import Capture, DraftTree, Plan, TargetOutput, Verdict

PROMPT = (0, 1, 0, 1)


class ZeroTable(TableTarget):
    """A table in which each row gives some tokens no probability at all, never all of them."""

    def row(self, context: Sequence[int]) -> Tensor:
        logits = super().row(context)
        zeros = zlib.crc32(bytes([self.seed, 77, *context])) % 2 ** (self.vocab_size - 1)
        for token in range(self.vocab_size - 1):
            if zeros >> token & 1 and token % 2 == len(context) % 2:
                logits[(token + len(context)) % self.vocab_size] = -math.inf
        return logits


class DepthPolicy:
    """Drafts to a depth, with room for one sibling of each drafted token."""

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def plan(self, remaining: int) -> Plan:
        depth = max(0, min(self.depth, remaining - 1))
        return Plan(num_nodes=2 * depth, depth=depth, width=2)

    def update(self, verdict: Verdict, seconds: float) -> None:
        pass


class TableDrafter:
    """Its own table on its own context: a chain by default, with wrong siblings around it where ``branches``."""

    capture = Capture()

    def __init__(self, table: TableTarget, *, shared_noise: bool = True, branches: bool = False) -> None:
        self.table = table
        self.shared_noise = shared_noise
        self.branches = branches
        self.context: list[int] = []

    def start(self, target: Target) -> TableDrafter:
        return TableDrafter(self.table, shared_noise=self.shared_noise, branches=self.branches)

    def observe(self, tokens: Sequence[int], out: TargetOutput, path: Sequence[int] | None) -> None:
        self.context += tokens

    def propose(self, root: int, plan: Plan, sampler: Sampler) -> DraftTree:
        drafted: list[int] = []
        laws: list[Tensor] = []
        for _ in range(plan.depth):
            row = self.table.row([*self.context, root, *drafted])
            token, law = self.guess(row, drafted, sampler)
            drafted.append(token)
            if law is not None:
                laws.append(law)
        if self.branches and not laws:
            return with_siblings(root, drafted, self.table.vocab_size)
        return chain((root, *drafted), q=torch.stack(laws) if laws else None)

    def guess(self, row: Tensor, drafted: Sequence[int], sampler: Sampler) -> tuple[int, Tensor | None]:
        return sampler.draft(row, drafted, shared_noise=self.shared_noise)

    def close(self) -> None:
        pass


def with_siblings(root: int, drafted: Sequence[int], vocab_size: int) -> DraftTree:
    """The chain with another child before each drafted token, so that no path is a prefix of the nodes."""
    tokens, parents, parent = [root], [-1], 0
    for token in drafted:
        tokens += [(token + 1) % vocab_size, token]
        parents += [parent, parent]
        parent = len(tokens) - 1
    return DraftTree(tokens=torch.tensor(tokens), parents=tuple(parents))
