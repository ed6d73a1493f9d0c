"""The loop: what it emits, what it commits, and what it leaves behind when something fails."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.guesses import Guesser, half_right, oracle
from tests.tables import TableCache, TableTarget

from surefoot import Engine, SamplingParams, SpeculativeOptions
from surefoot.control.policy import FixedPolicy
from surefoot.decode import Decoding, advance, prefill
from surefoot.drafters.lookup import Lookup
from surefoot.drafters.none import NoDrafts
from surefoot.errors import SamplingError, TargetError
from surefoot.protocols import DrafterModel
from surefoot.sampling import RequestSampler
from surefoot.stops import Limits, NoText, RequestStops
from surefoot.types import DraftTree, Event, Plan, Verdict
from surefoot.verify import verify

PROMPT = (1, 2, 3, 1, 2)
TEMPERATURES = (0.0, 0.8)


def params_at(temperature: float, max_tokens: int = 24) -> SamplingParams:
    return SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=7)


def plain_tokens(target: TableTarget, params: SamplingParams, prompt: Sequence[int] = PROMPT) -> tuple[int, ...]:
    return Engine(target).generate(prompt, params).tokens


def decoding_for(
    target: TableTarget,
    drafter: DrafterModel,
    params: SamplingParams,
    prompt: Sequence[int] = PROMPT,
    num_draft: int = 4,
) -> tuple[Decoding, TableCache, RequestStops]:
    cache = target.new_cache(64)
    stops = RequestStops(Limits(stop_ids=(), max_tokens=params.max_tokens, at_context_end=False), NoText())
    decoding = Decoding(
        cache=cache,
        drafter=drafter.start(target),
        sampler=RequestSampler(params, prompt, seed=params.seed or 0, vocab_size=target.vocab_size),
        stops=stops,
        policy=FixedPolicy(num_draft),
        verify=verify,
        vocab_size=target.vocab_size,
    )
    return decoding, cache, stops


def emitted(stops: RequestStops) -> list[int]:
    return [event.token for event in stops.events]


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("num_draft", [1, 2, 4, 7])
def test_any_drafter_gives_the_plain_tokens(temperature: float, num_draft: int) -> None:
    target, params = TableTarget(), params_at(temperature)
    plain = plain_tokens(target, params)
    known = [*plain, *[0] * 8]
    for drafter in (Guesser(oracle(known, len(PROMPT))), Guesser(half_right(known, len(PROMPT), target.vocab_size))):
        result = Engine(target, drafter).generate(PROMPT, params, speculative=SpeculativeOptions(num_draft=num_draft))
        assert result.tokens == plain
        assert result.stats.fallbacks == 0
        assert result.stats.accepted > 0


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_lookup_gives_the_plain_tokens(temperature: float) -> None:
    target, params = TableTarget(order=1), params_at(temperature)
    result = Engine(target, Lookup(min_match=1)).generate(PROMPT, params)
    assert result.tokens == plain_tokens(target, params)
    assert result.stats.fallbacks == 0
    assert result.stats.accepted > 0


def test_a_verdict_from_the_wrong_rows_is_seen() -> None:
    """Negative control: the equality above fails when the walk reads row 0 for every node."""
    target, params = TableTarget(), params_at(0.0)
    plain = plain_tokens(target, params)
    guesser = Guesser(oracle(plain, len(PROMPT)))
    decoding, _, stops = decoding_for(target, guesser, params)
    decoding.verify = lambda tree, logits, sampler: verify(tree, logits[:1].expand_as(logits), sampler)
    prefill(target, PROMPT, [decoding])
    while decoding.finish_reason is None:
        advance(target, [decoding])
    assert tuple(emitted(stops)) != plain


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_invariants_hold_after_every_round(temperature: float) -> None:
    target, params = TableTarget(), params_at(temperature, max_tokens=30)
    plain = plain_tokens(target, params)
    guesser = Guesser(half_right([*plain, *[0] * 8], len(PROMPT), target.vocab_size))
    decoding, cache, stops = decoding_for(target, guesser, params)
    prefill(target, PROMPT, [decoding])
    accepted, paths = set(), set()
    while decoding.finish_reason is None:
        (verdict,) = advance(target, [decoding])
        accepted.add(verdict.num_accepted)
        paths.add(verdict.path)
        text = [*PROMPT, *emitted(stops)]
        assert cache.tokens == text[:-1]
        assert [*guesser.context, decoding.root] == text
        assert cache.open_tokens == []
    assert accepted >= {0, 1, 2, 3}
    assert any(path != tuple(range(len(path))) for path in paths)
    assert tuple(emitted(stops)) == plain


def test_zero_draft_rounds_between_others_change_nothing() -> None:
    target, params = TableTarget(), params_at(0.8, max_tokens=30)
    plain = plain_tokens(target, params)
    guess = oracle([*plain, *[0] * 8], len(PROMPT), depth=3)
    guesser = Guesser(lambda context: guess(context) if len(context) % 3 else [])
    result = Engine(target, guesser).generate(PROMPT, params)
    assert result.tokens == plain
    assert result.stats.accepted > 0
    assert {event.origin for event in result.events} == {"plain", "draft", "bonus"}


def test_another_drafters_tree_is_observed_like_ones_own() -> None:
    target, params = TableTarget(), params_at(0.0)
    plain = plain_tokens(target, params)
    decoding, _, stops = decoding_for(target, Guesser(lambda context: []), params)
    prefill(target, PROMPT, [decoding])
    other = oracle([*plain, *[0] * 8], len(PROMPT), depth=2)
    while decoding.finish_reason is None:
        count = min(2, decoding.stops.remaining - 1)
        context = [*PROMPT, *emitted(stops)]
        decoding.draft()
        proposer = Guesser(other)
        proposer.context = context[:-1]
        tree = proposer.propose(decoding.root, Plan(num_nodes=count, depth=count), decoding.sampler)
        (out,) = target.score([(tree, decoding.cache)], decoding.drafter.capture)  # type: ignore[list-item]
        decoding.absorb(tree, out)
    assert tuple(emitted(stops)) == plain
    assert decoding.tally.accepted > 0


def test_max_tokens_is_met_exactly_from_zero_on() -> None:
    target = TableTarget()
    plain = plain_tokens(target, params_at(0.0, max_tokens=20))
    for count in range(10):
        guesser = Guesser(oracle([*plain, *[0] * 8], len(PROMPT)))
        result = Engine(target, guesser).generate(PROMPT, params_at(0.0, max_tokens=count))
        assert result.tokens == plain[:count]
        assert result.finish_reason == "length"
        assert result.usage.completion_tokens == count


def test_no_more_is_drafted_than_can_be_emitted() -> None:
    target = TableTarget()
    plain = plain_tokens(target, params_at(0.0, max_tokens=20))
    guesser = Guesser(oracle(plain, len(PROMPT)))
    stats = Engine(target, guesser).generate(PROMPT, params_at(0.0, max_tokens=3)).stats
    assert (stats.rounds, stats.drafted, stats.accepted) == (1, 1, 1)


@pytest.mark.parametrize("place", range(12))
def test_stop_id_anywhere_cuts_ids_cache_and_counts(place: int) -> None:
    target = TableTarget(vocab_size=31)
    plain = plain_tokens(target, params_at(0.0, max_tokens=12))
    stop = plain[place]
    expected = plain[: plain.index(stop) + 1]
    params = SamplingParams(max_tokens=12, stop_token_ids=(stop,))
    guesser = Guesser(oracle([*plain, *[0] * 8], len(PROMPT)))
    result = Engine(target, guesser).generate(PROMPT, params)
    assert result.tokens == expected
    assert result.finish_reason == "stop"
    assert result.usage.completion_tokens == len(expected)
    assert guesser.context == [*PROMPT, *expected[:-1]]
    stats = result.stats
    assert 1 + stats.rounds + stats.accepted - (result.events[-1].origin == "draft") == len(expected)


def test_eos_ends_unless_ignored() -> None:
    target = TableTarget()
    plain = plain_tokens(target, params_at(0.0))
    engine = Engine(target, Lookup(min_match=1), eos_token_ids=(plain[4],))
    ended = engine.generate(PROMPT, params_at(0.0))
    assert ended.tokens == plain[: plain.index(plain[4]) + 1]
    assert engine.generate(PROMPT, SamplingParams(max_tokens=24, ignore_eos=True)).tokens == plain


def test_context_end_is_reached_exactly_and_named() -> None:
    target = TableTarget(context_length=16)
    result = Engine(target, Lookup(min_match=1)).generate(PROMPT, SamplingParams(max_tokens=100))
    assert len(result.tokens) == 11
    assert result.finish_reason == "context"
    assert result.tokens == plain_tokens(TableTarget(context_length=16), SamplingParams(max_tokens=100))


def test_closing_a_stream_at_any_token_leaves_the_cache_valid() -> None:
    target, params = TableTarget(), params_at(0.0, max_tokens=12)
    plain = plain_tokens(target, params)
    for count in range(13):
        guesser = Guesser(half_right([*plain, *[0] * 8], len(PROMPT), target.vocab_size))
        stream = Engine(target, guesser).stream(PROMPT, params)
        cache = stream._request.decoding.cache
        assert isinstance(cache, TableCache)
        read = [next(stream).token for _ in range(count)]
        stream.close()
        assert tuple(read) == plain[:count] == stream.result.tokens
        assert cache.open_tokens == []
        assert cache.tokens == [*PROMPT, *plain][: len(cache.tokens)]
        assert guesser.closed == 1
        assert stream.result.finish_reason == ("length" if count == 12 else "cancelled")


@pytest.mark.parametrize("method", ["propose", "observe", "observe later"])
def test_a_failing_drafter_is_dropped_warned_about_and_counted(method: str) -> None:
    target, params = TableTarget(), params_at(0.8)
    plain = plain_tokens(target, params)
    guesser = Guesser(oracle([*plain, *[0] * 8], len(PROMPT), depth=2))
    calls = []

    def fail(*_: object) -> DraftTree:
        calls.append(1)
        if method == "observe later" and len(calls) < 4:
            return Guesser.observe(guesser, *_)  # type: ignore[arg-type, return-value]
        raise ZeroDivisionError("broken")

    setattr(guesser, method.split()[0], fail)
    with pytest.warns(RuntimeWarning, match="Guesser failed and is dropped.*ZeroDivisionError: broken"):
        result = Engine(target, guesser).generate(PROMPT, params)
    assert result.tokens == plain
    assert result.stats.fallbacks == 1
    assert guesser.closed == 1


@pytest.mark.parametrize(
    ("branches", "reason"),
    [([[9]], "ids below 5"), ([[-3]], "ids below 5")],
)
def test_a_drafter_with_tokens_outside_the_vocabulary_is_dropped(branches: list[list[int]], reason: str) -> None:
    target, params = TableTarget(), params_at(0.0)
    with pytest.warns(RuntimeWarning, match=reason):
        result = Engine(target, Guesser(lambda context: branches)).generate(PROMPT, params)
    assert result.tokens == plain_tokens(target, params)
    assert result.stats.fallbacks == 1


def test_a_drafter_past_its_plan_is_dropped() -> None:
    class Greedy(Guesser):
        def propose(self, root: int, plan: Plan, sampler: object) -> DraftTree:
            return super().propose(root, Plan(num_nodes=9, depth=9), sampler)  # type: ignore[arg-type]

    target, params = TableTarget(), params_at(0.0)
    with pytest.warns(RuntimeWarning, match="the plan allows"):
        result = Engine(target, Greedy(lambda context: [[0] * 9])).generate(PROMPT, params)
    assert result.tokens == plain_tokens(target, params)


def test_a_failing_target_raises_a_typed_error_and_leaves_the_cache_valid() -> None:
    target, params = TableTarget(), params_at(0.0)
    plain = plain_tokens(target, params)
    target.num_forwards, target.fail_at = 0, 3
    guesser = Guesser(half_right([*plain, *[0] * 8], len(PROMPT), target.vocab_size))
    stream = Engine(target, guesser).stream(PROMPT, params)
    cache = stream._request.decoding.cache
    assert isinstance(cache, TableCache)
    with pytest.raises(TargetError, match="RuntimeError: out of memory"):
        for _ in stream:
            pass
    assert cache.open_tokens == []
    assert cache.tokens == [*PROMPT, *plain][: len(cache.tokens)]
    assert guesser.closed == 1


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_several_sequences_share_forwards_and_each_equals_itself_alone(temperature: float) -> None:
    target = TableTarget()
    prompts = [(1,), (2, 3, 4), PROMPT, (4, 4, 4, 4)]
    params = [params_at(temperature, max_tokens=count) for count in (5, 17, 24, 11)]
    alone = [plain_tokens(target, p, prompt) for prompt, p in zip(prompts, params, strict=True)]
    made = [
        decoding_for(
            target, Guesser(half_right([*tokens, *[0] * 8], len(prompt), 5)) if i % 2 else NoDrafts(), p, prompt
        )
        for i, (prompt, p, tokens) in enumerate(zip(prompts, params, alone, strict=True))
    ]
    for (decoding, _, _), prompt in zip(made, prompts, strict=True):
        prefill(target, prompt, [decoding])
    forwards = target.num_forwards
    rounds = 0
    while running := [decoding for decoding, _, _ in made if decoding.finish_reason is None]:
        advance(target, running)
        rounds += 1
    assert [tuple(emitted(stops)) for _, _, stops in made] == alone
    assert target.num_forwards - forwards == rounds
    assert sum(decoding.tally.accepted for decoding, _, _ in made) > 0


def test_one_failing_sequence_does_not_disturb_the_others() -> None:
    target, params = TableTarget(), params_at(0.8, max_tokens=12)
    prompts = [(1,), (2,), (3,)]
    alone = [plain_tokens(target, params, prompt) for prompt in prompts]
    made = [decoding_for(target, NoDrafts(), params, prompt) for prompt in prompts]
    for (decoding, _, _), prompt in zip(made, prompts, strict=True):
        prefill(target, prompt, [decoding])

    def no_token(*_: object) -> Verdict:
        raise SamplingError("no token")

    made[1][0].verify = no_token
    running = [decoding for decoding, _, _ in made]
    with pytest.raises(SamplingError):
        advance(target, running)
    assert [decoding.failed for decoding in running] == [False, True, False]
    assert all(cache.open_tokens == [] for _, cache, _ in made)
    del made[1], alone[1]
    while running := [decoding for decoding, _, _ in made if decoding.finish_reason is None]:
        advance(target, running)
    assert [tuple(emitted(stops)) for _, _, stops in made] == alone


def test_a_failed_round_leaves_a_sequence_as_it_was_before() -> None:
    target, params = TableTarget(), params_at(0.8, max_tokens=12)
    guesser = Guesser(oracle([*plain_tokens(target, params), *[0] * 8], len(PROMPT)))
    decoding, cache, stops = decoding_for(target, guesser, params)
    prefill(target, PROMPT, [decoding])
    committed = list(cache.tokens)

    def no_token(*_: object) -> Verdict:
        raise SamplingError("no token")

    decoding.verify = no_token
    with pytest.raises(SamplingError):
        advance(target, [decoding])
    assert (decoding.failed, cache.tokens, cache.open_tokens) == (True, committed, [])
    decoding.verify, decoding.failed = verify, False
    while decoding.finish_reason is None:
        advance(target, [decoding])
    assert tuple(emitted(stops)) == plain_tokens(target, params)


def test_on_token_stops_right_after_the_token_it_refuses() -> None:
    target, params = TableTarget(), params_at(0.0, max_tokens=12)
    plain = plain_tokens(target, params)
    for place in range(12):
        guesser = Guesser(oracle([*plain, *[0] * 8], len(PROMPT)))
        seen: list[Event] = []

        def refuse(event: Event, seen: list[Event] = seen, place: int = place) -> bool:
            seen.append(event)
            return len(seen) <= place

        result = Engine(target, guesser).generate(PROMPT, params, on_token=refuse)
        assert result.tokens == plain[: place + 1] == tuple(event.token for event in seen)
        assert result.finish_reason == ("length" if place == 11 else "cancelled")
        assert guesser.context == [*PROMPT, *plain[:place]]


def test_an_error_in_on_token_reaches_the_caller_with_nothing_half_done() -> None:
    target, params = TableTarget(), params_at(0.0)

    def refuse(event: Event) -> None:
        if event.round == 2:
            raise KeyError("mine")

    stream = Engine(target, Lookup(min_match=1)).stream(PROMPT, params, on_token=refuse)
    cache = stream._request.decoding.cache
    assert isinstance(cache, TableCache)
    with pytest.raises(KeyError, match="mine"):
        for _ in stream:
            pass
    assert cache.open_tokens == []
    plain = plain_tokens(target, params)
    assert cache.tokens == [*PROMPT, *plain][: len(cache.tokens)]


def test_accounts_agree_with_the_events() -> None:
    target, params = TableTarget(), params_at(0.8, max_tokens=40)
    plain = plain_tokens(target, params)
    guesser = Guesser(half_right([*plain, *[0] * 8], len(PROMPT), target.vocab_size))
    result = Engine(target, guesser).generate(PROMPT, params)
    stats = result.stats
    assert stats.accepted == sum(event.origin == "draft" for event in result.events)
    assert stats.rounds == max(event.round for event in result.events)
    assert sum(stats.accepted_by_position) == stats.accepted
    assert len(result.tokens) == 1 + stats.rounds + stats.accepted - (result.events[-1].origin == "draft")
    assert stats.mean_acceptance_length == 1 + stats.accepted / stats.rounds
    assert stats.seconds.rounds > 0
