"""Root-mean-square norm (Zhang and Sennrich 2019, arXiv 1910.07467)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """``x [..., D]`` over the root of its mean square, times ``weight [D]``; computed in fp32 at least, rounded once.

    Each row is reduced alone, so its bits do not depend on the rows beside it.
    """
    return functional.rms_norm(x, x.shape[-1:], weight, eps)
