"""Past answers: they speed up requests that come again, change no token, and keep to their memory."""

from __future__ import annotations

import random
import threading
import tracemalloc
from collections.abc import Sequence
from math import ceil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories import make_model
from tests.guesses import Predicted
from tests.tables import TableTarget

from surefoot import Engine, SamplingParams, SpeculativeOptions
from surefoot.drafters.lookup import Lookup, LookupDrafter
from surefoot.drafters.none import NoDrafts
from surefoot.drafters.store import AnswerStore, PastAnswers
from surefoot.drafters.suffix import SuffixAutomaton
from surefoot.errors import OptionError, TargetError
from surefoot.request import Result
from surefoot.types import Plan, TargetOutput

NOTHING = TargetOutput(logits=None)
LEAST = 1 << 20
VOCAB_SIZE = 200
PROMPTS = ((1, 2, 3, 1, 2), (4, 5, 6), (1, 2, 3, 1, 2), (9, 9, 1, 2), (4, 5, 6))
at_temperatures = pytest.mark.parametrize("temperature", [0.0, 0.8])


def target(**options: int) -> TableTarget:
    return TableTarget(VOCAB_SIZE, context_length=200, **options)


def params_at(temperature: float, num_tokens: int = 60) -> SamplingParams:
    return SamplingParams(temperature=temperature, max_tokens=num_tokens, seed=7)


def answers_of(store: AnswerStore) -> list[list[int]]:
    """What is kept, oldest first."""
    answers: list[list[int]] = [[]]
    for segment in reversed(store.segments()):
        for token in segment.tokens:
            if token == -1:
                answers.append([])
            else:
                answers[-1].append(token)
    return answers[:-1]


@at_temperatures
def test_no_answer_depends_on_the_ones_before_it(temperature: float) -> None:
    def answers(model: NoDrafts | Lookup) -> list[Result]:
        engine = Engine(target(), model)
        return [engine.generate(prompt, params_at(temperature)) for prompt in PROMPTS]

    stored = answers(Lookup(store=AnswerStore()))
    assert [result.tokens for result in stored] == [result.tokens for result in answers(NoDrafts())]
    assert all(result.stats.fallbacks == 0 for result in stored)
    assert stored[2].stats.accepted > 0
    assert stored[4].stats.accepted > 0


@at_temperatures
def test_no_answer_of_a_real_model_depends_on_the_ones_before_it(temperature: float) -> None:
    model = make_model("llama", torch.float64, seed=3)
    engine, plain = Engine(model, Lookup(store=AnswerStore())), Engine(model)
    for prompt in (*PROMPTS[:3], PROMPTS[0][:4]):
        params = params_at(temperature, 40)
        result = engine.generate([token % 97 for token in prompt], params)
        assert result.tokens == plain.generate([token % 97 for token in prompt], params).tokens
        assert result.stats.fallbacks == 0
    assert result.stats.accepted > 0


def rounds_of_the_second(model: Lookup, temperature: float) -> int:
    engine = Engine(target(), model)
    first, second = (
        engine.generate(PROMPTS[0], params_at(temperature), speculative=SpeculativeOptions(num_draft=8))
        for _ in range(2)
    )
    assert second.tokens == first.tokens
    return second.stats.rounds


FLOOR = ceil(59 / 9) + 3
"""Two tokens have to be written before a match of two, and the last token of all was never observed."""


@at_temperatures
def test_a_request_that_comes_again_is_accepted_nearly_whole(temperature: float) -> None:
    assert rounds_of_the_second(Lookup(store=AnswerStore()), temperature) <= FLOOR


@at_temperatures
def test_without_a_store_requests_know_nothing_of_each_other(temperature: float) -> None:
    """Negative control of the floor, and what is done by default."""
    assert Lookup().store is None
    assert rounds_of_the_second(Lookup(), temperature) > 3 * FLOOR


@at_temperatures
def test_a_request_beside_one_that_is_still_open_is_not_disturbed(temperature: float) -> None:
    engine = Engine(target(), Lookup(store=AnswerStore()))
    plain = [Engine(target()).generate(prompt, params_at(temperature)).tokens for prompt in PROMPTS]
    streams = [engine.stream(prompt, params_at(temperature)) for prompt in PROMPTS]
    for events in zip(*streams, strict=True):
        assert len(events) == len(PROMPTS)
    assert [stream.result.tokens for stream in streams] == plain


Answers = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), min_size=1, max_size=3)


def continuation_reference(
    segments: list[list[list[int]]], text: list[int], longer_than: int, count: int
) -> list[int] | None:
    """By trying every end in every segment, newest first; what has no continuation where it was last is passed over."""
    best: list[int] | None = None
    for answers in segments:
        tokens = [token for answer in answers for token in (*answer, -1)]
        length = end = 0
        for stop in range(1, len(tokens) + 1):
            run = max(n for n in range(min(32, stop, len(text)) + 1) if same_end(tokens[:stop], text, n))
            if run >= max(length, 1):
                length, end = run, stop
        if length > longer_than and tokens[end] != -1:
            rest = tokens[end : end + count]
            longer_than, best = length, rest[: rest.index(-1)] if -1 in rest else rest
    return best


def same_end(tokens: list[int], text: list[int], length: int) -> bool:
    return not length or tokens[-length:] == text[-length:]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(Answers, max_size=3),
    st.lists(st.integers(0, 2), max_size=60),
    st.integers(0, 3),
    st.sets(st.integers(0, 60)),
    st.integers(0, 3),
)
def test_the_longest_match_is_continued_whenever_it_is_asked_for(
    segments: list[list[list[int]]], text: list[int], root: int, asked_at: set[int], longer_than: int
) -> None:
    past = PastAnswers(
        [SuffixAutomaton(token for answer in answers for token in (*answer, -1)) for answers in segments]
    )
    for length in range(len(text) + 1):
        if length in asked_at or length == len(text):
            found = past.continuation(text[:length], root, longer_than=longer_than, count=4)
            expected = continuation_reference(segments, [*text[:length], root], longer_than, 4)
            assert found == expected


def test_matches_of_thirty_two_tokens_and_more_count_alike() -> None:
    """So that the end of a text decides alone: the newer of two that agree on it goes on."""
    run = list(range(100, 150))
    newer, older = SuffixAutomaton((*run[10:], 1, -1)), SuffixAutomaton((*run, 2, -1))
    assert PastAnswers([newer, older]).continuation(run[:-1], run[-1], longer_than=1, count=3) == [1]
    assert PastAnswers([older, newer]).continuation(run[:-1], run[-1], longer_than=1, count=3) == [2]


@pytest.mark.parametrize("length", [3, 9, 31])
def test_a_long_match_is_seen_however_late_it_is_asked_for(length: int) -> None:
    run = list(range(100, 150))
    shorter, longer = SuffixAutomaton((*run[-length:], 1, -1)), SuffixAutomaton((*run[-length - 1 :], 2, -1))
    assert PastAnswers([shorter, longer]).continuation(run[:-1], run[-1], longer_than=1, count=3) == [2]


def proposed(drafter: LookupDrafter, root: int, count: int = 4) -> list[int]:
    tokens: list[int] = drafter.propose(root, Plan(num_nodes=count, depth=count), None).tokens.tolist()  # type: ignore[arg-type]
    return tokens[1:]


def drafter_with(*answers: Sequence[int], text: Sequence[int], min_match: int = 2) -> LookupDrafter:
    store = AnswerStore()
    for answer in answers:
        store.add(answer)
    drafter = LookupDrafter(Lookup(min_match=min_match, store=store))
    drafter.observe(text, NOTHING, None)
    return drafter


def test_the_longest_match_wins_and_the_texts_own_among_equals() -> None:
    assert proposed(drafter_with((1, 2, 3, 50), text=(2, 3, 60, 1, 2)), 3) == [50]
    assert proposed(drafter_with((2, 3, 50), text=(2, 3, 60, 61, 1, 2)), 3) == [60, 61, 1, 2]
    assert proposed(drafter_with((2, 3, 50), (2, 3, 51), text=(1, 2)), 3) == [51]
    assert proposed(drafter_with((3, 50), text=(1, 2)), 3) == []
    assert proposed(drafter_with((3, 50), text=(1, 2), min_match=1), 3) == [50]


def test_no_draft_runs_from_one_answer_into_another() -> None:
    assert proposed(drafter_with((1, 2, 3), (4, 5, 6), text=(1,)), 2) == [3]
    assert proposed(drafter_with((1, 2, 3), (4, 5, 6), text=(2,)), 3) == []


def store_after(text: Sequence[tuple[Sequence[int], bool]]) -> list[list[int]]:
    store = AnswerStore()
    drafter = LookupDrafter(Lookup(store=store))
    for tokens, is_round in text:
        if is_round:
            proposed(drafter, tokens[0])
        drafter.observe(tokens, NOTHING, range(len(tokens)) if is_round else None)
    assert answers_of(store) == []
    drafter.close()
    drafter.close()
    return answers_of(store)


def test_answers_are_stored_without_their_prompts_when_the_drafter_is_closed_once() -> None:
    assert store_after([((1, 2), False), ((3,), False)]) == []
    assert store_after([((1, 2), False), ((3,), True), ((4, 5), True)]) == [[3, 4, 5]]
    assert store_after([((1, 2), False), ((3, 4), True), ((5, 6), False), ((7, 8), True)]) == [[3, 4], [7, 8]]


def test_what_was_taken_back_is_not_stored() -> None:
    store = AnswerStore()
    drafter = LookupDrafter(Lookup(store=store))
    for tokens, path in (((1, 2), None), ((3, 4), (0, 1)), ((5,), None), ((6, 7), (0, 1))):
        drafter.observe(tokens, NOTHING, path)
    drafter.truncate(3)
    drafter.observe((8,), NOTHING, None)
    drafter.observe((9,), NOTHING, (0,))
    drafter.close()
    assert answers_of(store) == [[3], [9]]


@pytest.mark.parametrize("predicted", [False, True])
def test_a_cancelled_answer_is_stored_and_a_failed_one_is_not(predicted: bool) -> None:
    """What was emitted before a failure is right, but a failing target or caller is no model for others."""
    store = AnswerStore()
    answer = Engine(target()).generate(PROMPTS[0], params_at(0.0)).tokens

    def engine_on(table: TableTarget) -> Engine:
        inner = Lookup(store=store)
        return Engine(table, Predicted(answer, inner) if predicted else inner)

    failing = target()
    failing.fail_at = 3
    with pytest.raises(TargetError):
        engine_on(failing).generate(PROMPTS[0], params_at(0.0))
    assert answers_of(store) == []
    stream = engine_on(target()).stream(PROMPTS[0], params_at(0.0))
    for _ in range(10):
        next(stream)
    stream.close()
    (kept,) = answers_of(store)
    assert len(kept) >= 9
    assert kept == list(answer[: len(kept)])


def test_an_answer_that_is_kept_already_is_not_kept_twice() -> None:
    store = AnswerStore()
    for answer in ((1, 2, 3, 4), (2, 3), (1, 2, 3, 4), (4, 5), (3, 4, 5)):
        store.add(answer)
    assert answers_of(store) == [[1, 2, 3, 4], [4, 5], [3, 4, 5]]
    store.add(())
    assert len(answers_of(store)) == 3


def random_answers(count: int, length: int) -> list[list[int]]:
    choose = random.Random(length)
    return [[choose.randrange(1000) for _ in range(length)] for _ in range(count)]


@pytest.mark.parametrize("length", [20, 150, 1000])
def test_past_the_memory_allowed_the_oldest_answers_are_dropped(length: int) -> None:
    store = AnswerStore(max_bytes=LEAST)
    answers = random_answers(8000 // length, length)
    for i, answer in enumerate(answers):
        store.add(answer)
        kept = [token for piece in answers_of(store) for token in piece]
        said = [token for past in answers[: i + 1] for token in past]
        assert kept == said[len(said) - len(kept) :], "the newest, in order"
        assert store.num_bytes <= LEAST
    assert 1000 < len(kept) < 3000


def test_dropping_one_segment_leaves_the_others() -> None:
    """An eighth goes at a time, so most of the memory stays in use."""
    store = AnswerStore(max_bytes=LEAST)
    sizes = []
    for answer in random_answers(150, 100):
        store.add(answer)
        sizes.append(store.num_bytes)
    assert min(sizes[40:]) > 0.6 * LEAST
    assert len(store.segments()) <= 16


def test_a_large_store_keeps_to_sixteen_segments() -> None:
    store = AnswerStore(max_bytes=1 << 40)
    store._segment_tokens = 64
    for answer in random_answers(60, 40):
        store.add(answer)
    assert len(store.segments()) == 16


def test_the_memory_is_estimated_within_a_quarter() -> None:
    texts = [" ".join(map(str, answer)) for answer in random_answers(30, 100)]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        store = AnswerStore()
        for text in texts:
            store.add([int(token) for token in text.split()])
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.8 < store.num_bytes / (after - before) < 1.25


def test_what_a_request_reads_does_not_change_while_others_add() -> None:
    store = AnswerStore()
    store.add((1, 2, 3, 4))
    segments = store.segments()
    tokens = [list(segment.tokens) for segment in segments]
    store.add((1, 2, 9, 9))
    assert [segment.tokens for segment in segments] == tokens
    assert PastAnswers(segments).continuation([1], 2, longer_than=1, count=2) == [3, 4]
    assert PastAnswers(store.segments()).continuation([1], 2, longer_than=1, count=2) == [9, 9]


def test_threads_lose_no_answer() -> None:
    store = AnswerStore()
    batches = [[[1000 * n + i, *range(10 * n, 10 * n + 5)] for i in range(60)] for n in range(4)]
    lost: list[list[int]] = []

    def work(batch: list[list[int]]) -> None:
        for answer in batch:
            store.add(answer)
            if not any(segment.holds(answer) for segment in store.segments()):
                lost.append(answer)

    threads = [threading.Thread(target=work, args=(batch,)) for batch in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == []
    assert sorted(answers_of(store)) == sorted(answer for batch in batches for answer in batch)


@pytest.mark.parametrize("max_bytes", [0, LEAST - 1, True, 2.5e6])
def test_too_little_memory_is_refused(max_bytes: int) -> None:
    with pytest.raises(OptionError, match=f"expected an integer of at least {LEAST}"):
        AnswerStore(max_bytes=max_bytes)
