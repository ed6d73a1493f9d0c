"""Delta blocks: a row's bits, and what it leaves behind, are its own, however rows come together and are committed."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from tests.native.driving import chain_of, draw
from tests.native.recurring import COMMITTED, LAYER, DeltaBlock, Text
from torch import Tensor

from surefoot import native
from surefoot.cache.recurrent import RecurrentStates
from surefoot.native.library import Library
from surefoot.ops.delta_rule import DeltaShape
from surefoot.tree import path_to

FP32, BF16 = torch.float32, torch.bfloat16
SHAPES = {
    "one head": (DeltaShape(num_key_heads=1, num_value_heads=1, key_dim=8, value_dim=16), 33),
    "Hv = 3 Hk, values of 24": (DeltaShape(num_key_heads=2, num_value_heads=6, key_dim=20, value_dim=24), 51),
    "Hv = 2 Hk, values of 90, 3 taps": (
        DeltaShape(num_key_heads=3, num_value_heads=6, key_dim=24, value_dim=90, conv_size=3),
        47,
    ),
    "5 heads of 32 and 64": (DeltaShape(num_key_heads=5, num_value_heads=5, key_dim=32, value_dim=64), 64),
    "48 heads, values of 5": (DeltaShape(num_key_heads=16, num_value_heads=48, key_dim=4, value_dim=5), 40),
}
LARGE = {
    "32 heads of 128, 896 wide": (DeltaShape(num_key_heads=16, num_value_heads=32, key_dim=128, value_dim=128), 896),
    "4 heads of 128, 2048 wide": (DeltaShape(num_key_heads=2, num_value_heads=4, key_dim=128, value_dim=128), 2048),
}
COUNTS = (2, 3, 4, 5, 8, 9, 16, 17, 33, 64)

pytestmark = [
    pytest.mark.skipif(native.available() is None, reason=f"there are no kernels: {native.why_not()}"),
    pytest.mark.usefixtures("one_thread"),
]


def block_of(name: str, dtype: torch.dtype) -> DeltaBlock:
    return DeltaBlock(*(SHAPES | LARGE)[name], dtype)


def random_tree(seed: int, size: int) -> tuple[int, ...]:
    source = random.Random(seed)
    return (-1, *(source.randrange(max(0, node - 4), node) for node in range(1, size)))


def stepped(block: DeltaBlock, x_NH: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Row after row, each a round of its own that is committed: what comes out, and the memory after each."""
    text, outs, memories = block.text(), [], []
    for row in x_NH.split(1):
        outs.append(block.run(row, [(text, (-1,))]))
        text.commit((0,))
        memories.append(text.memory)
    return torch.cat(outs), memories


def same(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def tape_of(text: Text, count: int) -> list[Tensor]:
    assert text.states.tape is not None
    return [rows[LAYER][:count] for rows in text.states.tape]


def counts_that_differ(block: DeltaBlock, counts: Sequence[int]) -> list[int]:
    """At which numbers of rows a chain gives other bits than its rows one by one: as a round, as a round laid out like
    a tree, and as a chunk without a tape; in what comes out, and in what is remembered."""
    x_NH = draw(max(counts), block.hidden, seed=7).to(block.dtype)
    singly, memories = stepped(block, x_NH)
    found = []
    for count in counts:
        for keeps_tape, as_rows in ((True, False), (True, True), (False, False)):
            text = block.text()
            together = block.run(x_NH[:count], [(text, chain_of(count))], keeps_tape=keeps_tape, as_rows=as_rows)
            if keeps_tape:
                text.commit(range(count))
            else:
                text.commit_chunk(count)
            if not (torch.equal(together, singly[:count]) and same(text.memory, memories[count - 1])):
                found.append(count)
    return found


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_a_chain_of_any_number_of_rows_is_its_rows_one_by_one(each_set: str, dtype: torch.dtype) -> None:
    for name in SHAPES:
        counts = range(1, 65) if name == "one head" else COUNTS
        assert counts_that_differ(block_of(name, dtype), counts) == [], name


@pytest.mark.parametrize("name", LARGE)
def test_large_blocks_are_exact_too(name: str) -> None:
    for dtype in (FP32, BF16):
        block = block_of(name, dtype)
        assert counts_that_differ(block, (2, 9)) == []
        assert nodes_that_differ(block, random_tree(1, 6), (3,)) == []


def nodes_that_differ(block: DeltaBlock, parents: Sequence[int], cuts: Sequence[int]) -> list[int]:
    """Which nodes of a tree, given in calls that end at ``cuts``, differ from the ends of their paths: in what comes
    out, or in what is remembered after a commit of the path."""
    size = len(parents)
    x_NH = draw(size, block.hidden, seed=9).to(block.dtype)
    paths = [path_to(parents, node) for node in range(size)]
    found = []
    for node, path in enumerate(paths):
        text, outs = block.text(), []
        for first, stop in zip((0, *cuts), (*cuts, size), strict=True):
            outs.append(block.run(x_NH[first:stop], [(text, parents[first:stop])]))
        singly, memories = stepped(block, x_NH[list(path)])
        before = text.memory
        text.commit(path)
        kept = same(text.memory, memories[-1])
        if not (torch.equal(torch.cat(outs)[list(path)], singly) and kept) or same(before, text.memory):
            found.append(node)
    return found


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_a_node_of_any_tree_is_the_end_of_its_path_and_so_is_its_commit(each_set: str, dtype: torch.dtype) -> None:
    for seed, name in enumerate(SHAPES):
        block = block_of(name, dtype)
        for cuts in ((), (1, 5)):
            assert nodes_that_differ(block, random_tree(seed, 9), cuts) == [], (name, cuts)
    assert nodes_that_differ(block_of("one head", dtype), random_tree(8, 24), (3, 4)) == []


def test_a_chain_in_several_calls_goes_on_from_the_back_or_from_the_tape_alike(each_set: str) -> None:
    for dtype in (FP32, BF16):
        block = block_of("Hv = 2 Hk, values of 90, 3 taps", dtype)
        x_NH = draw(7, block.hidden, seed=5).to(dtype)
        singly, memories = stepped(block, x_NH)
        for forget in (False, True):
            text, outs = block.text(), []
            for first, stop in ((0, 2), (2, 3), (3, 7)):
                if forget:
                    text.states._reached = 0  # as if a forward had failed between
                    text.states.tentative.state.fill_(torch.nan)
                outs.append(block.run(x_NH[first:stop], [(text, range(first - 1, stop - 1))]))
                assert text.states.record.continues is (first > 0 and not forget)
            assert torch.equal(torch.cat(outs), singly)
            for count in range(1, 8):  # every accepted count, from the same tape
                text.states._replayer(text.states, range(count))
                tentative = text.states.tentative
                assert same((tentative.state[LAYER], tentative.history[LAYER]), memories[count - 1])


def test_sequences_of_one_call_do_not_disturb_each_other(kernels: Library, each_set: str) -> None:
    trees = [chain_of(3), random_tree(2, 8), (-1,), chain_of(20), random_tree(5, 5)]
    for dtype in (FP32, BF16):
        for name in ("Hv = 3 Hk, values of 24", "48 heads, values of 5"):
            block = block_of(name, dtype)
            x_NH = draw(sum(map(len, trees)), block.hidden).to(dtype)
            alone, kept = [], []
            for seed, (tree, rows) in enumerate(zip(trees, x_NH.split([len(tree) for tree in trees]), strict=True)):
                text = block.text(seed)
                alone.append(block.run(rows, [(text, tree)]))
                kept.append([rows.clone() for rows in tape_of(text, len(tree))])
            for threads in (1, 2, 3):
                kernels.use_threads(threads)
                texts = [block.text(seed) for seed in range(len(trees))]
                together = block.run(x_NH, list(zip(texts, trees, strict=True)))
                assert torch.equal(together, torch.cat(alone)), (name, threads)
                for text, tree, tape in zip(texts, trees, kept, strict=True):
                    assert same(tape_of(text, len(tree)), tape), (name, threads)


def test_any_number_of_threads_commits_to_the_same_bits(kernels: Library, each_set: str) -> None:
    for name in SHAPES:
        block = block_of(name, BF16)
        x_NH = draw(9, block.hidden).to(BF16)
        memories = []
        for threads in (1, 2, 3):
            kernels.use_threads(threads)
            text = block.text()
            block.run(x_NH, [(text, chain_of(9))])
            text.commit(range(5))
            memories.append(text.memory)
        assert all(same(memory, memories[0]) for memory in memories[1:]), name


def test_a_round_that_is_forgotten_leaves_no_trace(each_set: str) -> None:
    block = block_of("5 heads of 32 and 64", BF16)
    x_NH = draw(6, block.hidden).to(BF16)
    text, other = block.text(), block.text()
    before = text.memory
    block.run(x_NH, [(text, chain_of(6))])
    assert same(text.memory, before)
    text.transaction.rollback()
    assert torch.equal(block.run(x_NH[:2], [(text, chain_of(2))]), block.run(x_NH[:2], [(other, chain_of(2))]))


def root_mean_square(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())


@pytest.mark.parametrize("name", SHAPES)
def test_it_is_what_the_plain_operations_say(each_set: str, name: str) -> None:
    """fp32: within 1e-5 of the largest number, in what comes out, on the tape and in the state. bf16, which is rounded
    at the same places: all but a few numbers to the bit, those few by one rounding and what follows from it; without
    the roundings another 2^-9 of what is added at least, so that the bound is worth something."""
    for parents in (chain_of(9), random_tree(4, 9)):
        for dtype in (FP32, BF16):
            block = block_of(name, dtype)
            x_NH = draw(9, block.hidden, seed=2).to(dtype)
            ours, theirs = block.text(), block.text()
            found, expected = block.run(x_NH, [(ours, parents)]), block.reference(x_NH, theirs, parents, rounds=True)
            added = root_mean_square(expected - x_NH.double())
            assert root_mean_square(found - expected) < (1e-6 if dtype == FP32 else 2**-10) * added
            worst = 1e-5 if dtype == FP32 else 2**-7
            for rows, others in zip(tape_of(ours, 9), tape_of(theirs, 9), strict=True):
                assert float((rows - others).abs().max()) < worst * float(others.abs().max())
            if parents == chain_of(9):
                for text in (ours, theirs):
                    text.commit(range(9))
                states = [text.memory[0] for text in (ours, theirs)]
                assert float((states[0] - states[1]).abs().max()) < worst * float(states[1].abs().max())
                if dtype == BF16:
                    wide = block_of(name, BF16)
                    text = Text(RecurrentStates(block.shape, 2, torch.empty(0)))
                    text.states.fill_committed(COMMITTED, torch.Generator().manual_seed(3))
                    text.transaction.begin_commit()
                    text.transaction.end_commit(COMMITTED)
                    exact = wide.reference(x_NH, text, parents, rounds=False)
                    assert root_mean_square(expected - exact) > 2**-9 * added


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_two_thousand_tokens_in_rounds_are_the_tokens_one_by_one(dtype: torch.dtype) -> None:
    block = block_of("Hv = 3 Hk, values of 24", dtype)
    rounds, plain = block.text(), block.text()
    source, rows = random.Random(3), draw(2064, block.hidden).to(dtype)
    while (done := rounds.transaction.length - COMMITTED) < 2000:
        parents = (
            random_tree(done, source.randrange(1, 9)) if source.random() < 0.3 else chain_of(source.randrange(1, 9))
        )
        path = path_to(parents, source.randrange(len(parents)))
        nodes = torch.tensor([len(path_to(parents, node)) - 1 + done for node in range(len(parents))])
        shown = block.run(rows[nodes], [(rounds, parents)])
        rounds.commit(path)
        for depth, node in enumerate(path):
            row = done + depth
            assert torch.equal(block.run(rows[row : row + 1], [(plain, (-1,))])[0], shown[node]), row
            plain.commit((0,))
        assert same(rounds.memory, plain.memory), done


def test_wrong_paths_wrong_starts_and_a_lost_history_are_seen() -> None:
    block = block_of("one head", FP32)
    x_NH = draw(4, block.hidden).to(FP32)
    _, memories = stepped(block, x_NH)

    def memory(path: Sequence[int], *, start: int = 3, history: bool = True) -> tuple[Tensor, Tensor]:
        text = block.text()
        block.run(x_NH, [(text, chain_of(4))])
        if start != 3:
            text.states.committed.copy(block.text(start).states.committed)
        before = text.memory[1]
        text.commit(path)
        if not history:
            text.states.committed.history[LAYER].copy_(before)
        return text.memory

    assert same(memory((0, 1)), memories[1])
    assert not same(memory((0,)), memories[1])
    assert not same(memory((0, 1), start=4), memories[1])
    assert not same(memory((0, 1), history=False), memories[1])
