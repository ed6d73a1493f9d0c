"""Attention where it is easy to be wrong: one key, equal scores, huge and tiny numbers, NaN next door, every size."""

from __future__ import annotations

import pytest
import torch
from tests.native.driving import LAYER, AttentionBlock, Heads, Node, chain_of, draw, nodes_of
from torch import Tensor

from surefoot import native
from surefoot.native.library import Library
from surefoot.ops.rope import rotate

BF16, FP32 = torch.bfloat16, torch.float32
HEAD_DIMS = (8, 20, 24, 64, 80, 128, 256)
KEYS, VALUES = 2 * LAYER, 2 * LAYER + 1

pytestmark = pytest.mark.skipif(native.available() is None, reason=f"there are no kernels: {native.why_not()}")


class Probe:
    """A block whose result is what its heads gather, of a query, a key and a value that are given.

    Rows are zeros, so that biases alone speak; positions turn nothing unless ``turns``, and the output is the identity.
    """

    def __init__(self, query_GD: Tensor, key_KD: Tensor, value_KD: Tensor, *, turns: bool = False) -> None:
        heads, head_dim = query_GD.shape
        shape = Heads(hidden=heads * head_dim, heads=heads, kv_heads=len(key_KD), head_dim=head_dim, bias=True)
        block = AttentionBlock(shape, FP32)
        block.qkv_bias = torch.cat([part.reshape(-1) for part in (query_GD, key_KD, value_KD)])
        block.qkv, block.out = torch.zeros_like(block.qkv), torch.eye(shape.hidden)
        block.out_bias = None
        if not turns:
            block.first, block.second = torch.ones_like(block.first), torch.zeros_like(block.second)
        self.block = block.pack()

    def gather(self, keys_KTD: Tensor, values_KTD: Tensor) -> Tensor:
        """What a row sees in these keys and values and its own: ``[G, D]``."""
        shape, count = self.block.shape, keys_KTD.shape[1]
        rows = self.block.cache(0, count + 1)
        rows[KEYS, :, :count], rows[VALUES, :, :count] = keys_KTD, values_KTD
        node = Node(0, count, count, count, (count,))
        return self.block.run(torch.zeros(1, shape.hidden), [node], [rows]).view(shape.heads, shape.head_dim)


def expected(
    query_GD: Tensor, key_KD: Tensor, value_KD: Tensor, keys_KTD: Tensor, values_KTD: Tensor, scale: float
) -> Tensor:
    """The same in fp64."""
    group = len(query_GD) // len(key_KD)
    keys = torch.cat((keys_KTD, key_KD[:, None]), 1).double().repeat_interleave(group, 0)
    values = torch.cat((values_KTD, value_KD[:, None]), 1).double().repeat_interleave(group, 0)
    scores = torch.einsum("gd,gtd->gt", query_GD.double(), keys) * scale
    return torch.einsum("gt,gtd->gd", scores.softmax(-1), values)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_one_key_gives_its_value(each_set: str, head_dim: int) -> None:
    key, value = draw(2, head_dim, seed=1), draw(2, head_dim, seed=2)
    probe = Probe(1e3 * draw(6, head_dim), key, value)
    nothing = torch.empty(2, 0, head_dim)
    assert torch.equal(probe.gather(nothing, nothing), value.repeat_interleave(3, 0))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("count", [1, 14, 15, 16, 17, 31, 100])
def test_any_number_of_keys_is_weighed_as_in_fp64(each_set: str, head_dim: int, count: int) -> None:
    for size in (0.0, 1.0, 30.0):  # all scores equal; like real ones; one winner
        query, key, value = size * draw(7, head_dim), draw(1, head_dim, seed=1), draw(1, head_dim, seed=2)
        keys, values = draw(1, count, head_dim, seed=3), draw(1, count, head_dim, seed=4)
        probe = Probe(query, key, value)
        exact = expected(query, key, value, keys, values, probe.block.scale)
        worst = 1e-5 if size < 30 else 1e-4  # a score of hundreds is itself known to six or seven digits
        assert float((probe.gather(keys, values) - exact).abs().max()) < worst * float(exact.abs().max())


@pytest.mark.parametrize("size", range(1, 9))
def test_groups_of_any_size_read_their_own_key_head(each_set: str, size: int) -> None:
    query, key, value = draw(3 * size, 16), draw(3, 16, seed=1), draw(3, 16, seed=2)
    keys, values = draw(3, 20, 16, seed=3), draw(3, 20, 16, seed=4)
    probe = Probe(query, key, value)
    exact = expected(query, key, value, keys, values, probe.block.scale)
    assert float((probe.gather(keys, values) - exact).abs().max()) < 1e-5
    shifted = expected(query, key, value, keys.roll(1, 0), values, probe.block.scale)
    assert float((probe.gather(keys, values) - shifted).abs().max()) > 1e-2


def test_scores_in_the_millions_leave_one_winner_and_no_infinity(each_set: str) -> None:
    query, keys, values = torch.full((1, 24), 1e4), draw(1, 40, 24, seed=3), draw(1, 40, 24, seed=4)
    keys[0, 13], keys[0, 20] = 1e4, -1e4
    probe = Probe(query, draw(1, 24, seed=1), draw(1, 24, seed=2))
    assert torch.equal(probe.gather(keys, values)[0], values[0, 13])
    keys[0, 20] = 1e4
    both = probe.gather(keys, values)[0]
    assert torch.allclose(both, (values[0, 13] + values[0, 20]) / 2, rtol=1e-6, atol=1e-6)


def test_nan_in_a_key_shows_in_what_sees_it(each_set: str) -> None:
    keys, values = draw(1, 40, 24, seed=3), draw(1, 40, 24, seed=4)
    probe = Probe(draw(2, 24), draw(1, 24, seed=1), draw(1, 24, seed=2))
    for place in (0, 7, 16, 39):
        damaged = keys.clone()
        damaged[0, place, 5] = torch.nan
        assert bool(probe.gather(damaged, values).isnan().all())


def test_denormal_numbers_count_on_every_thread_whatever_the_program_set(kernels: Library, each_set: str) -> None:
    query, key, value = draw(6, 24), draw(6, 24, seed=1), 1e-40 * draw(6, 24, seed=2)
    keys, values = draw(6, 30, 24, seed=3), 1e-40 * draw(6, 30, 24, seed=4)
    probe = Probe(query, key, value)
    exact = expected(query, key, value, keys, values, probe.block.scale)
    results = []
    for flush in (False, True):
        for threads in (1, 2, 3):
            kernels.use_threads(threads)
            if not torch.set_flush_denormal(flush):
                pytest.skip("this processor cannot flush denormal numbers")
            try:
                results.append(probe.gather(keys, values).view(torch.int32))
            finally:
                torch.set_flush_denormal(False)
    assert all(torch.equal(one, results[0]) for one in results)
    found = results[0].view(FP32).double()
    assert float((found - exact).abs().max()) < 1e-3 * float(exact.abs().max())


def test_nan_in_a_row_reaches_no_row_of_another_sequence_or_branch(each_set: str) -> None:
    for dtype in (FP32, BF16):
        block = AttentionBlock(Heads(hidden=47, heads=6, kv_heads=2, head_dim=20), dtype).pack()
        nodes = [*nodes_of((-1, 0, 0, 1), 8), *nodes_of(chain_of(4), 11, sequence=1)]
        x_NH = draw(8, 47).to(dtype)
        sound = block.run(x_NH, nodes, [block.cache(8, 12), block.cache(11, 15)])
        damaged = x_NH.clone()
        damaged[1, 3] = torch.nan  # seen by node 3 of the tree alone
        damaged[7] = torch.inf
        found = block.run(damaged, nodes, [block.cache(8, 12), block.cache(11, 15)])
        whole = [0, 2, 4, 5, 6]
        assert torch.equal(found[whole], sound[whole])
        assert bool(found[[1, 3, 7]].isnan().any(-1).all())


@pytest.mark.parametrize("rotated", [24, 10])
def test_a_rotation_rounds_its_two_products_and_their_sum_one_by_one(each_set: str, rotated: int) -> None:
    key = draw(2, 24, seed=1)
    probe = Probe(draw(2, 24), key, draw(2, 24, seed=2), turns=True)
    block = probe.block
    block.first, block.second = block.first[:, :rotated].contiguous(), block.second[:, :rotated].contiguous()
    rows = block.cache(0, 64)
    for node in nodes_of(chain_of(64), 0):
        block.run(torch.zeros(1, 48), [node], [rows])
    first, second = block.first[:64, None], block.second[:64, None]
    assert torch.equal(rows[KEYS].transpose(0, 1), rotate(key.expand(64, 2, 24), first, second))
    swapped = key[:, :rotated].roll(rotated // 2, -1)
    product = (swapped * second).double()
    fused = (key[:, :rotated].double() * first.double() + product).float()  # as one fused step would have it
    assert not torch.equal(rows[KEYS].transpose(0, 1)[..., :rotated], fused)
