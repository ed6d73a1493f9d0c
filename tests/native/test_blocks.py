"""Whole blocks through their records: a row's bits are its own, whatever is computed beside it, and they are right."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from tests.native.driving import (
    AttentionBlock,
    Heads,
    MlpBlock,
    Node,
    Width,
    chain_of,
    draw,
    nodes_of,
)
from torch import Tensor

from surefoot import native
from surefoot.native import normalise, pack, product
from surefoot.native.library import Library
from surefoot.native.tensors import product_reference

BF16, FP32 = torch.bfloat16, torch.float32
FORMATS = {
    "fp32": (FP32, FP32),
    "bf16": (BF16, FP32),
    "fp32, bf16 cache": (FP32, BF16),
    "bf16 throughout": (BF16, BF16),
}
"""The model's, and the cache's."""

ATTENTIONS = {
    "one head of 8": Heads(hidden=33, heads=1, kv_heads=1, head_dim=8),
    "heads of 20, biases": Heads(hidden=47, heads=3, kv_heads=1, head_dim=20, bias=True),
    "heads of 24, partly rotated": Heads(hidden=50, heads=2, kv_heads=2, head_dim=24, rotated=10, window=3),
    "14 heads of 64 in 2 groups": Heads(hidden=130, heads=14, kv_heads=2, head_dim=64, bias=True),
    "heads of 80, normed": Heads(hidden=72, heads=4, kv_heads=2, head_dim=80, qk_norm=True),
    "heads of 128": Heads(hidden=129, heads=5, kv_heads=1, head_dim=128, qk_norm=True, window=17),
    "heads of 256": Heads(hidden=65, heads=2, kv_heads=1, head_dim=256, window=1),
    "48 heads in groups of 6": Heads(hidden=31, heads=48, kv_heads=8, head_dim=8, window=40),
    "heads of 40, gated": Heads(hidden=51, heads=4, kv_heads=2, head_dim=40, rotated=10, qk_norm=True, gated=True),
    "heads of 256, gated": Heads(
        hidden=70, heads=2, kv_heads=1, head_dim=256, rotated=64, qk_norm=True, gated=True, norm_once=True
    ),
    "heads of 34, a group of 8": Heads(hidden=97, heads=8, kv_heads=1, head_dim=34, rotated=6, qk_norm=True, bias=True),
}
MLPS = {
    "33 to 17": Width(hidden=33, inner=17),
    "130 to 47, biases": Width(hidden=130, inner=47, bias=True),
    "63 to 337": Width(hidden=63, inner=337),
    "256 to 512": Width(hidden=256, inner=512, bias=True),
}
COMMITTED = 21
COUNTS = (2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 64)

Run = Callable[[Tensor, Sequence[Node], Sequence[Tensor]], Tensor]

pytestmark = pytest.mark.skipif(native.available() is None, reason=f"there are no kernels: {native.why_not()}")


def used(rows: Tensor, length: int) -> Tensor:
    """The bits of a cache's first rows."""
    return rows[:, :, :length].contiguous().view(torch.int16 if rows.dtype == BF16 else torch.int32)


def alone(block: AttentionBlock, x_NH: Tensor, path: Sequence[int], run: Run | None = None) -> tuple[Tensor, Tensor]:
    """The rows of a path one after the other, each committed: what comes out, and the cache."""
    rows = block.cache(COMMITTED, COMMITTED + len(path))
    outs = []
    for depth, node in enumerate(path):
        at = COMMITTED + depth
        outs.append((run or block.run)(x_NH[node : node + 1], [Node(0, at, at, at, (at,))], [rows]))
    return torch.cat(outs), rows


def counts_that_differ(block: AttentionBlock, counts: Sequence[int], run: Run | None = None) -> list[int]:
    """At which numbers of rows a chain gives other bits than its rows one by one, in the stream or in the cache."""
    most = max(counts)
    x_NH = draw(most, block.shape.hidden, seed=7).to(block.dtype)
    singly, kept = alone(block, x_NH, range(most))
    found = []
    for count in counts:
        rows = block.cache(COMMITTED, COMMITTED + most)
        together = (run or block.run)(x_NH[:count], nodes_of(chain_of(count), COMMITTED), [rows])
        length = COMMITTED + count
        if not (torch.equal(together, singly[:count]) and torch.equal(used(rows, length), used(kept, length))):
            found.append(count)
    return found


def nodes_that_differ(block: AttentionBlock, parents: Sequence[int], cuts: Sequence[int], run: Run) -> list[int]:
    """Which nodes of a tree, given in calls that end at ``cuts``, differ from the ends of their paths."""
    size = len(parents)
    x_NH = draw(size, block.shape.hidden, seed=9).to(block.dtype)
    rows = block.cache(COMMITTED, COMMITTED + size)
    outs = []
    for first, stop in zip((0, *cuts), (*cuts, size), strict=True):
        outs.append(run(x_NH[first:stop], nodes_of(parents[:stop], COMMITTED, first=first), [rows]))
    together = torch.cat(outs)
    paths = [nodes_of(parents, 0, first=node)[0].seen for node in range(size)]
    return [node for node, path in enumerate(paths) if not torch.equal(alone(block, x_NH, path)[0][-1], together[node])]


def random_tree(seed: int, size: int) -> tuple[int, ...]:
    source = random.Random(seed)
    return (-1, *(source.randrange(max(0, node - 4), node) for node in range(1, size)))


@pytest.mark.parametrize("formats", FORMATS)
def test_a_chain_of_any_number_of_rows_is_its_rows_one_by_one(each_set: str, formats: str) -> None:
    for name, shape in ATTENTIONS.items():
        block = AttentionBlock(shape, *FORMATS[formats]).pack()
        counts = range(1, 65) if name == "heads of 20, biases" else COUNTS
        assert counts_that_differ(block, counts) == [], name


@pytest.mark.parametrize("heads", range(1, 49))
def test_any_number_of_heads_in_groups_of_any_size_is_exact_and_right(each_set: str, heads: int) -> None:
    source = random.Random(heads)
    for kv_heads in {1, heads, source.choice([one for one in range(1, heads + 1) if heads % one == 0])}:
        head_dim, hidden = source.choice((2, 6, 8, 10, 18)), source.choice((1, 2, 15, 17, 33))
        dtype = source.choice((FP32, BF16))
        shape = Heads(hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim, window=source.choice((None, 9)))
        block = AttentionBlock(shape, dtype).pack()
        assert counts_that_differ(block, (2, 5, 9)) == [], shape
        assert nodes_that_differ(block, random_tree(heads, 6), (2,), block.run) == [], shape
        x_NH, nodes = draw(3, hidden).to(dtype), nodes_of((-1, 0, 0), COMMITTED)
        rows = block.cache(COMMITTED, COMMITTED + 3)
        wide = block.reference(x_NH, nodes, [rows.double()], rounds=False)
        error = (block.run(x_NH, nodes, [rows]) - wide).abs().max() / wide.abs().max()
        assert float(error) < (1e-5 if dtype == FP32 else 2**-6), shape


@pytest.mark.parametrize("formats", FORMATS)
def test_a_node_of_any_tree_is_the_end_of_its_path(each_set: str, formats: str) -> None:
    for seed, (name, shape) in enumerate(ATTENTIONS.items()):
        block = AttentionBlock(shape, *FORMATS[formats]).pack()
        for cuts in ((), (4, 5), (1,)):
            assert nodes_that_differ(block, random_tree(seed, 12), cuts, block.run) == [], (name, cuts)


def test_windows_shorter_than_the_round_and_as_long_as_the_text_are_cut_by_position(each_set: str) -> None:
    for window in (1, 2, 5, COMMITTED, COMMITTED + 3, COMMITTED + 12):
        shape = Heads(hidden=33, heads=4, kv_heads=2, head_dim=12, window=window)
        block = AttentionBlock(shape, FP32).pack()
        assert nodes_that_differ(block, random_tree(window, 12), (5,), block.run) == [], window
        assert counts_that_differ(block, (2, 9, 31)) == [], window


def by_row(nodes: Sequence[Node]) -> list[Node]:
    """A wrong layout: a node sees every node before it."""
    return [node._replace(seen=tuple(range(node.committed, node.place + 1))) for node in nodes]


def by_index(nodes: Sequence[Node]) -> list[Node]:
    """A wrong layout: a node stands at its index, not at its depth."""
    return [node._replace(position=node.place) for node in nodes]


@pytest.mark.parametrize("wrong", [by_row, by_index])
def test_nodes_that_see_siblings_or_stand_elsewhere_are_seen(
    wrong: Callable[[Sequence[Node]], list[Node]],
) -> None:
    block = AttentionBlock(ATTENTIONS["heads of 20, biases"], FP32).pack()
    found = nodes_that_differ(block, (-1, 0, 0, 1), (), lambda x, nodes, rows: block.run(x, wrong(nodes), rows))
    assert found == [2, 3]


def test_rows_on_other_instructions_from_some_number_on_are_seen(kernels: Library) -> None:
    block = AttentionBlock(ATTENTIONS["heads of 80, normed"], FP32).pack()
    best = kernels.instructions

    def run(x: Tensor, nodes: Sequence[Node], rows: Sequence[Tensor]) -> Tensor:
        assert kernels.choose(best if len(x) < 9 else "portable")
        out = block.run(x, nodes, rows)
        assert kernels.choose(best)
        return out

    expected = [] if best == "portable" else [9, 16, 17, 31, 64]
    assert counts_that_differ(block, COUNTS, run) == expected


@pytest.mark.parametrize("formats", FORMATS)
def test_any_number_of_threads_gives_the_same_bits(kernels: Library, each_set: str, formats: str) -> None:
    dtype, cache_dtype = FORMATS[formats]
    for name, shape in ATTENTIONS.items():
        block = AttentionBlock(shape, dtype, cache_dtype).pack()
        for parents in ((-1,), random_tree(3, 8), random_tree(4, 40)):
            x_NH = draw(len(parents), shape.hidden).to(dtype)
            results = []
            for threads in (1, 2, 3):
                kernels.use_threads(threads)
                rows = block.cache(COMMITTED, COMMITTED + len(parents))
                results.append((block.run(x_NH, nodes_of(parents, COMMITTED), [rows]), used(rows, rows.shape[2])))
            assert all(torch.equal(a, b) for one in results[1:] for a, b in zip(one, results[0], strict=True)), name


def assert_close(found: Tensor, block: AttentionBlock | MlpBlock, x_NH: Tensor, wide: Tensor, rounded: Tensor) -> None:
    """Bounds on a block's result, of what it adds to the stream.

    fp32: 1e-5 of the largest number. bf16 rounds at six to eight places between the steps, each time by 2^-9 to 2^-8 of
    a number at most; such errors are independent and their root mean square stays below 2^-6 of what is added. Rounded
    at the same places, fp64 gives most rows almost to the bit: only where a sum lies next to a tie is a number rounded
    otherwise, and then much of its row. A place of rounding more or less moves every row by more than 2^-9.
    """
    narrow = FP32 if isinstance(block, MlpBlock) else block.cache_dtype
    if block.dtype == FP32 and narrow == FP32:
        assert float((found - wide).abs().max() / wide.abs().max()) < 1e-5
        return
    added = root_mean_square(wide - x_NH)
    assert root_mean_square(found - wide) < 2**-6 * added
    assert median_row(found - rounded) < 2**-10 * added
    if block.dtype == BF16:
        assert median_row(wide - rounded) > 2**-9 * added


def median_row(x_NH: Tensor) -> float:
    """The root mean square of the row that half of the others exceed."""
    return float(x_NH.double().square().mean(-1).sqrt().median())


def root_mean_square(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())


@pytest.mark.parametrize("formats", FORMATS)
def test_attention_is_what_the_plain_operations_say(each_set: str, formats: str) -> None:
    dtype, cache_dtype = FORMATS[formats]
    for name, shape in ATTENTIONS.items():
        block = AttentionBlock(shape, dtype, cache_dtype).pack()
        nodes = [*nodes_of(random_tree(5, 9), COMMITTED), *nodes_of(chain_of(3), 4, sequence=1)]
        x_NH = draw(12, shape.hidden).to(dtype)
        caches = [block.cache(COMMITTED, 40), block.cache(4, 8, seed=5)]
        copies = [[rows.double() for rows in caches] for _ in range(2)]
        wide = block.reference(x_NH, nodes, copies[0], rounds=False)
        rounded = block.reference(x_NH, nodes, copies[1], rounds=True)
        assert_close(block.run(x_NH, nodes, caches), block, x_NH, wide, rounded)
        for ours, theirs in zip(caches, copies[1], strict=True):
            kept = ~theirs.isnan()
            assert torch.equal(ours.isnan(), theirs.isnan()), name
            assert root_mean_square(ours[kept] - theirs[kept]) < 1e-3, name


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_the_feed_forward_is_what_the_plain_operations_say(each_set: str, dtype: torch.dtype) -> None:
    for shape in MLPS.values():
        for scale in (1.0, 300.0, 1e4):  # gates in the hundreds, where e^-gate leaves the range of floats
            block = MlpBlock(shape, dtype, scale)
            x_NH = draw(9, shape.hidden).to(dtype)
            wide, rounded = (block.reference(x_NH, rounds=rounds) for rounds in (False, True))
            assert_close(block.run(x_NH), block, x_NH, wide, rounded)


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_rows_of_the_feed_forward_are_their_own(kernels: Library, each_set: str, dtype: torch.dtype) -> None:
    for name, shape in MLPS.items():
        block = MlpBlock(shape, dtype)
        x_NH = draw(64, shape.hidden).to(dtype)
        singly = torch.cat([block.run(row) for row in x_NH.split(1)])
        for threads in (1, 2, 3):
            kernels.use_threads(threads)
            for count in range(1, 65) if name == "33 to 17" else COUNTS:
                assert torch.equal(block.run(x_NH[:count]), singly[:count]), (name, count)
                assert torch.equal(block.run(x_NH[-count:]), singly[-count:]), (name, count)


@pytest.mark.parametrize(("dtype", "outputs"), [(FP32, 50_257), (BF16, 151_936)], ids=str)
def test_a_head_of_a_large_vocabulary_gives_each_row_its_own_bits(
    kernels: Library, each_set: str, dtype: torch.dtype, outputs: int
) -> None:
    weight, x_NH = draw(outputs, 27).to(dtype), draw(9, 27).to(dtype)
    packed = pack(weight)
    singly = torch.cat([product(row, packed) for row in x_NH.split(1)])
    wide = product_reference(x_NH, weight, None, None, 0.0)
    assert float((singly - wide).abs().max() / wide.abs().max()) < 1e-5
    for threads in (1, 2, 3):
        kernels.use_threads(threads)
        for count in (2, 3, 5, 8, 9):
            assert torch.equal(product(x_NH[:count], packed), singly[:count])


def test_norms_of_extreme_rows_keep_their_size(each_set: str) -> None:
    for dtype in (FP32, BF16):
        rows = draw(4, 37) * torch.tensor([[1e-30], [1e-3], [1e4], [1e30]])
        found = normalise(rows.to(dtype), torch.ones(37), 0.0).double()
        assert torch.allclose(found.square().mean(-1), torch.ones(4, dtype=torch.float64), rtol=2**-7)
    assert normalise(torch.zeros(2, 37), torch.ones(37), 1e-6).count_nonzero() == 0
