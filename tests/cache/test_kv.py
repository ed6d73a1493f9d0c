"""A cache refuses what may not happen, and an interruption never passes unnoticed."""

from __future__ import annotations

import pytest
import torch
from tests.factories import make_model

from surefoot.cache.base import Transaction
from surefoot.cache.kv import KVCache
from surefoot.errors import BrokenCacheError, CacheError, CapacityError, TargetError
from surefoot.ops.rope import Rope, RopeTable
from surefoot.tree import chain
from surefoot.types import Capture, DraftTree

NOTHING = Capture()
TREE = DraftTree(tokens=torch.tensor([1, 2, 3, 4]), parents=(-1, 0, 0, 2))


def small_cache(capacity: int = 8) -> KVCache:
    return KVCache(
        owner=None,
        capacity=capacity,
        num_layers=2,
        num_kv_heads=1,
        head_dim=2,
        rope=RopeTable(Rope(theta=10000.0, dim=2), capacity, dtype=torch.float64, device=torch.device("cpu")),
        like=torch.empty(0, dtype=torch.float64),
    )


def numbered(cache: KVCache, parents: tuple[int, ...]) -> None:
    """Opens a round whose rows hold their own cache row number in every layer."""
    start = cache.length + cache.num_open
    nodes = cache.transaction.extended(parents)
    for rows in cache.rows_to_write(start, len(parents)):
        rows.copy_(torch.arange(start, start + len(parents))[:, None, None].expand(rows.shape))
    cache.transaction.open = nodes


def row_numbers(cache: KVCache) -> list[list[float]]:
    return [rows[0, :, 0].tolist() for rows in cache.rows_to_read(0, cache.length)]


@pytest.mark.parametrize(
    ("path", "kept"), [((0,), [0]), ((0, 1), [0, 1]), ((0, 2), [0, 2]), ((0, 2, 3), [0, 2, 3]), ([0, 2, 3], [0, 2, 3])]
)
@pytest.mark.parametrize("by", ["kernels", "torch"])
def test_a_commit_keeps_the_rows_of_its_path_in_every_layer(
    path: tuple[int, ...], kept: list[int], by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "torch":
        monkeypatch.setattr("surefoot.cache.kv.available", lambda: None)
    cache = small_cache()
    numbered(cache, (-1,))
    cache.commit((0,))
    numbered(cache, TREE.parents)
    cache.commit(path)
    assert (cache.length, cache.num_open) == (1 + len(kept), 0)
    assert row_numbers(cache) == [[0, *(row + 1 for row in kept)]] * 4


def test_a_cache_made_in_inference_mode_may_be_used_outside() -> None:
    model = make_model("llama", num_hidden_layers=1)
    with torch.inference_mode():
        cache = model.new_cache(8)
    model.score([(TREE, cache)], NOTHING)
    cache.commit((0, 2, 3))
    assert cache.length == 3


def test_a_path_that_is_a_prefix_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = small_cache()
    numbered(cache, (-1, 0, 1, 2))
    monkeypatch.setattr(KVCache, "_move", lambda *_: pytest.fail("rows were moved"))
    cache.commit((0, 1, 2))
    assert cache.length == 3


@pytest.mark.parametrize("path", [(), (1,), (0, 3), (0, 2, 1), (0, 0), (-1,), (0, 4), (0, 0.5)])
def test_a_path_must_lead_from_the_root_down(path: tuple[int, ...]) -> None:
    cache = small_cache()
    numbered(cache, TREE.parents)
    with pytest.raises(CacheError, match="path"):
        cache.commit(path)
    assert (cache.length, cache.num_open) == (0, 4)
    cache.commit((0, 2))


@pytest.mark.parametrize("parents", [(), (0,), (-2,), (-1, -1), (-1, 1), (-1, 0, 5)])
def test_parents_must_come_before_their_children(parents: tuple[int, ...]) -> None:
    with pytest.raises(TargetError):
        Transaction(8).extended(parents)


def test_a_later_call_cannot_open_a_second_root() -> None:
    cache = small_cache()
    numbered(cache, (-1, 0))
    with pytest.raises(TargetError, match="parent -1"):
        cache.transaction.extended((-1,))
    assert cache.transaction.extended((0, 2)).parents == (-1, 0, 0, 2)


def test_depths_and_chains_are_counted_over_all_calls() -> None:
    transaction = Transaction(8)
    transaction.open = transaction.extended((-1, 0))
    assert transaction.extended((1, 2)) == ((-1, 0, 1, 2), (0, 1, 2, 3), True)
    assert transaction.extended((0, 2)) == ((-1, 0, 0, 2), (0, 1, 1, 2), False)


def test_only_what_fits_is_taken() -> None:
    cache = small_cache(capacity=3)
    numbered(cache, (-1, 0))
    cache.transaction.require_room(1)
    with pytest.raises(CapacityError, match="2 of 3"):
        cache.transaction.extended((0, 0))
    for capacity in (0, -1, True, 2.0):
        with pytest.raises(CapacityError):
            small_cache(capacity)  # type: ignore[arg-type]


def test_between_rounds_and_inside_them_other_things_are_allowed() -> None:
    cache = small_cache()
    cache.rollback()
    with pytest.raises(CacheError, match="open round"):
        cache.commit((0,))
    numbered(cache, (-1, 0))
    for forbidden in (lambda: cache.truncate(0), lambda: cache.transaction.require_closed("prefill")):
        with pytest.raises(CacheError, match="open"):
            forbidden()
    cache.commit((0, 1))
    for length in (3, -1, True, 1.0):
        with pytest.raises(CacheError, match="truncate"):
            cache.truncate(length)  # type: ignore[arg-type]
    cache.truncate(1)
    assert cache.length == 1


def test_forks_of_forks_go_their_own_ways() -> None:
    first = small_cache()
    numbered(first, (-1, 0, 1))
    first.commit((0, 1, 2))
    second = first.fork(4)
    second.truncate(2)
    third = second.fork(6)
    numbered(third, (-1, 0, 0, 2))
    third.commit((0, 2, 3))
    numbered(first, (-1,))
    first.rollback()
    assert row_numbers(first) == [[0, 1, 2]] * 4
    assert row_numbers(second) == [[0, 1]] * 4
    assert row_numbers(third) == [[0, 1, 2, 4, 5]] * 4
    assert [cache.capacity for cache in (first, second, third)] == [8, 4, 6]


def test_a_fork_needs_a_closed_round_and_room_for_what_is_committed() -> None:
    cache = small_cache()
    assert cache.fork(1).length == 0
    numbered(cache, (-1, 0, 1))
    with pytest.raises(CacheError, match="fork while a round of 3 nodes is open"):
        cache.fork(8)
    cache.commit((0, 1, 2))
    for capacity in (2, 0, -1, True, 8.0):
        with pytest.raises(CapacityError):
            cache.fork(capacity)  # type: ignore[arg-type]
    assert cache.fork(3).length == 3


def test_a_cache_has_room_for_its_length_and_what_is_spare() -> None:
    model = make_model("llama", num_hidden_layers=1)
    assert (model.new_cache(5).capacity, model.new_cache(5, spare=3).capacity) == (5, 8)
    for wrong in ({"length": 0}, {"length": 2, "spare": -1}, {"length": True}, {"length": 2, "spare": 1.0}):
        with pytest.raises(CapacityError):
            model.new_cache(**wrong)  # type: ignore[arg-type]


def test_a_model_serves_its_own_caches_and_their_forks_alone() -> None:
    model, other = (make_model("llama", num_hidden_layers=1, seed=seed) for seed in (0, 1))
    cache = model.new_cache(4)
    assert model.serves(cache, 4)
    assert model.serves(cache.fork(9), 9)
    assert not other.serves(cache, 4)


def test_an_interrupted_commit_breaks_the_cache_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    model = make_model("llama", num_hidden_layers=1)
    cache = model.new_cache(16)
    model.score([(TREE, cache)], NOTHING)
    with monkeypatch.context() as patch:
        patch.setattr(KVCache, "_move", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cache.commit((0, 2))
    cache.rollback()
    uses = (
        lambda: cache.commit((0,)),
        lambda: cache.truncate(0),
        lambda: cache.fork(16),
        lambda: model.score([(TREE, cache)], NOTHING),
        lambda: model.prefill([1], cache, NOTHING),
    )
    for use in uses:
        with pytest.raises(BrokenCacheError):
            use()


def test_a_model_takes_only_its_own_caches_and_each_once() -> None:
    model, other = (make_model("llama", num_hidden_layers=1, seed=seed) for seed in (0, 1))
    cache = model.new_cache(16)
    for call in (
        lambda: other.score([(TREE, cache)], NOTHING),
        lambda: other.prefill([1], cache, NOTHING),
        lambda: model.score([(TREE, object())], NOTHING),
    ):
        with pytest.raises(CacheError, match="another model"):
            call()
    with pytest.raises(TargetError, match="twice"):
        model.score([(TREE, cache), (TREE, cache)], NOTHING)
    assert (cache.length, cache.num_open) == (0, 0)


def test_an_error_in_one_sequence_leaves_the_others_as_they_were() -> None:
    model = make_model("llama", num_hidden_layers=1)
    good, small = model.new_cache(16), model.new_cache(2)
    with pytest.raises(CapacityError):
        model.score([(TREE, good), (TREE, small)], NOTHING)
    with pytest.raises(TargetError, match="vocabulary"):
        model.score([(TREE, good), (chain([97]), small)], NOTHING)
    assert good.num_open == small.num_open == 0


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda model, cache: model.score([], NOTHING), "no trees"),
        (lambda model, cache: model.score([(chain([-1]), cache)], NOTHING), "token -1"),
        (lambda model, cache: model.score([(chain([1]), cache)], Capture(layers=(1,))), "layer 1"),
        (lambda model, cache: model.score([(chain([1]), cache)], Capture(layers=(-1,))), "layer -1"),
        (
            lambda model, cache: model.score([(DraftTree(tokens=torch.tensor([1.0]), parents=(-1,)), cache)], NOTHING),
            "int64",
        ),
        (
            lambda model, cache: model.score([(DraftTree(tokens=torch.tensor([1]), parents=(-1, 0)), cache)], NOTHING),
            "shape",
        ),
        (lambda model, cache: model.score([(chain([1] * 9), cache)], NOTHING), "context length"),
        (lambda model, cache: model.prefill([], cache, NOTHING), "no tokens"),
        (lambda model, cache: model.prefill([97], cache, NOTHING), "token 97"),
        (lambda model, cache: model.prefill([1.0], cache, NOTHING), "integers"),
        (lambda model, cache: model.prefill([1] * 9, cache, NOTHING), "context length"),
        (lambda model, cache: model.unembed(torch.zeros(2, 7)), "last dimension"),
        (lambda model, cache: model.embed(torch.zeros(2)), "int64"),
    ],
)
def test_wrong_counts_ranges_and_shapes_are_named(call: object, match: str) -> None:
    model = make_model("llama", num_hidden_layers=1, max_position_embeddings=8)
    cache = model.new_cache(16)
    with pytest.raises(TargetError, match=match):
        call(model, cache)  # type: ignore[operator]
    assert (cache.length, cache.num_open) == (0, 0)


def test_a_deep_tree_counts_its_depth_not_its_nodes_against_the_context() -> None:
    model = make_model("llama", num_hidden_layers=1, max_position_embeddings=3)
    cache = model.new_cache(16)
    bush = DraftTree(tokens=torch.tensor([1, 2, 3, 4, 5]), parents=(-1, 0, 0, 1, 2))
    model.score([(bush, cache)], NOTHING)
    with pytest.raises(TargetError, match="context length"):
        model.score([(DraftTree(tokens=torch.tensor([6]), parents=(3,)), cache)], NOTHING)
    assert cache.num_open == 5


def test_closing_a_prefill_early_leaves_a_shorter_sequence() -> None:
    model = make_model("llama", num_hidden_layers=1, prefill_chunk=2)
    cache = model.new_cache(16)
    chunks = model.prefill([1, 2, 3, 4, 5], cache, NOTHING)
    assert cache.length == 0
    assert next(chunks)[0] == (1, 2)
    chunks.close()  # type: ignore[attr-defined]
    assert cache.length == 2
