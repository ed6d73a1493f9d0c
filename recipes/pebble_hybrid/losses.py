"""The loss of the hybrid's end-to-end training, from hidden states, with the logits never whole in memory."""

from typing import Any

import torch
from torch import Tensor, nn

ROWS = 128
"""Rows of logits at once: few enough to stay in the processor's cache."""


def distillation(
    student_ND: Tensor, teacher_ND: Tensor, embedding_VD: Tensor, labels_N: Tensor, teacher_share: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the loss, the mean KL(teacher, student) and the mean cross entropy, in nats per token.

    The loss is `teacher_share` of the first and the rest of the second. Only the student's hidden states get gradients:
    the embedding is both models' output matrix and is not trained.
    """
    loss, kl, entropy = _Distillation.apply(student_ND, teacher_ND, embedding_VD, labels_N, teacher_share)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return loss, kl.detach(), entropy.detach()


class _Distillation(torch.autograd.Function):
    """Computes the gradient along with the loss, some rows at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        student_ND: Tensor,
        teacher_ND: Tensor,
        embedding_VD: Tensor,
        labels_N: Tensor,
        teacher_share: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        gradient = torch.empty_like(student_ND)
        kl, entropy, count = 0.0, 0.0, len(labels_N)
        for start in range(0, count, ROWS):
            rows = slice(start, start + ROWS)
            log_p, log_q = (
                torch.log_softmax(nn.functional.linear(x[rows], embedding_VD).float(), dim=-1)
                for x in (teacher_ND, student_ND)
            )
            labels, p, q = labels_N[rows, None], log_p.exp(), log_q.exp()
            kl += (p * log_p.sub_(log_q)).sum().item()
            entropy -= log_q.gather(1, labels).sum().item()
            p.mul_(teacher_share).scatter_add_(1, labels, torch.full(labels.shape, 1 - teacher_share))
            gradient[rows] = (q.sub_(p) / count).to(embedding_VD.dtype) @ embedding_VD
        ctx.save_for_backward(gradient)
        loss = teacher_share * kl + (1 - teacher_share) * entropy
        return torch.tensor(loss / count), torch.tensor(kl / count), torch.tensor(entropy / count)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]  # as torch calls it
        return upstream * ctx.saved_tensors[0], None, None, None, None
