"""Whatever a round held and however it ended, the states are those of never having speculated, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest
import torch
from tests.delta_layers import (
    EVEN,
    ODD,
    DeltaLayers,
    DeltaSequence,
    Interrupted,
    random_tokens,
    random_tree,
    torch_threads,
)

from surefoot.cache.recurrent import RecurrentStates, Replayer, replay_in_torch
from surefoot.errors import BrokenCacheError, CacheError
from surefoot.ops.delta_rule import DeltaShape
from surefoot.tree import path_to

SHAPES = {"even": EVEN, "odd": ODD}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
MOST = 12
AFTERWARDS = 3


def first_wrong_count(
    layers: DeltaLayers, *, long_run: bool, replayer: Replayer | None = None, most: int = MOST
) -> int | None:
    """The least accepted count after which something differs from plain decoding: memory, rows of keys, or what the
    next tokens give. None where all is the same."""
    tokens = random_tokens(Random(2), most + AFTERWARDS)
    for count in range(1, most + 1):
        plain, rounds = layers.sequence(long_run=long_run), layers.sequence(long_run=long_run, replayer=replayer)
        plain.steps(tokens[:count])
        rounds.score(tokens[:most], range(-1, most - 1))
        rounds.cache.commit(range(count))
        if not rounds.snapshot().equals(plain.snapshot()):
            return count
        following = tokens[most:]
        if not torch.equal(plain.steps(following), rounds.steps(following)):
            return count
    return None


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_accepted_count_is_never_having_speculated(shape: DeltaShape, dtype: torch.dtype) -> None:
    layers = DeltaLayers(shape, dtype)
    assert first_wrong_count(layers, long_run=False) is None
    assert first_wrong_count(layers, long_run=True) is None


def test_on_two_threads_too() -> None:
    with torch_threads(2):
        assert first_wrong_count(DeltaLayers(ODD, torch.float32), long_run=True, most=6) is None


def one_node_less(states: RecurrentStates, path: Sequence[int]) -> None:
    replay_in_torch(states, path[:-1])


def one_node_on(states: RecurrentStates, path: Sequence[int]) -> None:
    replay_in_torch(states, [*path, path[-1] + 1])


def from_the_wrong_state(states: RecurrentStates, path: Sequence[int]) -> None:
    before = states.committed.state.clone()
    states.committed.state.copy_(states.tentative.state)
    replay_in_torch(states, path)
    states.committed.state.copy_(before)


def without_the_history(states: RecurrentStates, path: Sequence[int]) -> None:
    after = states.tentative.history.clone()
    replay_in_torch(states, path)
    states.tentative.history.copy_(after)


def nothing_at_all(states: RecurrentStates, path: Sequence[int]) -> None:
    return None


WRONG: dict[str, Replayer] = {
    "off by one back": one_node_less,
    "off by one forth": one_node_on,
    "from the state after the round": from_the_wrong_state,
    "history of the whole round": without_the_history,
    "no replay": nothing_at_all,
}


@pytest.mark.parametrize("replayer", WRONG.values(), ids=WRONG)
def test_a_wrong_replay_is_noticed(replayer: Replayer) -> None:
    """Negative controls: what others got wrong."""
    assert first_wrong_count(DeltaLayers(EVEN, torch.float32), long_run=True, replayer=replayer) is not None


@pytest.mark.parametrize("long_run", [False, True], ids=["fresh", "long run"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_path_of_a_tree_is_that_path_alone(dtype: torch.dtype, long_run: bool) -> None:
    choices = Random(4)
    for shape in (EVEN, ODD):
        layers = DeltaLayers(shape, dtype)
        parents = random_tree(choices)
        tokens = random_tokens(choices, len(parents))
        for node in range(len(parents)):
            path = path_to(parents, node)
            tree, plain = layers.sequence(long_run=long_run), layers.sequence(long_run=long_run)
            together = tree.score(tokens, parents)
            tree.cache.commit(path)
            alone = plain.steps([tokens[ancestor] for ancestor in path])
            assert torch.equal(together[:, path], alone)
            assert tree.snapshot().equals(plain.snapshot())


def test_nodes_that_come_later_find_their_parents() -> None:
    """A tree that grows level by level, and a chain that grows token by token, are those that come at once."""
    choices = Random(8)
    for parents in (random_tree(choices), random_tree(choices), list(range(-1, 11))):
        layers = DeltaLayers(ODD, torch.bfloat16)
        tokens = random_tokens(choices, len(parents))
        at_once, grown = layers.sequence(long_run=True), layers.sequence(long_run=True)
        together = at_once.score(tokens, parents)
        outs, start = [], 0
        while start < len(parents):
            stop = min(len(parents), start + choices.randint(1, 5))
            outs.append(grown.score(tokens[start:stop], parents[start:stop]))
            start = stop
        assert torch.equal(torch.cat(outs, 1), together)
        path = path_to(parents, len(parents) - 1)
        at_once.cache.commit(path)
        grown.cache.commit(path)
        assert at_once.snapshot().equals(grown.snapshot())


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_prefill_in_any_chunks_is_step_by_step(dtype: torch.dtype, chunk: int) -> None:
    layers = DeltaLayers(ODD, dtype)
    tokens = random_tokens(Random(3), 20)
    plain, prefilled = layers.sequence(), layers.sequence()
    outs = torch.cat([prefilled.prefill(tokens[start : start + chunk]) for start in range(0, 20, chunk)], 1)
    assert torch.equal(outs, plain.steps(tokens))
    assert prefilled.snapshot().equals(plain.snapshot())
    assert prefilled.cache.states.tape is None


def speculate(sequence: DeltaSequence, text: Sequence[int], choices: Random) -> dict[str, int]:
    """Feeds a text in rounds of random shape and fate, some of which fail; how many there were of each kind."""
    kinds = {"plain": 0, "chain": 0, "tree": 0, "grown": 0, "failed": 0, "forgotten": 0}
    done = 0
    while done < len(text):
        kind = choices.choice([*kinds])
        kinds[kind] += 1
        count = 1 if kind == "plain" else min(len(text) - done, choices.randint(1, 9))
        accepted = choices.randint(1, count)
        right, path = [*text[done : done + accepted], *random_tokens(choices, count - accepted)], range(accepted)
        parents = list(range(-1, count - 1))
        if kind == "tree":  # a wrong sibling before each right node but the root
            parents = [-1, *(2 * ((node - 1) // 2) for node in range(1, 2 * accepted - 1))]
            right = [*text[done : done + 1], *(t for token in text[done + 1 : done + accepted] for t in (0, token))]
            path = range(0, 2 * accepted - 1, 2)
        if kind == "failed":
            with pytest.raises(Interrupted):
                sequence.score(right, parents, fail=True)
            sequence.cache.rollback()
            continue
        if kind == "grown":
            sequence.score(right[:1], parents[:1])
            if count > 1:
                with pytest.raises(Interrupted):
                    sequence.score(right[1:], parents[1:], fail=True)
                sequence.score(right[1:], parents[1:])
        else:
            sequence.score(right, parents)
        if kind == "forgotten":
            sequence.cache.rollback()
            continue
        sequence.cache.commit(path)
        done += accepted
    return kinds


def test_two_thousand_tokens_in_rounds_of_every_kind_are_those_of_plain_decoding() -> None:
    shape = DeltaShape(num_key_heads=1, num_value_heads=2, key_dim=8, value_dim=8)
    layers = DeltaLayers(shape, torch.bfloat16, num_layers=1)
    choices = Random(6)
    text = random_tokens(choices, 2000)
    plain, rounds = layers.sequence(), layers.sequence()
    plain.steps(text)
    kinds = speculate(rounds, text, choices)
    assert min(kinds.values()) > 50
    assert rounds.snapshot().equals(plain.snapshot())
    assert torch.equal(rounds.step(1), plain.step(1))


def test_a_round_that_is_forgotten_or_fails_leaves_the_memory_as_it_was() -> None:
    sequence = DeltaLayers(EVEN, torch.float32).sequence(long_run=True)
    before = sequence.snapshot()
    sequence.score([1, 2, 3], [-1, 0, 0])
    with pytest.raises(Interrupted):
        sequence.score([4], [1], fail=True)
    assert sequence.cache.num_open == 3
    sequence.cache.rollback()
    assert sequence.snapshot().equals(before)


def with_history(sequence: DeltaSequence) -> DeltaSequence:
    """Twelve tokens: a prefill of two chunks, and a round."""
    sequence.prefill([1, 2, 3, 4])
    sequence.prefill([5, 6, 7])
    sequence.score([8, 9, 10, 11, 12], range(-1, 4))
    sequence.cache.commit(range(5))
    return sequence


def test_a_cache_goes_back_to_where_its_last_prefill_chunk_began() -> None:
    layers = DeltaLayers(ODD, torch.float32)
    sequence, plain = with_history(layers.sequence()), layers.sequence()
    assert [sequence.cache.restorable(length) for length in (0, 3, 4, 11, 12, 20)] == [0, 0, 4, 4, 12, 12]
    sequence.cache.truncate(12)
    plain.steps([1, 2, 3, 4])
    for _ in range(2):  # what is kept stays until the next prefill
        sequence.cache.truncate(4)
        assert sequence.snapshot().equals(plain.snapshot())
        sequence.steps([20, 21])
    sequence.cache.truncate(0)
    assert sequence.cache.restorable(4) == 0
    sequence.steps([1, 2, 3, 4])
    assert sequence.snapshot().equals(plain.snapshot())
    sequence.steps([5, 6])
    assert sequence.cache.restorable(5) == 0  # another text's four tokens are not kept for this one


@pytest.mark.parametrize("length", [1, 3, 5, 11])
def test_going_back_to_what_is_gone_is_refused_and_changes_nothing(length: int) -> None:
    sequence = with_history(DeltaLayers(ODD, torch.float32).sequence())
    before = sequence.snapshot()
    with pytest.raises(CacheError, match=f"truncate to {length} of 12 .*12, 4 or 0"):
        sequence.cache.truncate(length)
    assert sequence.snapshot().equals(before)
    assert sequence.cache.length == 12
    sequence.cache.truncate(4)


def test_forks_go_their_own_ways() -> None:
    layers = DeltaLayers(EVEN, torch.bfloat16)
    sequence, plain = with_history(layers.sequence()), with_history(layers.sequence())
    fork = DeltaSequence(layers, sequence.cache.fork(100))
    assert fork.cache.capacity == 100
    assert [fork.cache.restorable(length) for length in (4, 12)] == [0, 12]
    sequence.steps([3, 4])
    assert fork.snapshot().equals(plain.snapshot())
    fork.score([5, 6, 7], range(-1, 2))
    fork.cache.commit([0, 1])
    plain.steps([5, 6])
    assert fork.snapshot().equals(plain.snapshot())


@pytest.mark.parametrize("seed", range(4))
def test_after_any_history_a_sequence_is_its_tokens_step_by_step(seed: int) -> None:
    """Prefills, rounds, turns back and forks in any order."""
    choices, layers = Random(seed), DeltaLayers(ODD, torch.bfloat16, num_layers=1)
    sequence, plain, text, done = layers.sequence(), layers.sequence(), [], set()
    for kind in choices.choices(["prefill", "round", "back", "fork"], weights=(5, 5, 3, 1), k=80):
        if kind == "prefill":
            read = random_tokens(choices, choices.randint(1, 6))
            sequence.prefill(read)
            text += read
        elif kind == "round":
            parents = random_tree(choices, 8)
            nodes = random_tokens(choices, len(parents))
            sequence.score(nodes, parents)
            path = path_to(parents, choices.randrange(len(parents)))
            sequence.cache.commit(path)
            text += [nodes[node] for node in path]
        elif kind == "back":
            wanted = choices.randint(2 * len(text) // 3, len(text))
            length = sequence.cache.restorable(wanted)
            assert length <= wanted
            if 0 < length < len(text):
                done.add("went back")
            sequence.cache.truncate(length)
            text = text[:length]
        else:
            sequence = DeltaSequence(layers, sequence.cache.fork(4096))
        done.add(kind)
        assert sequence.cache.length == len(text)
        if kind == "back":
            plain = layers.sequence()
        for token in text[plain.cache.length :]:
            plain.step(token)
        assert sequence.snapshot().equals(plain.snapshot())
    assert done == {"prefill", "round", "back", "fork", "went back"}


INTERRUPTED: dict[str, Callable[[DeltaSequence], object]] = {
    "commit": lambda sequence: sequence.cache.commit([0]),
    "prefill": lambda sequence: sequence.cache.commit_chunk(2),
    "truncate": lambda sequence: sequence.cache.truncate(0),
}


@pytest.mark.parametrize("verb", INTERRUPTED)
def test_an_interruption_while_states_change_breaks_the_cache(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sequence = with_history(DeltaLayers(EVEN, torch.float32).sequence())
    if verb == "commit":
        sequence.score([1, 2], [-1, 0])

    def interrupted(self: RecurrentStates, *_: object) -> None:
        raise KeyboardInterrupt

    for name in ("commit", "commit_chunk", "restore"):
        monkeypatch.setattr(RecurrentStates, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        INTERRUPTED[verb](sequence)
    monkeypatch.undo()
    sequence.cache.rollback()
    with pytest.raises(BrokenCacheError):
        sequence.step(1)


def test_a_tape_grows_with_its_round_and_a_long_one_goes_with_it() -> None:
    layers = DeltaLayers(EVEN, torch.float32)
    sequence, plain = layers.sequence(), layers.sequence()
    tokens = random_tokens(Random(1), 100)
    small = sequence.cache.states.num_bytes
    for start in range(0, 100, 10):  # the rows of earlier nodes move with it
        sequence.score(tokens[start : start + 10], range(start - 1, start + 9))
    tape = sequence.cache.states.tape
    assert tape is not None
    assert tape.qkv.shape[1] >= 100
    assert sequence.cache.states.num_bytes > small
    sequence.cache.commit(range(99))
    plain.steps(tokens[:99])
    assert sequence.snapshot().equals(plain.snapshot())
    assert sequence.cache.states.num_bytes == small


def test_made_up_states_can_be_gone_back_to() -> None:
    sequence = DeltaLayers(EVEN, torch.float32).sequence(long_run=True)
    before = sequence.snapshot()
    assert before.state.std() > 0.5
    sequence.steps([1, 2, 3])
    sequence.cache.truncate(7)
    assert sequence.snapshot().equals(before)


def test_the_record_says_where_the_buffers_lie() -> None:
    sequence = DeltaLayers(EVEN, torch.bfloat16).sequence(long_run=True)
    sequence.score([1, 2], [-1, 0])
    states, record = sequence.cache.states, sequence.cache.states.record
    assert states.tape is not None
    assert [record.qkv, record.k, record.delta, record.alpha] == [rows.data_ptr() for rows in states.tape]
    assert record.capacity == states.tape.qkv.shape[1]
    assert record.front_state == states.committed.state.data_ptr()
    assert record.back_history == states.tentative.history.data_ptr()
    assert not record.continues
    buffers = (*states.tape, states.committed.state, states.committed.history, states.tentative.state)
    assert all(buffer.is_contiguous() for buffer in buffers)
    front, back = record.front_state, record.back_state
    sequence.cache.commit([0, 1])
    assert (states.record.front_state, states.record.back_state) == (back, front)
