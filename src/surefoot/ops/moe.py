"""A sparse feed-forward: each token goes through a few of many experts (Shazeer et al. 2017, arXiv 1701.06538).

Shape suffixes: N rows, H hidden, E experts, A experts active for a row, I an expert's gate (J its gate and up).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from surefoot.ops.rows import RowArithmetic


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """The sizes of a sparse feed-forward, and how its experts are weighed.

    Attributes:
        num_experts: experts a router chooses from.
        num_active: how many it chooses for a token.
        inner_size: width of an expert's gate.
        shared_size: width of the gate of the expert that every token goes through; 0 where there is none.
        renormalised: whether the weights of the chosen experts are divided by their sum.
    """

    num_experts: int
    num_active: int
    inner_size: int
    shared_size: int = 0
    renormalised: bool = True


def route(scores_NE: Tensor, shape: ExpertShape) -> tuple[Tensor, Tensor]:
    """The experts each row goes through, int64 ``[N, A]`` ascending, and their weights ``[N, A]``, fp32 at least.

    The likeliest are chosen, the lower index where two are alike. Weights are summed in the order of the experts.
    """
    wide = torch.promote_types(scores_NE.dtype, torch.float32)
    likely_NE = scores_NE.softmax(-1, dtype=wide)
    chosen_NA = likely_NE.sort(dim=-1, descending=True, stable=True).indices[:, : shape.num_active].sort(-1).values
    weights_NA = likely_NE.gather(1, chosen_NA)
    if shape.renormalised:
        total_N1 = weights_NA[:, :1]
        for column in range(1, shape.num_active):  # one by one: a sum of rows would choose its order by their number
            total_N1 = total_N1 + weights_NA[:, column : column + 1]
        weights_NA = weights_NA / total_N1
    return chosen_NA, weights_NA


def mixture(
    x_NH: Tensor, router_EH: Tensor, gate_up_EJH: Tensor, down_EHI: Tensor, shape: ExpertShape, rows: RowArithmetic
) -> Tensor:
    """The weighted sum of what each row's experts give, ``[N, H]`` in fp32 at least.

    Every expert computes its rows together; a row's sum takes its experts in ascending order, so its bits do not depend
    on the experts of other rows. Weights are rounded to the model's dtype as it was trained, the sum is not.
    """
    chosen_NA, weights_NA = route(rows.linear(x_NH, router_EH, None), shape)
    weights_NA = weights_NA.to(x_NH.dtype)
    wide = torch.promote_types(x_NH.dtype, torch.float32)
    sum_NH = torch.zeros_like(x_NH, dtype=wide)
    for expert in sorted(set(chosen_NA.flatten().tolist())):  # on an accelerator this waits for the router
        picked_N, place_N = (chosen_NA == expert).nonzero(as_tuple=True)
        h = rows.swiglu(rows.linear(x_NH[picked_N], gate_up_EJH[expert], None))
        given_NH = rows.linear(h, down_EHI[expert], None).to(wide)
        sum_NH[picked_N] += given_NH * weights_NA[picked_N, place_N, None]
    return sum_NH
