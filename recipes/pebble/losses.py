"""Cross entropy of the target, and distances of the draft's law from the target's.

All take logits [N, V] or [B, T, V] and return a mean per token; compiled, they form no float32 copy of the logits.
"""

import torch
from torch import Tensor, nn


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns the mean cross entropy in nats."""
    return nn.functional.cross_entropy(logits.float().flatten(0, -2), labels.flatten())


def divergence(target: Tensor, draft: Tensor) -> Tensor:
    """Returns the mean KL(target, draft) in nats."""
    log_p = torch.log_softmax(target.float(), dim=-1)
    log_q = torch.log_softmax(draft.float(), dim=-1)
    return (log_p.exp() * (log_p - log_q)).sum(dim=-1).mean()


def variation(target: Tensor, draft: Tensor, temperature: float) -> Tensor:
    """Returns the mean total variation distance at `temperature`; one minus it is an ideal coupling's acceptance."""
    p = torch.softmax(target.float() / temperature, dim=-1)
    q = torch.softmax(draft.float() / temperature, dim=-1)
    return 0.5 * (p - q).abs().sum(dim=-1).mean()
