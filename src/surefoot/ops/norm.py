"""Root-mean-square norm (Zhang and Sennrich 2019, arXiv 1910.07467)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """``x [..., D]`` over the root of its mean square, times ``weight``; computed in fp32 at least, rounded once.

    A weight of more dimensions than one, a row per head, is multiplied by after the norm was rounded; one wider than
    ``x`` before. Each row is reduced alone, so its bits do not depend on the rows beside it.
    """
    if weight is None or (weight.dtype == x.dtype and weight.dim() == 1):
        return functional.rms_norm(x, x.shape[-1:], weight, eps)
    return (functional.rms_norm(x.to(weight.dtype), x.shape[-1:], None, eps) * weight).to(x.dtype)
