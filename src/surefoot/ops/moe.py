"""A sparse feed-forward: each token goes through a few of many experts (Shazeer et al. 2017, arXiv 1701.06538)."""

from __future__ import annotations

from dataclasses import dataclass


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
