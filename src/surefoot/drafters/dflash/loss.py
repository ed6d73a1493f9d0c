"""The loss a DFlash drafter is trained with: earlier slots count more, as a wrong one ends the round.

Shape suffixes: N blocks, K slots after the anchor, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from surefoot.errors import OptionError

CE_SHARE = 0.1
"""Of the cross entropy, where the distance to the target's own law is the rest."""


def slot_weights(num_slots: int, gamma: float, device: torch.device | None = None) -> Tensor:
    """The weight ``exp(-(k - 1) / gamma)`` of slot ``k = 1 .. num_slots``: fp32 ``[K]``."""
    return torch.exp(-torch.arange(num_slots, dtype=torch.float32, device=device) / gamma)


def default_gamma(block_size: int) -> float:
    """The decay published recipes use: 4 for blocks of 7 and 8, 5 for 10, 7 for 16; for others half the slots."""
    return {7: 4.0, 8: 4.0, 10: 5.0, 16: 7.0}.get(block_size, max(1.0, (block_size - 1) / 2))


def block_loss(
    logits_NKV: Tensor,
    labels_NK: Tensor,
    valid_NK: Tensor,
    *,
    gamma: float,
    target_logits_NKV: Tensor | None = None,
) -> Tensor:
    """The mean over the slots that count, weighted by :func:`slot_weights`: a scalar in fp32.

    Args:
        logits_NKV: the drafter's, of slots 1 to K; slot ``k`` stands for the token ``k`` after the anchor.
        labels_NK: those tokens, int64; any id where ``valid_NK`` is False.
        valid_NK: bool, False past the end and where a token is not to be learnt.
        gamma: how slowly the weights fall.
        target_logits_NKV: the target's own at the same positions; then the loss of a slot is 0.1 of the cross entropy
            and 0.9 of the total variation distance between the two laws.

    Raises:
        OptionError: shapes do not agree, or ``gamma`` is not positive.
    """
    if logits_NKV.shape[:-1] != labels_NK.shape or labels_NK.shape != valid_NK.shape or gamma <= 0:
        raise OptionError(
            f"logits are {list(logits_NKV.shape)}, labels {list(labels_NK.shape)}, valid {list(valid_NK.shape)}, gamma "
            f"{gamma}; expected [N, K, V], [N, K], [N, K] and a positive number"
        )
    logits = logits_NKV.float()
    labels = labels_NK.where(valid_NK, 0)
    losses_NK = functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none").view(labels.shape)
    if target_logits_NKV is not None:
        distance_NK = (logits.softmax(-1) - target_logits_NKV.float().softmax(-1)).abs().sum(-1) / 2
        losses_NK = CE_SHARE * losses_NK + (1 - CE_SHARE) * distance_NK
    weights_NK = slot_weights(labels.shape[-1], gamma, logits.device) * valid_NK
    return (losses_NK * weights_NK).sum() / weights_NK.sum().clamp(min=torch.finfo(torch.float32).tiny)
