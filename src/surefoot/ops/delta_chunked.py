"""The gated delta rule over whole sequences in chunks: differentiable, for training.

Inside a chunk the corrections of all tokens solve one triangular system (the WY form); only the state at the chunks'
borders is sequential.

Shape suffixes: B sequences, T tokens, N chunks, C tokens of a chunk, G sequences times value heads, K key heads,
H value heads, E key dimension, D value dimension.

Source: Yang, Kautz, Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule" (2024), section 3.3.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

CHUNK_SIZE = 32


def gated_delta_chunked(
    q_BTKE: Tensor,
    k_BTKE: Tensor,
    v_BTHD: Tensor,
    log_decay_BTH: Tensor,
    beta_BTH: Tensor,
    *,
    state_BHED: Tensor | None = None,
    chunk_size: int = CHUNK_SIZE,
) -> tuple[Tensor, Tensor]:
    """Returns the outputs [B, T, H, D] and the last state [B, H, E, D], both float32.

    Per token and value head: ``S = exp(log_decay) S``, ``S = S + k (beta (v - S^T k))^T``, output ``S^T q``. Queries
    and keys arrive normalised and scaled; value head h reads key head ``h // (H / K)``. Without a `state` the sequence
    starts from zeros. Everything is computed in float32.
    """
    batch, time, num_keys, _ = q_BTKE.shape
    heads, value_size = v_BTHD.shape[2:]
    if heads % num_keys:
        raise ValueError(f"{heads} value heads cannot share {num_keys} key heads: expected a multiple of them")
    if num_keys != heads:
        q_BTKE, k_BTKE = (x.repeat_interleave(heads // num_keys, dim=2) for x in (q_BTKE, k_BTKE))
    q_NGCE, k_NGCE, v_NGCD = (_chunks(x.float(), chunk_size) for x in (q_BTKE, k_BTKE, v_BTHD))
    decay_NGC1, beta_NGC1 = (_chunks(x.float().unsqueeze(-1), chunk_size) for x in (log_decay_BTH, beta_BTH))
    total_NGC1 = decay_NGC1.cumsum(dim=2)
    # exp(total_i - total_j) for j <= i; above the diagonal it would overflow, so it is cut off before the exponential.
    future_CC = torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=q_NGCE.device).triu(1)
    between_NGCC = (total_NGC1 - total_NGC1.mT).masked_fill(future_CC, -torch.inf).exp()
    since_start_NGC1 = total_NGC1.exp()
    until_end_NGC1 = (total_NGC1[:, :, -1:] - total_NGC1).exp()

    inverse_NGCC = _unit_lower_inverse(k_NGCE * beta_NGC1 @ k_NGCE.mT * between_NGCC)
    wanted_NGCD = inverse_NGCC @ (v_NGCD * beta_NGC1)
    read_NGCE = inverse_NGCC @ (k_NGCE * (beta_NGC1 * since_start_NGC1))
    scores_NGCC = q_NGCE @ k_NGCE.mT * between_NGCC
    asked_NGCE = q_NGCE * since_start_NGC1
    written_NGEC = (k_NGCE * until_end_NGC1).mT
    kept_NG11 = since_start_NGC1[:, :, -1:]

    state_GED = v_NGCD.new_zeros(batch * heads, q_NGCE.shape[-1], value_size)
    if state_BHED is not None:
        state_GED = state_BHED.float().flatten(0, 1)
    pieces = []
    for wanted, read, scores, asked, written, kept in zip(
        wanted_NGCD, read_NGCE, scores_NGCC, asked_NGCE, written_NGEC, kept_NG11, strict=True
    ):
        delta_GCD = torch.baddbmm(wanted, read, state_GED, alpha=-1.0)
        pieces.append(torch.baddbmm(torch.bmm(scores, delta_GCD), asked, state_GED))
        state_GED = torch.baddbmm(state_GED * kept, written, delta_GCD)
    out_BHTD = torch.stack(pieces, dim=1).view(batch, heads, -1, value_size)[:, :, :time]
    return out_BHTD.transpose(1, 2), state_GED.view(batch, heads, -1, value_size)


def _chunks(x_BTHD: Tensor, size: int) -> Tensor:
    """Returns [N, G, C, D]; the last chunk is filled up with zeros, which leave the state as it is."""
    batch, time, heads, width = x_BTHD.shape
    padded = nn.functional.pad(x_BTHD, (0, 0, 0, 0, 0, -time % size))
    return padded.view(batch, -1, size, heads, width).permute(1, 0, 3, 2, 4).reshape(-1, batch * heads, size, width)


def _unit_lower_inverse(system_NGCC: Tensor) -> Tensor:
    inverse: Tensor = _UnitLowerInverse.apply(system_NGCC)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return inverse


class _UnitLowerInverse(torch.autograd.Function):
    """The inverse of identity plus the part below the diagonal; its gradient needs two products, no second solve."""

    @staticmethod
    def forward(ctx: Any, system_NGCC: Tensor) -> Tensor:
        identity_CC = torch.eye(system_NGCC.shape[-1], dtype=system_NGCC.dtype, device=system_NGCC.device)
        inverse: Tensor = torch.linalg.solve_triangular(
            system_NGCC, identity_CC.expand_as(system_NGCC), upper=False, unitriangular=True
        )
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, gradient_NGCC: Tensor) -> Tensor:
        inverse_NGCC: Tensor = ctx.saved_tensors[0]
        return -(inverse_NGCC.mT @ gradient_NGCC @ inverse_NGCC.mT).tril(-1)
