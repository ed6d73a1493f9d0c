"""The target's output head as a constant of training: the loss of hidden states under it, and its guesses.

Shape suffixes: R rows, H hidden, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from surefoot.protocols import Target

CHUNK = 2**22
"""Logits that are in memory at once."""


def frozen_head(target: Target, hidden_size: int, dtype: torch.dtype) -> Tensor:
    """The head's matrix ``[V, H]``, read off the target through its protocol: the logits of unit vectors.

    A product with a unit vector adds zeros to one weight, so these are the weights themselves.
    """
    probe = target.embed(torch.zeros(1, dtype=torch.int64))
    unit = torch.eye(hidden_size, dtype=probe.dtype, device=probe.device)
    return target.unembed(unit).T.to(dtype).contiguous()


class _HeadLoss(torch.autograd.Function):
    """Weighted cross entropy under a frozen head; the gradient is made on the way, so no logits are kept."""

    @staticmethod
    def forward(
        context: Any, hidden_RH: Tensor, head_VH: Tensor, labels_R: Tensor, weights_R: Tensor
    ) -> tuple[Tensor, Tensor]:
        loss = torch.zeros((), dtype=torch.float32, device=hidden_RH.device)
        guesses, gradients = [], []
        rows = max(1, CHUNK // head_VH.shape[0])
        pieces = zip(hidden_RH.split(rows), labels_R.split(rows), weights_R.split(rows), strict=True)
        for part_RH, label_R, weight_R in pieces:
            logits_RV = functional.linear(part_RH.to(head_VH.dtype), head_VH).float()
            most_R, guess_R = logits_RV.max(-1)
            guesses.append(guess_R)
            logits_RV.sub_(most_R[:, None])
            chosen_R = logits_RV.gather(1, label_R[:, None])[:, 0]
            sums_R = logits_RV.exp_().sum(-1)
            loss += ((sums_R.log() - chosen_R) * weight_R).sum()
            if context.needs_input_grad[0]:
                law_RV = logits_RV.mul_((weight_R / sums_R)[:, None])
                law_RV.scatter_add_(1, label_R[:, None], -weight_R[:, None])
                gradients.append(law_RV.to(head_VH.dtype) @ head_VH)
        if gradients:
            context.save_for_backward(torch.cat(gradients).to(hidden_RH.dtype))
        guess_R = torch.cat(guesses) if guesses else labels_R
        context.mark_non_differentiable(guess_R)
        return loss, guess_R

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient_RH,) = context.saved_tensors
        return gradient_RH * gradients[0], None, None, None


def head_loss(hidden_RH: Tensor, head_VH: Tensor, labels_R: Tensor, weights_R: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of ``weights * cross entropy`` in nats, fp32, and each row's likeliest id, int64 ``[R]``.

    Differentiable in ``hidden`` alone. The products are in the head's dtype, all else in fp32.
    """
    loss, guesses = _HeadLoss.apply(hidden_RH, head_VH, labels_R, weights_R)  # type: ignore[no-untyped-call]  # so in torch
    return loss, guesses


def head_loss_reference(hidden_RH: Tensor, head_VH: Tensor, labels_R: Tensor, weights_R: Tensor) -> Tensor:
    """The same loss by torch's own functions."""
    each_R = functional.cross_entropy(functional.linear(hidden_RH, head_VH), labels_R, reduction="none")
    return (each_R * weights_R).sum()
