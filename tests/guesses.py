"""Drafters for tests: they know or do not know the answer, branch, and fail on demand."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from surefoot.drafters.predicted import PredictedDrafter
from surefoot.protocols import DrafterModel, Sampler, Target
from surefoot.types import Capture, DraftTree, Plan, TargetOutput, Tokens

Guess = Callable[[Sequence[int]], list[list[int]]]
"""Context (root included) -> branches, each a list of tokens after the root."""


class Guesser:
    """Both the model and its one sequence: proposes the branches ``guess`` gives for what it has observed."""

    def __init__(self, guess: Guess) -> None:
        self.guess = guess
        self.context: list[int] = []
        self.closed = 0
        self.contexts_at_propose: list[list[int]] = []

    method = "guess"
    capture = Capture()

    def start(self, target: Target) -> Guesser:
        self.context = []
        return self

    def observe(self, tokens: Sequence[int], out: TargetOutput, path: Sequence[int] | None) -> None:
        self.context += tokens

    def propose(self, root: int, plan: Plan, sampler: Sampler) -> DraftTree:
        self.contexts_at_propose.append([*self.context, root])
        tokens, parents = [root], [-1]
        for branch in self.guess([*self.context, root]) if plan.num_nodes else ():
            parent = 0
            for token in branch[: plan.depth]:
                if len(tokens) > plan.num_nodes:
                    break
                tokens.append(token)
                parents.append(parent)
                parent = len(tokens) - 1
        return DraftTree(tokens=torch.tensor(tokens), parents=tuple(parents))

    def truncate(self, length: int) -> None:
        assert 0 <= length <= len(self.context)
        del self.context[length:]

    def close(self) -> None:
        self.closed += 1


@dataclass(frozen=True)
class Predicted:
    """A prediction as a drafter of its own, over the one that is used beside it."""

    prediction: Tokens
    inner: DrafterModel
    method = "predicted"

    def start(self, target: Target) -> PredictedDrafter:
        return PredictedDrafter(self.prediction, self.inner.start(target))


def oracle(answer: Sequence[int], prompt_length: int, depth: int = 8) -> Guess:
    """Guesses what is known to come."""
    whole = list(answer)

    def guess(context: Sequence[int]) -> list[list[int]]:
        done = len(context) - prompt_length
        return [whole[done : done + depth]]

    return guess


def half_right(answer: Sequence[int], prompt_length: int, vocab_size: int) -> Guess:
    """Right for 0 to 3 tokens, then wrong; every other time a wrong sibling comes first, so that the path is no prefix
    of the nodes. Both depend on the context's length alone, each in its own way."""
    right = oracle(answer, prompt_length, depth=4)

    def guess(context: Sequence[int]) -> list[list[int]]:
        (branch,) = right(context)
        number = random.Random(len(context)).randrange(8)
        count = number % 4
        wrong = [(token + 1) % vocab_size for token in branch]
        branches = [branch[:count] + wrong[count:]]
        return branches if number < 4 else [wrong[:1], *branches]

    return guess
