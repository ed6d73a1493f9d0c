"""Cross entropy of the target and distances of the draft from it through tied output matrices, chunk by chunk.

The gradients with respect to the logits have closed forms, so each chunk's logits are formed once and dropped.
Shape suffixes: N tokens, D hidden (target), S hidden (draft), V vocabulary.
"""

import torch
from torch import Tensor

CHUNK = 2048
NUM_CHUNKS = 4
DRAFT_CE_SHARE = 0.1


def _logit_gradients(target_NV: Tensor, draft_NV: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns (target CE sum, draft KL sum, gradient of the target logits, gradient of the draft logits)."""
    log_p = torch.log_softmax(target_NV.float(), dim=-1)
    log_q = torch.log_softmax(draft_NV.float(), dim=-1)
    p, q = log_p.exp(), log_q.exp()
    truth = (torch.arange(p.shape[1])[None, :] == labels_N[:, None]).float()
    cross_entropy = -(truth * log_p).sum()
    divergence = (p * (log_p - log_q)).sum()
    wanted = (1 - DRAFT_CE_SHARE) * p + DRAFT_CE_SHARE * truth
    return cross_entropy, divergence, (p - truth).bfloat16(), (q - wanted).bfloat16()


class TiedLosses(torch.autograd.Function):
    """Mean cross entropy of the target and mean KL(target, draft), with the draft's gradient stopped at the target."""

    @staticmethod
    def forward(ctx, target_ND, target_VD, draft_NS, draft_VS, labels_N, gradients):  # type: ignore[no-untyped-def]
        count = labels_N.shape[0]
        hidden = (target_ND.bfloat16(), draft_NS.bfloat16())
        outputs = (target_VD.bfloat16(), draft_VS.bfloat16())
        grad_hidden = [torch.empty_like(h) for h in hidden]
        grad_outputs = [torch.zeros_like(w, dtype=torch.float32) for w in outputs]
        cross_entropy, divergence = torch.zeros(()), torch.zeros(())
        for start in range(0, count, CHUNK):
            rows = slice(start, start + CHUNK)
            logits = [h[rows] @ w.T for h, w in zip(hidden, outputs, strict=True)]
            ce, kl, *grads = gradients(*logits, labels_N[rows])
            cross_entropy += ce
            divergence += kl
            for i, grad in enumerate(grads):
                grad_hidden[i][rows] = grad @ outputs[i]
                grad_outputs[i] += grad.T @ hidden[i][rows]
        ctx.save_for_backward(*grad_hidden, *grad_outputs)
        ctx.count = count
        return cross_entropy / count, divergence / count

    @staticmethod
    def backward(ctx, grad_ce, grad_kl):  # type: ignore[no-untyped-def]
        target_ND, draft_NS, target_VD, draft_VS = ctx.saved_tensors
        scale_target, scale_draft = grad_ce / ctx.count, grad_kl / ctx.count
        return (
            target_ND.float() * scale_target,
            target_VD * scale_target,
            draft_NS.float() * scale_draft,
            draft_VS * scale_draft,
            None,
            None,
        )


compiled_logit_gradients = torch.compile(_logit_gradients, dynamic=False)


def tied_losses(
    target_ND: Tensor,
    target_VD: Tensor,
    draft_NS: Tensor,
    draft_VS: Tensor,
    labels_N: Tensor,
) -> tuple[Tensor, Tensor]:
    """Returns (target's mean cross entropy, mean KL of the draft from the target), both in nats per token.

    The draft's gradient is that of (1 - DRAFT_CE_SHARE) KL + DRAFT_CE_SHARE CE.
    """
    result: tuple[Tensor, Tensor] = TiedLosses.apply(
        target_ND, target_VD, draft_NS, draft_VS, labels_N, compiled_logit_gradients
    )
    return result


def _distance_gradient(
    target_NV: Tensor, draft_NV: Tensor, temperature: float, variation: bool
) -> tuple[Tensor, Tensor]:
    """Returns (sum of the distances of the draft's law from the target's, its gradient by the draft's logits)."""
    log_p = torch.log_softmax(target_NV.float() / temperature, dim=-1)
    log_q = torch.log_softmax(draft_NV.float() / temperature, dim=-1)
    p, q = log_p.exp(), log_q.exp()
    if variation:
        slope = 0.5 * torch.sign(q - p)
        gradient = q * (slope - (q * slope).sum(dim=-1, keepdim=True)) / temperature
        return 0.5 * (p - q).abs().sum(), gradient.bfloat16()
    return (p * (log_p - log_q)).sum(), ((q - p) / temperature).bfloat16()


class TiedDistance(torch.autograd.Function):
    """Mean distance of the draft's law from a frozen target's: KL, or the total variation distance."""

    @staticmethod
    def forward(ctx, draft_NS, draft_VS, target_ND, target_VD, temperature, variation, gradients):  # type: ignore[no-untyped-def]
        count = draft_NS.shape[0]
        draft_NS, draft_VS = draft_NS.bfloat16(), draft_VS.bfloat16()
        target_ND, target_VD = target_ND.bfloat16(), target_VD.bfloat16()
        grad_hidden, grad_output = [], torch.zeros_like(draft_VS, dtype=torch.float32)
        total = torch.zeros(())
        for draft_rows, target_rows in zip(draft_NS.chunk(NUM_CHUNKS), target_ND.chunk(NUM_CHUNKS), strict=True):
            distance, grad = gradients(target_rows @ target_VD.T, draft_rows @ draft_VS.T, temperature, variation)
            total += distance
            grad_hidden.append(grad @ draft_VS)
            grad_output += grad.T @ draft_rows
        ctx.save_for_backward(torch.cat(grad_hidden), grad_output)
        ctx.count = count
        return total / count

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        hidden, output = ctx.saved_tensors
        scale = grad / ctx.count
        return hidden.float() * scale, output * scale, None, None, None, None, None


compiled_distance_gradient = torch.compile(_distance_gradient, dynamic=False)


def tied_distance(
    draft_NS: Tensor, draft_VS: Tensor, target_ND: Tensor, target_VD: Tensor, temperature: float, variation: bool
) -> Tensor:
    """Returns the mean distance per token of the draft from the target at `temperature`; only the draft gets gradients.

    `variation` selects the total variation distance, otherwise it is KL(target, draft) in nats.
    """
    result: Tensor = TiedDistance.apply(
        draft_NS, draft_VS, target_ND, target_VD, temperature, variation, compiled_distance_gradient
    )
    return result
