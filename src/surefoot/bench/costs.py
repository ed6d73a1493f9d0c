"""The cost curve of a measured pair: a forward by its number of rows, where the measured answers stood."""

from __future__ import annotations

from collections.abc import Sequence

from surefoot.bench.answers import Comparison
from surefoot.control.cost import CostCurve, measure_cost
from surefoot.protocols import Target

MOST_POINTS = 9


def row_counts(num_draft: int) -> tuple[int, ...]:
    """The row counts to measure: from one row to a round of ``num_draft`` drafts, all of them or some evenly spread."""
    most = num_draft + 1
    if most <= MOST_POINTS:
        return tuple(range(1, most + 1))
    return tuple(sorted({1 + round(num_draft * step / (MOST_POINTS - 1)) for step in range(MOST_POINTS)}))


def measure_costs(target: Target, comparisons: Sequence[Comparison], num_draft: int) -> CostCurve | None:
    """Times forwards in the middle of plain's answer to the question of the middle length; None where nothing was asked
    or the rows do not fit into the context there."""
    if not comparisons:
        return None
    middle = sorted(comparisons, key=lambda one: len(one.prompt))[len(comparisons) // 2]
    tokens = middle.prompt + middle.plain.tokens[: len(middle.plain.tokens) // 2]
    if len(tokens) + num_draft + 1 > target.context_length:
        return None
    return measure_cost(target, tokens, row_counts(num_draft))
