"""Feeds an answer again, one row at a time and several at a time, and measures what rounding can decide.

- The **gap** of a token: how much its logit must rise for plain decoding to draw it. Greedily that is the distance to
  the largest logit; at temperature T it is T times the distance of two scores ``log p + noise``. It is found by asking
  the production sampler, so every processor counts.
- The **drift**: how far logits move when rows are computed several at a time instead of one at a time, along the same
  tokens, with both caches built up that way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from surefoot.protocols import Cache, Target
from surefoot.tree import chain
from surefoot.types import Capture, Tokens

_ROUNDING_UNITS = {torch.bfloat16: 8.0, torch.float16: 8.0}
_ROUNDING_UNITS_OF_LONG_SUMS = 64.0
"""How many units in the last place (of the weights' dtype, at the largest logit) rounding may move a logit. Half types
are summed in fp32 and rounded once per operation; wider types collect the rounding of every term."""
_LARGEST_GAP = 2.0**20


def smallest_rise(row: Tensor, token: int, draw: Callable[[Tensor], int]) -> float | None:
    """How much the logit of ``token`` in ``row [V]`` must rise for ``draw`` to pick it, to six digits; None: never.

    A rise never makes a token less likely to be drawn, whatever processors ``draw`` applies, so bisection finds it.
    """
    row = row.double()

    def picks(rise: float) -> bool:
        raised = row.clone()
        raised[token] += rise
        return draw(raised) == token

    if picks(0.0):
        return 0.0
    low, high = 0.0, 2.0**-40
    while not picks(high):
        low, high = high, high * 4
        if high > _LARGEST_GAP:
            return None
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (low, middle) if picks(middle) else (middle, high)
    return high


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescoring:
    """An answer fed again.

    Attributes:
        rows: the logits after the prompt and after each token, fed one row at a time: ``[1 + answer, V]``.
        drift: the largest difference of a logit when several rows are fed at a time.
    """

    rows: Tensor
    drift: float

    @classmethod
    def of(cls, target: Target, prompt: Tokens, answer: Tokens, num_draft: int, *, length: int) -> Rescoring:
        """Feeds ``answer`` after ``prompt`` twice: row by row, and ``num_draft + 1`` rows at a time.

        ``length`` is what the request's cache was made for: the tokens the sequence could have had, not those it got.
        """
        single = _rows(target.new_cache(length), target, prompt, answer, 1)
        several = _rows(target.new_cache(length), target, prompt, answer, num_draft + 1)
        finite = torch.isfinite(single) & torch.isfinite(several)
        moved = (single - several)[finite].abs()
        return cls(rows=single, drift=float(moved.max()) if moved.numel() else math.inf)

    def threshold(self, target: Target, index: int) -> float:
        """Twice the drift, as far as rounding explains it at row ``index``."""
        dtype = target.embed(torch.zeros(1, dtype=torch.int64)).dtype
        units = _ROUNDING_UNITS.get(dtype, _ROUNDING_UNITS_OF_LONG_SUMS)
        row = self.rows[index]
        largest = float(row[torch.isfinite(row)].abs().max())
        return 2 * min(self.drift, units * torch.finfo(dtype).eps * largest)


def _rows(cache: Cache, target: Target, prompt: Tokens, answer: Tokens, width: int) -> Tensor:
    """The logits after the prompt and after each token of ``answer``, fed ``width`` at a time: ``[1 + answer, V]``."""
    rows: list[Tensor] = []
    for _, out in target.prefill(prompt, cache, Capture()):
        rows = [] if out.logits is None else [out.logits[-1:]]
    for start in range(0, len(answer), width):
        tree = chain(answer[start : start + width])
        (out,) = target.score([(tree, cache)], Capture())
        assert out.logits is not None
        rows.append(out.logits.clone())
        cache.commit(range(len(tree)))
    return torch.cat(rows).cpu()
