"""Whatever happens to a cache, the model sees the tokens it was told to keep: a state machine against recomputation."""

from __future__ import annotations

import functools

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.factories import make_model

from surefoot.cache.kv import KVCache
from surefoot.errors import CacheError, CapacityError, SurefootError, TargetError
from surefoot.models import forward
from surefoot.models.decoder import DecoderModel
from surefoot.ops import attention
from surefoot.tree import chain, path_to
from surefoot.types import Capture, DraftTree

VOCAB, CAPACITY, CONTEXT = 11, 24, 22
TOLERANCE = 1e-9
NOTHING = Capture()
TOKEN = st.integers(0, VOCAB - 1)
KINDS = {
    "full": {"family": "llama"},
    "sliding": {"family": "mistral", "sliding_window": 4},
    "mixed": {"family": "qwen2", "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
}


@functools.cache
def model_of(kind: str, prefill_chunk: int) -> DecoderModel:
    return make_model(
        dtype=torch.float64,
        prefill_chunk=prefill_chunk,
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        **KINDS[kind],
    )


@functools.cache
def from_scratch(kind: str, tokens: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """The last row's logits ``[V]`` after ``tokens``, and every layer's keys and values, in one forward and a new
    cache."""
    model = model_of(kind, 512)
    cache = model.new_cache(len(tokens))
    ((_, out),) = model.prefill(tokens, cache, NOTHING)
    return out.logits[-1], torch.stack(cache.rows_to_read(0, len(tokens)))


class CacheMachine(RuleBasedStateMachine):
    """One sequence at a time: ``kept`` are the tokens that should be committed, ``tokens`` and ``parents`` the open
    round.

    ``resting`` are forks, and caches that were forked, each with the tokens it should go on holding.
    """

    @initialize(kind=st.sampled_from(sorted(KINDS)), prefill_chunk=st.sampled_from([1, 3, 512]))
    def start(self, kind: str, prefill_chunk: int) -> None:
        self.kind, self.model = kind, model_of(kind, prefill_chunk)
        self.cache = self.model.new_cache(CAPACITY)
        self.kept: list[int] = []
        self.resting: list[tuple[KVCache, tuple[int, ...]]] = []
        self.forget()

    def forget(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []

    def room(self) -> int:
        return min(CONTEXT, self.cache.capacity) - len(self.kept) - len(self.parents)

    def check_node(self, node: int, logits: torch.Tensor) -> None:
        path = [self.tokens[step] for step in path_to(self.parents, node)]
        expected, _ = from_scratch(self.kind, (*self.kept, *path))
        assert (logits - expected).abs().max() < TOLERANCE, (self.kept, path)

    @precondition(lambda self: not self.parents and self.room() > 1)
    @rule(tokens=st.lists(TOKEN, min_size=1, max_size=7), num_chunks=st.integers(1, 7))
    def prefill(self, tokens: list[int], num_chunks: int) -> None:
        """Feeds a prompt, or closes the iterator after some chunks."""
        tokens = tokens[: self.room()]
        chunks = self.model.prefill(tokens, self.cache, NOTHING)
        for _, (chunk, out) in zip(range(num_chunks), chunks, strict=False):
            self.kept += chunk
            fed_all = out.logits is not None
        chunks.close()
        if fed_all:
            assert (out.logits[-1] - from_scratch(self.kind, tuple(self.kept))[0]).abs().max() < TOLERANCE

    @precondition(lambda self: self.room() > 1)
    @rule(nodes=st.lists(st.tuples(TOKEN, st.integers(1, 3)), min_size=1, max_size=5))
    def grow(self, nodes: list[tuple[int, int]]) -> None:
        """Scores new nodes, each the child of one of the last three before it."""
        start = len(self.parents)
        for token, back in nodes[: self.room()]:
            self.parents.append(max(len(self.parents) - back, 0) if self.parents else -1)
            self.tokens.append(token)
        tree = DraftTree(tokens=torch.tensor(self.tokens[start:]), parents=tuple(self.parents[start:]))
        (out,) = self.model.score([(tree, self.cache)], NOTHING)
        for row, node in enumerate(range(start, len(self.parents))):
            self.check_node(node, out.logits[row])

    @precondition(lambda self: self.parents)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        path = path_to(self.parents, data.draw(st.integers(0, len(self.parents) - 1)))
        self.cache.commit(path)
        self.kept += [self.tokens[node] for node in path]
        self.forget()

    @rule()
    def roll_back(self) -> None:
        self.cache.rollback()
        self.forget()

    @precondition(lambda self: not self.parents)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        length = data.draw(st.integers(0, len(self.kept)))
        self.cache.truncate(length)
        del self.kept[length:]

    @precondition(lambda self: not self.parents and len(self.resting) < 3)
    @rule(data=st.data(), stays=st.booleans())
    def fork(self, data: st.DataObject, stays: bool) -> None:
        """Goes on with one of the two and lets the other rest."""
        capacity = data.draw(st.integers(max(len(self.kept), 1), CAPACITY))
        pair = [self.cache, self.cache.fork(capacity)]
        assert pair[1].capacity == capacity
        self.cache, rests = pair if stays else reversed(pair)
        self.resting.append((rests, tuple(self.kept)))

    @precondition(lambda self: not self.parents and self.resting)
    @rule(data=st.data())
    def switch(self, data: st.DataObject) -> None:
        """Goes on with a cache that was resting."""
        cache, kept = self.resting.pop(data.draw(st.integers(0, len(self.resting) - 1)))
        self.resting.append((self.cache, tuple(self.kept)))
        self.cache, self.kept = cache, list(kept)

    @rule(data=st.data())
    def be_refused(self, data: st.DataObject) -> None:
        """Calls that must fail change nothing; the invariants and later rules see to that."""
        too_long = DraftTree(tokens=torch.zeros(99, dtype=torch.int64), parents=tuple(range(-1, 98)))
        wrong_or_full = (TargetError, CapacityError)
        calls = [
            (
                wrong_or_full,
                lambda: self.model.score([(DraftTree(tokens=torch.tensor([1]), parents=(99,)), self.cache)], NOTHING),
            ),
            (wrong_or_full, lambda: self.model.score([(chain([VOCAB]), self.cache)], NOTHING)),
            (SurefootError, lambda: self.model.score([(too_long, self.cache)], NOTHING)),
            (CacheError, lambda: self.cache.commit([len(self.parents)])),
            (CacheError, lambda: self.cache.truncate(len(self.kept) + 1)),
            (CacheError, lambda: self.cache.fork(CAPACITY if self.parents else len(self.kept) - 1)),
            (SurefootError, lambda: self.model.prefill([0] * 99, self.cache, NOTHING)),
        ]
        error, call = data.draw(st.sampled_from(calls))
        with pytest.raises(error):
            call()

    @precondition(lambda self: not self.parents and self.room() > 1)
    @rule(token=TOKEN)
    def fail_inside(self, token: int) -> None:
        """The forward breaks off in its second layer, after it has written rows."""
        running = self.model._forward
        intact, running.layers = running.layers, (running.layers[0], None)
        try:
            with pytest.raises(AttributeError):
                self.model.score([(chain([token, token]), self.cache)], NOTHING)
        finally:
            running.layers = intact

    @invariant()
    def state_is_what_it_should_be(self) -> None:
        if not hasattr(self, "cache"):
            return
        assert (self.cache.length, self.cache.num_open) == (len(self.kept), len(self.parents))
        for cache, kept in ((self.cache, tuple(self.kept)), *self.resting):
            assert cache.length == len(kept)
            if kept:
                rows = torch.stack(cache.rows_to_read(0, len(kept)))
                assert (rows - from_scratch(self.kind, kept)[1]).abs().max() < TOLERANCE


def run(max_examples: int, steps: int = 30) -> None:
    """Runs the machine on fixed random choices; a failing one is shown as found, as shrinking takes minutes."""
    checks = settings(
        max_examples=max_examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run_state_machine_as_test(CacheMachine, settings=checks)
    finally:
        torch.set_num_threads(before)


def test_a_cache_holds_what_was_kept_whatever_happens() -> None:
    run(max_examples=150)


class TestTheMachineSees:
    """Negative controls: each defect must end a run of the same machine."""

    def breaks(self) -> None:
        with pytest.raises(AssertionError):
            run(max_examples=60)

    def test_positions_by_node_index(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def by_index(self: forward.Forward, spans: list[forward.Span]) -> tuple[torch.Tensor, ...]:
            start = spans[0].cache.length + len(spans[0].nodes.parents) - spans[0].num_new
            return spans[0].cache.rope.run(start, spans[0].num_new)

        monkeypatch.setattr(forward.Forward, "_angles", by_index)
        self.breaks()

    def test_siblings_that_see_each_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def lower_triangle(parents: tuple[int, ...]) -> torch.Tensor:
            return torch.ones(len(parents), len(parents), dtype=torch.bool).tril()

        monkeypatch.setattr(attention, "ancestor_mask", lower_triangle)
        self.breaks()

    def test_a_path_moved_one_row_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = KVCache._move

        def one_off(self: KVCache, nodes: list[int], start: int) -> None:
            right(self, [node - 1 for node in nodes], start)

        monkeypatch.setattr(KVCache, "_move", one_off)
        self.breaks()

    def test_a_path_that_is_not_moved(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(KVCache, "_move", lambda self, nodes, start: None)
        self.breaks()

    def test_a_fork_that_shares_its_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = KVCache.fork

        def sharing(self: KVCache, capacity: int) -> KVCache:
            other = right(self, capacity)
            if capacity <= self.capacity:
                other._rows_LKCD = self._rows_LKCD
            return other

        monkeypatch.setattr(KVCache, "fork", sharing)
        self.breaks()

    def test_a_fork_without_its_last_row(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = KVCache.fork

        def one_less(self: KVCache, capacity: int) -> KVCache:
            other = right(self, capacity)
            other._rows_LKCD[:, :, max(self.length - 1, 0) :] = 0
            return other

        monkeypatch.setattr(KVCache, "fork", one_less)
        self.breaks()

    def test_a_window_one_too_wide(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = attention.Round.first_visible
        visible = attention._visible

        def wider(around: attention.Round, window: int | None) -> torch.Tensor:
            return visible(around, None if window is None else window + around.is_chain)

        monkeypatch.setattr(attention, "_visible", wider)
        monkeypatch.setattr(
            attention.Round, "first_visible", lambda self, window: right(self, None if window is None else window + 1)
        )
        self.breaks()
