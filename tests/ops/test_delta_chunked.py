"""The chunked gated delta rule equals the rule taken token by token, and so do its gradients."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from surefoot.ops import delta_rule
from surefoot.ops.delta_chunked import gated_delta_chunked
from surefoot.ops.delta_rule import DeltaPlace, DeltaShape, DeltaState

TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class Shape:
    time: int
    key_heads: int
    value_heads: int
    key_size: int
    value_size: int


SHAPES = {
    "one token": Shape(1, 2, 2, 8, 8),
    "less than a chunk": Shape(5, 2, 2, 8, 8),
    "whole chunks": Shape(64, 2, 2, 16, 16),
    "a chunk and one": Shape(33, 2, 4, 16, 8),
    "shared keys": Shape(50, 2, 4, 8, 12),
    "three to one": Shape(41, 1, 3, 12, 8),
    "narrow keys": Shape(70, 5, 5, 8, 24),
}


def inputs_of(shape: Shape, decay: float = 0.3) -> list[Tensor]:
    """Queries, keys, values, log decays, betas and a state of two sequences."""
    random = torch.Generator().manual_seed(shape.time)
    batch, keys, heads = 2, shape.key_heads, shape.value_heads
    q, k = (torch.randn(batch, shape.time, keys, shape.key_size, generator=random) for _ in range(2))
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    v = torch.randn(batch, shape.time, heads, shape.value_size, generator=random)
    log_decay = -decay * torch.rand(batch, shape.time, heads, generator=random)
    beta = torch.rand(batch, shape.time, heads, generator=random)
    state = torch.randn(batch, heads, shape.key_size, shape.value_size, generator=random)
    return [x.requires_grad_() for x in (q, k, v, log_decay, beta, state)]


def sequential_reference(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor, *, read_before_decay: bool = False
) -> tuple[Tensor, Tensor]:
    """Token by token; `read_before_decay` is the mistake of the negative control."""
    group = v.shape[2] // k.shape[2]
    q, k = (x.repeat_interleave(group, dim=2) for x in (q, k))
    outputs = []
    for t in range(v.shape[1]):
        decayed = state * log_decay[:, t].exp()[..., None, None]
        seen = torch.einsum("bhed,bhe->bhd", state if read_before_decay else decayed, k[:, t])
        delta = beta[:, t, :, None] * (v[:, t] - seen)
        state = decayed + k[:, t, :, :, None] * delta[:, :, None]
        outputs.append(torch.einsum("bhed,bhe->bhd", state, q[:, t]))
    return torch.stack(outputs, dim=1), state


def chunked(inputs: list[Tensor], chunk_size: int) -> tuple[Tensor, Tensor]:
    return gated_delta_chunked(*inputs[:5], state_BHED=inputs[5], chunk_size=chunk_size)


def gradients(results: tuple[Tensor, Tensor], inputs: list[Tensor]) -> tuple[Tensor, ...]:
    """Of one fixed scalar that every output takes part in."""
    weights = [torch.linspace(-1, 1, x.numel()).view_as(x) for x in results]
    total = sum((weight * x).sum() for weight, x in zip(weights, results, strict=True))
    assert isinstance(total, Tensor)
    return torch.autograd.grad(total / 10, inputs)


@pytest.mark.parametrize("chunk_size", [16, 32])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_chunks_equal_single_tokens(shape: Shape, chunk_size: int) -> None:
    inputs = inputs_of(shape)
    found, expected = chunked(inputs, chunk_size), sequential_reference(*inputs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE)
    for one, other in zip(gradients(found, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=TOLERANCE, atol=TOLERANCE)


def test_chunks_are_the_rule_that_decoding_walks() -> None:
    """The state a long prompt is trained with is the one it is decoded with."""
    shape = Shape(70, 2, 6, 8, 12)
    q, k, v, log_decay, beta, state = (x.detach() for x in inputs_of(shape))
    out, last = gated_delta_chunked(q, k, v, log_decay, beta, state_BHED=state)
    sizes = DeltaShape(num_key_heads=2, num_value_heads=6, key_dim=8, value_dim=12)
    for row in range(2):
        after = DeltaState(torch.empty_like(state[row]), torch.empty(3, sizes.channels))
        place = DeltaPlace(
            parents=range(-1, shape.time - 1),
            num_new=shape.time,
            committed=DeltaState(state[row], torch.zeros(3, sizes.channels)),
            after=after,
            continues=False,
            tape=None,
        )
        walked = delta_rule._walk(
            delta_rule._Inputs(q[row], k[row], v[row], beta[row], log_decay[row].exp()), place, sizes
        )
        torch.testing.assert_close(out[row], walked, rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(last[row], after.state, rtol=0, atol=TOLERANCE)


def test_an_absent_state_is_zeros_and_strong_decay_stays_finite() -> None:
    inputs = inputs_of(SHAPES["a chunk and one"], decay=200.0)
    with torch.no_grad():
        inputs[5].zero_()
        found = gated_delta_chunked(*inputs[:5])
        expected = sequential_reference(*inputs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE)
    assert all(x.isfinite().all() for x in gradients(chunked(inputs, 32), inputs))


def test_equal_keys_written_fully_keep_their_precision() -> None:
    """The worst case of the triangular system: every token overwrites the same row."""
    inputs = inputs_of(Shape(64, 1, 1, 4, 8), decay=0.0)
    with torch.no_grad():
        inputs[1].copy_(torch.tensor([1.0, 0.0, 0.0, 0.0]))
        inputs[4].fill_(1.0)
    for one, other in zip(chunked(inputs, 32), sequential_reference(*inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE)


def test_another_rule_is_told_apart() -> None:
    inputs = inputs_of(SHAPES["whole chunks"])
    wrong = sequential_reference(*inputs, read_before_decay=True)
    assert (chunked(inputs, 32)[0] - wrong[0]).abs().max() > 100 * TOLERANCE


def test_heads_that_do_not_divide_are_refused() -> None:
    q, v, decay = torch.zeros(1, 3, 2, 4), torch.zeros(1, 3, 3, 4), torch.zeros(1, 3, 3)
    with pytest.raises(ValueError, match="3 value heads cannot share 2 key heads"):
        gated_delta_chunked(q, q, v, decay, decay)
