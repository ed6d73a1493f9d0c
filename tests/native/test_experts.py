"""Feed-forwards of experts: a row's bits are its own, whoever shares its experts, and they are right."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.native.driving import EPS, call, draw, narrowing
from torch import Tensor
from torch.nn import functional

from surefoot import native
from surefoot.models.native_blocks import sparse_block
from surefoot.models.weights import SparseWeights
from surefoot.native.library import Library
from surefoot.native.records import Sequence as SequenceRecord
from surefoot.ops.moe import ExpertShape
from surefoot.ops.norm import rms_norm

FP32, BF16 = torch.float32, torch.bfloat16
SHAPES = {
    "8 experts, 2 of them, a shared one": (ExpertShape(num_experts=8, num_active=2, inner_size=24, shared_size=17), 51),
    "5 experts, as they are weighed": (
        ExpertShape(num_experts=5, num_active=3, inner_size=33, renormalised=False),
        40,
    ),
    "100 experts, 10 of them": (ExpertShape(num_experts=100, num_active=10, inner_size=16, shared_size=40), 64),
    "one expert": (ExpertShape(num_experts=1, num_active=1, inner_size=20), 33),
    "all of 4 experts": (ExpertShape(num_experts=4, num_active=4, inner_size=47, shared_size=48), 300),
    "wide": (ExpertShape(num_experts=6, num_active=2, inner_size=512, shared_size=512), 896),
}
COUNTS = (2, 3, 4, 5, 8, 9, 16, 17, 33, 64)

pytestmark = [
    pytest.mark.skipif(native.available() is None, reason=f"there are no kernels: {native.why_not()}"),
    pytest.mark.usefixtures("one_thread"),
]


class SparseBlock:
    """A block of random weights; a router's weights may be given."""

    def __init__(self, shape: ExpertShape, hidden: int, dtype: torch.dtype, router: Tensor | None = None) -> None:
        count, inner, shared = shape.num_experts, shape.inner_size, shape.shared_size
        self.shape, self.hidden, self.dtype = shape, hidden, dtype

        def weight(*sizes: int) -> Tensor:
            return (draw(*sizes) * sizes[-1] ** -0.5).to(dtype)

        self.weights = SparseWeights(
            norm=1 + 0.2 * draw(hidden),
            router=weight(count, hidden) if router is None else router.to(dtype),
            gate_up=weight(count, 2 * inner, hidden),
            down=weight(count, hidden, inner),
            shared_gate_up=weight(2 * shared, hidden) if shared else None,
            shared_down=weight(hidden, shared) if shared else None,
            shared_gate=weight(1, hidden) if shared else None,
        )
        self.block = sparse_block(self.weights, shape, EPS)

    def run(self, x_NH: Tensor) -> Tensor:
        """The block on rows."""
        return call(x_NH, self.block.kind, self.block.record, (), (SequenceRecord * 1)())

    def reference(self, x_NH: Tensor, *, rounds: bool) -> Tensor:
        """The same in fp64, expert by expert; with ``rounds``, rounded wherever the kernels round."""
        narrow = narrowing(self.dtype) if rounds else narrowing(FP32)
        weights, shape = self.weights, self.shape
        x_NH = x_NH.double()
        h = narrow(rms_norm(x_NH, weights.norm.double(), EPS))
        chances = narrow(functional.linear(h, weights.router.double())).softmax(-1)
        added = []
        for row, chance in zip(h, chances, strict=True):
            chosen = chance.argsort(descending=True, stable=True)[: shape.num_active]
            total = chance[chosen].sum() if shape.renormalised else 1.0
            out = torch.zeros_like(row)
            for expert in sorted(chosen.tolist()):
                gated = swiglu(row, weights.gate_up[expert], weights.down[expert], narrow)
                out = out + gated * narrow(chance[expert] / total)
            if weights.shared_gate_up is not None:
                assert weights.shared_down is not None
                assert weights.shared_gate is not None
                shared = swiglu(row, weights.shared_gate_up, weights.shared_down, narrow)
                out = out + narrow(functional.linear(row, weights.shared_gate.double())).sigmoid() * shared
            added.append(narrow(out))
        return narrow(x_NH + torch.stack(added))


def swiglu(row: Tensor, gate_up: Tensor, down: Tensor, narrow) -> Tensor:  # type: ignore[no-untyped-def]
    gate, up = narrow(functional.linear(row, gate_up.double())).chunk(2)
    return narrow(functional.linear(narrow(narrow(functional.silu(gate)) * up), down.double()))


def root_mean_square(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_rows_are_their_own_whoever_shares_their_experts(kernels: Library, each_set: str, dtype: torch.dtype) -> None:
    for name, (shape, hidden) in SHAPES.items():
        block = SparseBlock(shape, hidden, dtype)
        x_NH = draw(64, hidden).to(dtype)
        singly = torch.cat([block.run(row) for row in x_NH.split(1)])
        counts = range(1, 65) if name.startswith("8 experts") else COUNTS
        for threads in (1, 2, 3):
            kernels.use_threads(threads)
            for count in counts if threads == 1 else (3, 8, 17, 64):
                assert torch.equal(block.run(x_NH[:count]), singly[:count]), (name, threads, count)
                assert torch.equal(block.run(x_NH[-count:]), singly[-count:]), (name, threads, count)


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_experts_are_what_the_plain_operations_say(each_set: str, dtype: torch.dtype) -> None:
    """fp32 within 1e-5 of the largest number; bf16 rounds at the same places, so that all but a few numbers agree to
    the bit, and without the roundings another 2^-9 of what is added is between."""
    for name, (shape, hidden) in SHAPES.items():
        block = SparseBlock(shape, hidden, dtype)
        x_NH = draw(20, hidden, seed=1).to(dtype)
        found, rounded = block.run(x_NH), block.reference(x_NH, rounds=True)
        if dtype == FP32:
            assert float((found - rounded).abs().max() / rounded.abs().max()) < 1e-5, name
            continue
        added = root_mean_square(rounded - x_NH)
        assert root_mean_square(found - rounded) < 2**-9 * added, name
        assert root_mean_square(block.reference(x_NH, rounds=False) - rounded) > 2**-9 * added, name


def test_of_equally_likely_experts_the_first_are_taken(each_set: str) -> None:
    shape, hidden = ExpertShape(num_experts=40, num_active=3, inner_size=16), 33
    router = torch.zeros(40, hidden)
    router[[7, 21]] = 0.05 * draw(1, hidden)  # these two are equal, and for half of the rows the best
    block = SparseBlock(shape, hidden, FP32, router)
    x_NH = draw(32, hidden)
    liked = (block.run(x_NH) - block.reference(x_NH, rounds=True)).abs().max()
    assert float(liked) < 1e-4
    swapped = SparseBlock(shape, hidden, FP32, router.flip(0))
    assert float((swapped.run(x_NH) - block.run(x_NH)).abs().max()) > 1e-2


def test_scores_are_rounded_to_the_models_type_before_experts_are_chosen(each_set: str) -> None:
    """As transformers rounds them: of two experts that only the digits beyond bf16 tell apart, the first is taken."""
    shape, hidden = ExpertShape(num_experts=40, num_active=1, inner_size=16), 33
    router = torch.zeros(40, hidden)
    router[[7, 21], 1:] = draw(1, hidden - 1)
    router[21, 0] = 2**-12  # it is the better one wherever the first number of a row is positive
    x_NH = draw(64, hidden, seed=4)
    for dtype, is_rounded in ((BF16, True), (FP32, False)):
        block = SparseBlock(shape, hidden, dtype, router)
        h = rms_norm(x_NH.to(dtype).double(), block.weights.norm.double(), EPS)
        scores = functional.linear(narrowing(dtype)(h), block.weights.router.double())
        decided = (scores[:, 21] > scores[:, 7]) & (scores[:, 7] > 0.5)
        assert 5 < int(decided.sum()) < 60
        x = x_NH.to(dtype)[decided]
        tied = narrowing(dtype)(scores[decided, 21]) == narrowing(dtype)(scores[decided, 7])
        assert (int(tied.sum()) > 5) is is_rounded
        assert float((block.run(x) - block.reference(x, rounds=True)).abs().max()) < (0.1 if is_rounded else 1e-4)
        unrounded = (block.run(x) - block.reference(x, rounds=False)).abs().amax(-1) > 0.2
        assert (int(unrounded[tied].sum()) > 3) is is_rounded


def test_an_expert_that_is_not_chosen_is_not_read(each_set: str) -> None:
    shape, hidden = ExpertShape(num_experts=6, num_active=2, inner_size=20), 33
    router = draw(6, hidden)
    router[4] = 0
    norm_free = SparseBlock(shape, hidden, FP32, router)
    x_NH = draw(12, hidden)
    expected = norm_free.run(x_NH)
    wrong = norm_free.weights.gate_up.clone()
    wrong[4] = torch.nan
    damaged = sparse_block(replace(norm_free.weights, gate_up=wrong), shape, EPS)
    found = call(x_NH, damaged.kind, damaged.record, (), (SequenceRecord * 1)())
    whole = ~found.isnan().any(-1)
    assert 0 < int(whole.sum()) < 12
    assert torch.equal(found[whole], expected[whole])
