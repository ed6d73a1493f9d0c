"""Muon for the hidden matrices: momentum, then the nearest orthogonal matrix by a Newton-Schulz iteration.

The embedding and the norms are left to AdamW.

Source: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024).
"""

import math
from collections import defaultdict
from collections.abc import Iterable

import torch
from recipes.pebble.network import Network
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
MOMENTUM = 0.95


def orthogonalize(batch: Tensor) -> Tensor:
    """Returns about U V^T for each matrix U S V^T in `batch` [N, rows, columns], rows <= columns, in bfloat16."""
    a, b, c = COEFFICIENTS
    x = batch.bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


class Muon(torch.optim.Optimizer):
    """Updates matrices by orthogonalised Nesterov momentum with decoupled weight decay.

    `matrices` pairs each parameter with the row counts of the projections fused in it: each is orthogonalised alone,
    all of one shape together.
    """

    def __init__(
        self, matrices: Iterable[tuple[nn.Parameter, tuple[int, ...]]], *, lr: float, weight_decay: float
    ) -> None:
        pairs = list(matrices)
        self.row_blocks = [blocks for _, blocks in pairs]
        super().__init__([weight for weight, _ in pairs], {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # no closure here
        """Applies one update from the parameters' gradients."""
        group = self.param_groups[0]
        by_shape: dict[tuple[int, int], list[tuple[Tensor, Tensor, bool]]] = defaultdict(list)
        for weight, blocks in zip(group["params"], self.row_blocks, strict=True):
            state = self.state[weight]
            if not state:
                state["momentum"] = torch.zeros_like(weight)
            momentum = state["momentum"].lerp_(weight.grad, 1 - MOMENTUM)
            update = torch.lerp(weight.grad, momentum, MOMENTUM)
            for block, target in zip(update.split(blocks), weight.split(blocks), strict=True):
                tall = block.shape[0] > block.shape[1]
                wide = block.mT if tall else block
                by_shape[(wide.shape[0], wide.shape[1])].append((target, wide, tall))
        for entries in by_shape.values():
            self._apply(entries, group["lr"], group["weight_decay"])

    def _apply(self, entries: list[tuple[Tensor, Tensor, bool]], lr: float, weight_decay: float) -> None:
        turned = orthogonalize(torch.stack([wide for _, wide, _ in entries])).float()
        for (target, _, tall), update in zip(entries, turned, strict=True):
            scale = math.sqrt(max(1.0, target.shape[0] / target.shape[1]))
            target.mul_(1 - lr * weight_decay).add_(update.mT if tall else update, alpha=-lr * scale)


def build_optimizers(
    network: Network, *, matrix_lr: float, vector_lr: float, weight_decay: float
) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """Returns (Muon over the hidden matrices, AdamW without decay over the embedding and the norms)."""
    matrices = list(network.matrices())
    taken = {id(weight) for weight, _ in matrices}
    vectors = [weight for weight in network.parameters() if id(weight) not in taken]
    return (
        Muon(matrices, lr=matrix_lr, weight_decay=weight_decay),
        torch.optim.AdamW(vectors, lr=vector_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    )
