"""Experts are chosen and weighed as they must be, and a row's sum does not depend on the rows beside it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from surefoot.ops.moe import ExpertShape, mixture, route
from surefoot.ops.rows import ExactRows, FastRows

SHAPE = ExpertShape(num_experts=6, num_active=3, inner_size=20)
AS_THEY_ARE = ExpertShape(num_experts=6, num_active=3, inner_size=20, renormalised=False)
DTYPES = [torch.float32, torch.bfloat16, torch.float64]


def weights(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Router, gates and ups, downs of width 32."""
    generator = torch.Generator().manual_seed(2)
    router, gate_up, down = (torch.randn(size, generator=generator) for size in ((6, 32), (6, 40, 32), (6, 32, 20)))
    return (router * 0.2).to(dtype), (gate_up * 0.2).to(dtype), (down * 0.2).to(dtype)


def rows(count: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(count, 32, generator=torch.Generator().manual_seed(count)).to(dtype)


def mixture_reference(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, shape: ExpertShape) -> Tensor:
    """Row by row, expert by expert, in fp64."""
    x, router, gate_up, down = (tensor.double() for tensor in (x, router, gate_up, down))
    result = torch.zeros_like(x)
    for row, out in zip(x, result, strict=True):
        likely = torch.softmax(router @ row, 0)
        chosen = sorted(range(len(likely)), key=lambda expert: (-likely[expert], expert))[: shape.num_active]
        total = sum(likely[expert] for expert in chosen) if shape.renormalised else 1.0
        for expert in chosen:
            gate, up = (gate_up[expert] @ row).chunk(2)
            out += likely[expert] / total * (down[expert] @ (torch.nn.functional.silu(gate) * up))
    return result


@pytest.mark.parametrize("shape", [SHAPE, AS_THEY_ARE], ids=["renormalised", "as they are"])
@pytest.mark.parametrize("arithmetic", [FastRows(), ExactRows()], ids=["fast", "exact"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_mixture_is_the_obvious_loop(
    dtype: torch.dtype, arithmetic: FastRows | ExactRows, shape: ExpertShape
) -> None:
    for count in (1, 2, 9):
        x = rows(count, dtype)
        found, expected = mixture(x, *weights(dtype), shape, arithmetic), mixture_reference(x, *weights(dtype), shape)
        assert found.dtype == torch.promote_types(dtype, torch.float32)
        torch.testing.assert_close(found.double(), expected, atol=0.02 if dtype == torch.bfloat16 else 1e-5, rtol=0.0)


def test_the_lower_of_two_equal_experts_is_chosen() -> None:
    scores = torch.tensor([[1.0, 3.0, 1.0, 1.0, 3.0, 1.0], [0.0] * 6, [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]])
    chosen, shares = route(scores, SHAPE)
    assert chosen.tolist() == [[0, 1, 4], [0, 1, 2], [0, 1, 2]]
    torch.testing.assert_close(shares.sum(1), torch.ones(3))
    plain = route(scores, AS_THEY_ARE)[1]
    torch.testing.assert_close(plain[1], torch.full((3,), 1 / 6))
    torch.testing.assert_close(shares[0] / plain[0], (1 / plain[0].sum()).expand(3))


@pytest.mark.parametrize("arithmetic", [FastRows(), ExactRows()], ids=["fast", "exact"])
def test_scores_are_rounded_to_the_models_type_before_experts_are_chosen(arithmetic: FastRows | ExactRows) -> None:
    """As transformers rounds them: of two experts that only the digits beyond bf16 tell apart, the first is taken."""
    router, gate_up, down = weights(torch.bfloat16)
    router[1:] = 0
    router[[2, 4], 1:], router[4, 0] = router[0, 1:] * 2, 2**-12
    router[0] = 0
    shape = ExpertShape(num_experts=6, num_active=1, inner_size=20)
    x = rows(200, torch.bfloat16)
    scores = x.double() @ router.double().t()
    tied = (scores[:, 4] > scores[:, 2]) & (scores[:, 2] > 0.1) & (scores[:, 4].bfloat16() == scores[:, 2].bfloat16())
    assert tied.sum() > 20
    found = mixture(x[tied], router, gate_up, down, shape, arithmetic).double()
    first, better = (down[e].double() @ swiglu_of(x[tied].double(), gate_up[e].double()) for e in (2, 4))
    assert (found - first.t()).abs().max() < 0.02
    assert (found - better.t()).abs().max() > 0.1


def swiglu_of(x: Tensor, gate_up: Tensor) -> Tensor:
    gate, up = (gate_up @ x.t()).chunk(2)
    return torch.nn.functional.silu(gate) * up


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_among_others_has_the_bits_of_the_row_alone(dtype: torch.dtype) -> None:
    x = rows(17, dtype)
    alone = torch.cat([mixture(row[None].clone(), *weights(dtype), SHAPE, ExactRows()) for row in x])
    for start, stop in ((0, 17), (3, 5), (4, 13), (9, 17)):
        together = mixture(x[start:stop].clone(), *weights(dtype), SHAPE, ExactRows())
        assert torch.equal(together, alone[start:stop])


def test_fast_rows_know_of_each_other() -> None:
    """Negative control."""
    x = rows(17, torch.float32)
    alone = torch.cat([mixture(row[None].clone(), *weights(torch.float32), SHAPE, FastRows()) for row in x])
    assert not torch.equal(mixture(x, *weights(torch.float32), SHAPE, FastRows()), alone)
