"""Rounds of whole hybrid models: however they end, logits, keys, values and states are those of plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from unittest.mock import patch

import pytest
import torch
from tests.delta_layers import torch_threads
from tests.factories import HYBRIDS, make_model
from tests.models.routes import random_case, step_logits, tree_logits
from torch import Tensor

from surefoot import native
from surefoot.cache.base import OpenNodes
from surefoot.cache.hybrid import HybridCache
from surefoot.cache.recurrent import RecurrentStates
from surefoot.errors import TargetError
from surefoot.models import forward
from surefoot.models.decoder import DecoderModel
from surefoot.native.library import required
from surefoot.tree import chain, path_to
from surefoot.types import Capture, DraftTree

NOTHING = Capture()
ALL_ROWS = Capture(logits=True)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
VOCAB = 97
PROMPT = (5, 9, 60)


@cache
def model_of(family: str, dtype: torch.dtype, *, trainable: bool = False) -> DecoderModel:
    """A row-exact random hybrid; on the kernels where they compute it, unless it is to stay ``trainable``."""
    return make_model(family, dtype, seed=3, exact="require", prefill_chunk=64, trainable=trainable)


@dataclass(frozen=True)
class Memory:
    """All that is committed of a sequence."""

    tensors: tuple[Tensor, ...]

    @staticmethod
    def of(cache: HybridCache) -> Memory:
        states = cache.states.committed
        rows = (rows.clone() for rows in cache.rows_to_read(0, cache.length))
        return Memory((states.state.clone(), states.history.clone(), *rows))

    def equals(self, other: Memory) -> bool:
        return all(torch.equal(ours, theirs) for ours, theirs in zip(self.tensors, other.tensors, strict=True))


@dataclass(frozen=True)
class Start:
    """How a sequence begins: read from a prompt, or as after a long run."""

    name: str
    fill: Callable[[DecoderModel, HybridCache], object]

    def cache(self, model: DecoderModel) -> HybridCache:
        made = model.new_cache(60)
        assert isinstance(made, HybridCache)
        self.fill(model, made)
        return made


FRESH = Start("fresh", lambda model, cache: list(model.prefill(PROMPT, cache, NOTHING)))
LONG = Start("long run", lambda model, cache: cache.fill_committed(21, torch.Generator().manual_seed(2)))


def logits_of(model: DecoderModel, cache: HybridCache, tree: DraftTree) -> Tensor:
    (out,) = model.score([(tree, cache)], NOTHING)
    assert out.logits is not None
    return out.logits


def step(model: DecoderModel, cache: HybridCache, token: int) -> Tensor:
    logits = logits_of(model, cache, chain((token,)))
    cache.commit((0,))
    return logits


def steps(model: DecoderModel, cache: HybridCache, tokens: Sequence[int]) -> Tensor:
    return torch.cat([step(model, cache, token) for token in tokens])


def random_tokens(seed: int, count: int) -> tuple[int, ...]:
    choices = Random(seed)
    return tuple(choices.randrange(VOCAB) for _ in range(count))


def first_difference(
    model: DecoderModel, start: Start, *, rows: Sequence[int] = (1, 2, 3, 5, 8, 16), accepted: int = 8
) -> str | None:
    """What first differs from plain decoding: in chains of each number of ``rows``, or after each count of a chain of
    ``accepted`` rows that is kept. None where nothing does."""
    tokens, following = random_tokens(1, max(rows)), random_tokens(2, 3)
    plain = start.cache(model)
    singles, memories = [], []
    for token in tokens:
        singles.append(step(model, plain, token))
        memories.append(Memory.of(plain))
    expected = torch.cat(singles)
    for count in rows:
        if not torch.equal(logits_of(model, start.cache(model), chain(tokens[:count])), expected[:count]):
            return f"a row of {count}"
    for count in range(1, accepted + 1):
        speculated, never = start.cache(model), start.cache(model)
        logits_of(model, speculated, chain(tokens[:accepted]))
        speculated.commit(range(count))
        if not Memory.of(speculated).equals(memories[count - 1]):
            return f"the memory after {count} of {accepted}"
        if count % 3 == 0:
            steps(model, never, tokens[:count])
            if not torch.equal(steps(model, speculated, following), steps(model, never, following)):
                return f"the tokens after {count} of {accepted}"
    return None


@pytest.mark.parametrize("start", [FRESH, LONG], ids=lambda start: start.name)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("family", HYBRIDS)
def test_rows_and_every_accepted_count_are_those_of_plain_decoding(
    family: str, dtype: torch.dtype, start: Start
) -> None:
    assert first_difference(model_of(family, dtype), start) is None


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_so_are_any_number_of_rows_up_to_sixteen(dtype: torch.dtype) -> None:
    assert first_difference(model_of("qwen3_5", dtype), LONG, rows=range(1, 17), accepted=16) is None


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_without_the_kernels_too(dtype: torch.dtype) -> None:
    model = model_of("qwen3_5", dtype, trainable=True)
    assert model.kernels is None
    assert first_difference(model, LONG, rows=(1, 2, 5, 16), accepted=6) is None
    assert first_wrong_node(model, 10) is None


def skip_where_threads_wait(model: DecoderModel, threads: int) -> None:
    """Thousands of small fp32 products on two threads of MKL wait for each other, for minutes on a busy machine; the
    delta layers themselves are held on two threads of torch in ``tests/cache`` and ``tests/ops``."""
    if threads > 1 and model.kernels is None and model.dtype == torch.float32:
        pytest.skip("there are no kernels, and torch's fp32 products would take minutes on two threads")


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_on_two_threads_too(dtype: torch.dtype) -> None:
    model = model_of("qwen3_5", dtype)
    skip_where_threads_wait(model, 2)
    with torch_threads(2):
        assert first_difference(model, LONG, rows=(1, 3, 8), accepted=2 if model.kernels is None else 8) is None


def test_a_commit_that_leaves_the_states_is_noticed() -> None:
    """Negative control: keys and values are rolled back and the states are not."""

    def swap(self: RecurrentStates, path: Sequence[int], nodes: object) -> None:
        self._front, self._back = self._back, self._front
        self._close()

    with patch.object(RecurrentStates, "commit", swap):
        found = first_difference(model_of("qwen3_5", torch.float32), FRESH, accepted=4)
    assert found == "the memory after 1 of 4"


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("family", HYBRIDS)
def test_trees_of_one_call_or_several_are_their_paths(family: str, dtype: torch.dtype) -> None:
    model = model_of(family, dtype)
    for seed, (num_nodes, num_calls) in enumerate(((24, 1), (13, 3))):
        case = random_case(seed, VOCAB, len(PROMPT), num_nodes, num_calls)
        assert torch.equal(tree_logits(model, case), step_logits(model, case))


def first_wrong_node(model: DecoderModel, num_nodes: int) -> int | None:
    """The first node of a random tree after whose path's commit something differs from having decoded that path:
    logits of its nodes, all that is remembered, or the next token's logits. None where nothing does."""
    case = random_case(5, VOCAB, 0, num_nodes, 2)
    for node in range(num_nodes):
        path = path_to(case.parents, node)
        tree, plain = LONG.cache(model), LONG.cache(model)
        rows = torch.cat([logits_of(model, tree, part) for part in case.trees()])
        tree.commit(path)
        alone = steps(model, plain, [case.tokens[ancestor] for ancestor in path])
        if not (torch.equal(rows[list(path)], alone) and Memory.of(tree).equals(Memory.of(plain))):
            return node
        if not torch.equal(step(model, tree, 1), step(model, plain, 1)):
            return node
    return None


@pytest.mark.parametrize("family", HYBRIDS)
def test_after_any_path_of_a_tree_all_is_as_if_it_had_been_decoded(family: str) -> None:
    assert first_wrong_node(model_of(family, torch.bfloat16), 14) is None


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_so_it_is_after_every_path_of_24_nodes(dtype: torch.dtype, threads: int) -> None:
    """Of fewer on torch, which takes longer."""
    model = model_of("qwen3_5", dtype)
    skip_where_threads_wait(model, threads)
    with torch_threads(threads):
        assert first_wrong_node(model, 4 if model.kernels is None else 24) is None


def test_a_path_that_ends_one_node_early_is_noticed() -> None:
    """Negative control."""
    model = model_of("qwen3_5", torch.float32)
    real = RecurrentStates.commit

    def one_less(self: RecurrentStates, path: Sequence[int], nodes: OpenNodes) -> None:
        real(self, path[:-1] or path, nodes)

    with patch.object(RecurrentStates, "commit", one_less):
        assert first_wrong_node(model, 8) == 1


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("family", HYBRIDS)
def test_prefill_in_any_chunks_is_step_by_step(family: str, dtype: torch.dtype) -> None:
    model, text = model_of(family, dtype), random_tokens(4, 20)
    plain = model.new_cache(60)
    assert isinstance(plain, HybridCache)
    expected = steps(model, plain, text)
    for sizes in ((20,), (1, 19), (2, 3, 15), (7, 7, 6)):
        read = model.new_cache(60)
        assert isinstance(read, HybridCache)
        rows, start = [], 0
        for size in sizes:
            for _, out in model.prefill(text[start : start + size], read, ALL_ROWS):
                assert out.logits is not None
                rows.append(out.logits)
            start += size
        assert torch.equal(torch.cat(rows), expected)
        assert Memory.of(read).equals(Memory.of(plain))
        assert read.states.tape is None  # a tape of a long prompt would be larger than all else


def test_several_sequences_in_one_call_are_each_alone() -> None:
    for dtype in DTYPES.values():
        model = model_of("qwen3_next", dtype)
        trees = [chain((3, 4)), DraftTree(tokens=torch.tensor([5, 6, 7, 8]), parents=(-1, 0, 0, 2)), chain((9,))]
        paths, starts = [(0,), (0, 2, 3), (0,)], [FRESH, LONG, LONG]
        together, alone = ([start.cache(model) for start in starts] for _ in range(2))
        outs = model.score(list(zip(trees, together, strict=True)), NOTHING)
        for out, tree, path, ours, theirs in zip(outs, trees, paths, together, alone, strict=True):
            assert out.logits is not None
            assert torch.equal(out.logits, logits_of(model, theirs, tree))
            ours.commit(path)
            theirs.commit(path)
            assert Memory.of(ours).equals(Memory.of(theirs))


class Fault(Exception):  # noqa: N818  (not an error of ours)
    """What befalls a round."""


def test_an_exception_between_score_and_commit_leaves_a_sequence_as_it_was() -> None:
    for family in HYBRIDS:
        model, tokens = model_of(family, torch.float32), random_tokens(6, 6)
        cache, plain = LONG.cache(model), LONG.cache(model)
        before = Memory.of(cache)
        try:
            logits_of(model, cache, chain(tokens))
            raise Fault
        except Fault:
            cache.rollback()
        assert Memory.of(cache).equals(before)
        other = LONG.cache(model)
        with pytest.raises(TargetError):  # the whole call is refused, and nobody's round is longer
            model.score([(chain(tokens), cache), (chain((VOCAB,)), other)], NOTHING)
        assert torch.equal(steps(model, cache, tokens), steps(model, plain, tokens))
        assert Memory.of(cache).equals(Memory.of(plain))


def test_a_forward_that_fails_half_way_leaves_its_round_as_it_was() -> None:
    """In torch's forward, where a layer can be made to fail."""
    model, tokens = model_of("qwen3_5", torch.float32, trainable=True), random_tokens(6, 6)
    cache, plain = LONG.cache(model), LONG.cache(model)
    logits_of(model, cache, chain(tokens[:3]))
    real, calls = forward.gated_delta, iter(range(10))

    def failing(*arguments: object) -> Tensor:
        if next(calls) == 2:
            raise Fault
        return real(*arguments)  # type: ignore[arg-type]

    more = DraftTree(tokens=torch.tensor(tokens[3:]), parents=(2, 3, 4))
    with patch.object(forward, "gated_delta", failing), pytest.raises(Fault):
        model.score([(more, cache)], NOTHING)
    assert cache.num_open == 3
    rows = logits_of(model, cache, more)
    assert torch.equal(rows, steps(model, plain, tokens)[3:])
    cache.commit(range(6))
    assert Memory.of(cache).equals(Memory.of(plain))


@pytest.mark.skipif(native.available() is None, reason="there are no kernels")
@pytest.mark.parametrize("parents", [(2, 3, 4), (0, 0, 4), (1, 3, 1)], ids=str)
def test_a_call_of_the_kernels_that_fails_leaves_its_round_as_it_was(parents: tuple[int, ...]) -> None:
    """It has written to the tape and to the back, and says that no memory was left."""
    model, tokens = model_of("qwen3_5", torch.bfloat16), random_tokens(6, 6)
    kernels, more = required(), DraftTree(tokens=torch.tensor(tokens[3:]), parents=parents)
    real = kernels.forward
    for failing in (more, DraftTree(tokens=torch.tensor(tokens[::-1][:2]), parents=(2, 2))):
        cache, plain = LONG.cache(model), LONG.cache(model)
        before = Memory.of(cache)
        for sound in (cache, plain):
            logits_of(model, sound, chain(tokens[:3]))
        with patch.object(kernels, "forward", lambda call: real(call) + 1), pytest.raises(TargetError, match="memory"):
            model.score([(failing, cache)], NOTHING)
        assert (cache.num_open, Memory.of(cache).equals(before)) == (3, True)
        assert torch.equal(logits_of(model, cache, more), logits_of(model, plain, more))
        path = path_to((-1, 0, 1, *parents), 5)
        cache.commit(path)
        plain.commit(path)
        assert Memory.of(cache).equals(Memory.of(plain))


def rounds_of(text: Sequence[int], choices: Random) -> Iterator[tuple[tuple[int, ...], int]]:
    """A text in rounds: each one's drafts, right up to somewhere, and how many tokens of it stand."""
    done = 0
    while done < len(text):
        count = choices.choice((1, 1, 4, 8))
        accepted = min(choices.randint(1, count), len(text) - done)
        wrong = tuple((token + 1) % VOCAB for token in text[done + accepted : done + count])
        yield (*text[done : done + accepted], *wrong), accepted
        done += accepted


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_long_text_in_rounds_is_that_text_read_at_once(dtype: torch.dtype) -> None:
    """Two thousand tokens on the kernels; torch, which takes longer, goes as far in ``tests/cache``."""
    model = make_model(
        "qwen3_5",
        dtype,
        exact="require",
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        max_position_embeddings=2100,
    )
    text = random_tokens(7, 500 if model.kernels is None else 2000)
    rounds, read = model.new_cache(2020), model.new_cache(2020)
    assert isinstance(rounds, HybridCache)
    assert isinstance(read, HybridCache)
    for tokens, accepted in rounds_of(text, Random(3)):
        logits_of(model, rounds, chain(tokens))
        rounds.commit(range(accepted))
    list(model.prefill(text, read, NOTHING))
    assert Memory.of(rounds).equals(Memory.of(read))
    assert torch.equal(step(model, rounds, 1), step(model, read, 1))
