"""The seam between the loop and a way of drafting: what each brings to be trained.

Shape suffixes: W sequences side by side, S tokens of one, K tokens of a block after its anchor.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from torch import Tensor, nn

from surefoot.protocols import DrafterModel
from surefoot.train.data import Sequences
from surefoot.train.features import Features
from surefoot.types import Capture


class Lesson(Protocol):
    """What is learnt from some sequences in one step."""

    @property
    def weight(self) -> float:
        """The sum of the weights of all its losses."""
        ...


LessonT = TypeVar("LessonT", bound=Lesson)


class Method(Protocol[LessonT]):
    """A drafter being trained."""

    @property
    def network(self) -> nn.Module:
        """Its parameters, in fp32."""
        ...

    @property
    def capture(self) -> Capture:
        """What it wants to see of the target."""
        ...

    @property
    def num_drafts(self) -> int:
        """Tokens it drafts at most in a round, K."""
        ...

    def lesson(self, sequences: Sequences, streams: Sequence[np.random.Generator]) -> LessonT:
        """What to learn from sequences side by side, a stream of randomness for each."""
        ...

    def loss(self, lesson: LessonT, features: Features) -> Tensor:
        """The weighted sum of the losses, a differentiable scalar in fp32."""
        ...

    def correct(self, lesson: LessonT, features: Features) -> Tensor:
        """For every whole block, whether its ``K`` guesses are the tokens that follow: bool ``[blocks, K]``."""
        ...

    def correct_everywhere(self, sequences: Sequences, features: Features) -> Tensor:
        """The same for blocks that begin at every position but the first of one sequence, and may end early: bool
        ``[S - 1, K]``, False past the end."""
        ...

    def load(self, folder: Path) -> DrafterModel:
        """What :meth:`save` wrote, as it drafts; all that it drafts in one forward."""
        ...

    def save(self, folder: Path) -> None:
        """Writes the drafter as its public layout has it; each file is whole or not there."""
        ...
