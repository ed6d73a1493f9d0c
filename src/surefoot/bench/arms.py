"""The arms of a measurement: plain decoding, and each way of drafting that a pair offers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from surefoot.bench.questions import Question
from surefoot.engine import Engine
from surefoot.errors import OptionError
from surefoot.options import SpeculativeOptions

PLAIN = "plain"
PREDICTION = "prediction"
BRANCHING = ("dflash",)
"""Methods that draft trees where they may; with a tree width above 1 they are measured both ways."""
TREE = "-tree"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way of answering.

    Attributes:
        name: ``plain``, a drafter's method (followed by ``-tree`` where it drafts trees), or ``prediction``.
        speculative: how requests speculate.
        predicts: whether a question's prediction goes along; such an arm answers questions that have one.
    """

    name: str
    speculative: SpeculativeOptions
    predicts: bool = False

    def answers(self, question: Question) -> bool:
        """Whether the question is one for this arm."""
        return question.prediction is not None or not self.predicts


def offered(engine: Engine) -> tuple[str, ...]:
    """The names a pair offers beside plain: lookup, its own drafter's method, and prediction."""
    return (*(method for method in engine.methods if method != "none"), PREDICTION)


def arms(engine: Engine, chosen: Sequence[str], speculative: SpeculativeOptions) -> tuple[Arm, ...]:
    """Plain decoding first, then the arms called ``chosen``, or all that the pair offers where none is named.

    Raises:
        OptionError: the pair does not offer one of them.
    """
    names = offered(engine)
    unknown = [name for name in chosen if name not in names]
    if unknown:
        own = "" if len(names) > 2 else "; a draft model offers draft, a DFlash drafter dflash"
        raise OptionError(f"found method {unknown[0]!r}; expected one of {', '.join(names)}{own}")
    found = [Arm(name=PLAIN, speculative=replace(speculative, method="none", num_draft=0))]
    for name in names:
        if chosen and name not in chosen:
            continue
        # Beside a prediction goes lookup, so that what it adds is seen without another drafter's cost.
        asked = replace(speculative, method="lookup" if name == PREDICTION else name)
        found.append(Arm(name=name, speculative=replace(asked, tree_width=1), predicts=name == PREDICTION))
        if name in BRANCHING and speculative.tree_width > 1:
            found.append(Arm(name=name + TREE, speculative=asked))
    return tuple(found)
