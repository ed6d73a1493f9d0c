"""What goes wrong beside the target: nothing stays open, nothing is taken for what it is not, and answers stand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import pytest
import torch
from tests.factories import make_model
from tests.guesses import Guesser
from tests.tables import TableCache, TableTarget

from surefoot import Engine, PromptError, RequestError, SamplingParams, SpeculativeOptions
from surefoot.errors import DrafterError, LoadError
from surefoot.protocols import Sampler
from surefoot.request import Stream
from surefoot.tree import chain
from surefoot.types import Capture, DraftTree, Event, Plan

PROMPT = (1, 2, 3)
PARAMS = SamplingParams(max_tokens=8, temperature=0.8, seed=1)


def fail(context: Sequence[int]) -> list[list[int]]:
    raise ValueError("no guess")


def guesser() -> Guesser:
    return Guesser(lambda context: [[1, 1]])


def test_what_is_closed_before_its_first_event_closes_its_drafters_once() -> None:
    drafter = guesser()
    engine = Engine(TableTarget(), drafter)
    stream = engine.stream(PROMPT, PARAMS)
    stream.close()
    assert drafter.closed == 1
    assert (stream.result.tokens, stream.result.finish_reason) == ((), "cancelled")
    samples = engine.samples(PROMPT, PARAMS, n=3)
    samples.close()
    assert drafter.closed == 4
    for ended in (stream, samples):
        ended.close()
    assert drafter.closed == 4


def test_a_stream_that_was_read_closes_its_drafter_once() -> None:
    drafter = guesser()
    stream = Engine(TableTarget(), drafter).stream(PROMPT, PARAMS)
    assert len(list(stream)) == 8
    stream.close()
    assert drafter.closed == 1


def test_closing_an_ended_turn_again_leaves_the_next_one_alone() -> None:
    engine = Engine(TableTarget(), guesser())
    conversation = engine.conversation()
    first = conversation.stream(PROMPT, PARAMS)
    list(first)
    second = conversation.stream(PROMPT, PARAMS)
    tokens = [next(second).token]
    first.close()
    tokens += [event.token for event in second]
    assert tuple(tokens) == engine.generate(PROMPT, PARAMS).tokens


def test_a_failed_drafter_that_cannot_be_closed_costs_no_answer() -> None:
    class Stuck(Guesser):
        def close(self) -> None:
            super().close()
            raise OSError("stuck")

    drafter = Stuck(fail)
    with pytest.warns(RuntimeWarning, match="no guess; closing it failed too: OSError: stuck"):
        result = Engine(TableTarget(), drafter).generate(PROMPT, PARAMS)
    assert result.tokens == Engine(TableTarget()).generate(PROMPT, PARAMS).tokens
    assert (result.stats.fallbacks, drafter.closed) == (1, 1)


def test_a_failed_drafter_is_closed_even_where_its_warning_is_an_error() -> None:
    drafter = Guesser(fail)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning):
            Engine(TableTarget(), drafter).generate(PROMPT, PARAMS)
    assert drafter.closed == 1


def test_a_conversation_closes_a_failed_drafter_once() -> None:
    drafter = Guesser(fail)
    conversation = Engine(TableTarget(), drafter).conversation()
    with pytest.warns(RuntimeWarning, match="no guess"):
        conversation.generate(PROMPT, PARAMS)
    conversation.close()
    assert drafter.closed == 1


class Proposer(Guesser):
    """Proposes one tree over and over."""

    def __init__(self, tree: Callable[[int], DraftTree]) -> None:
        super().__init__(lambda context: [])
        self.tree = tree

    def propose(self, root: int, plan: Plan, sampler: Sampler) -> DraftTree:
        return self.tree(root) if plan.num_nodes > 1 else chain((root,))


def pair(root: int, parents: tuple[int, int] = (-1, 0), q: torch.Tensor | None = None) -> DraftTree:
    return DraftTree(tokens=torch.tensor([root, 1]), parents=parents, q=q)


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        (lambda root: pair(root, (-1, -1)), "expected -1 for the root alone"),
        (lambda root: pair(root, (-2, 0)), "expected -1 for the root alone"),
        (lambda root: pair(root, q=torch.ones(3, 97)), r"expected \(1, 97\)"),
        (lambda root: pair(root, q=torch.ones(1, 9)), r"expected \(1, 97\)"),
        (lambda root: pair(root, q=torch.zeros(1, 97)), "no probability"),
        (lambda root: pair(root, q=torch.full((1, 97), torch.nan)), "no probability"),
    ],
)
def test_a_drafter_whose_tree_is_none_is_dropped(tree: Callable[[int], DraftTree], reason: str) -> None:
    target = make_model(dtype=torch.float64)
    with pytest.warns(RuntimeWarning, match=reason):
        result = Engine(target, Proposer(tree)).generate(
            PROMPT, PARAMS, speculative=SpeculativeOptions(acceptance="reject")
        )
    assert len(result.tokens) == 8
    assert result.stats.fallbacks == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("tied", [True, False])
def test_draft_tokens_need_not_lie_side_by_side(tied: bool, dtype: torch.dtype) -> None:
    target = make_model(dtype=dtype, tie_word_embeddings=tied)
    strided = torch.arange(12)[::3]
    assert torch.equal(target.embed(strided), target.embed(strided.contiguous()))
    drafter = Proposer(lambda root: DraftTree(tokens=torch.tensor([root, 9, 5, 9])[::2], parents=(-1, 0)))
    result = Engine(target, drafter).generate(PROMPT, PARAMS)
    assert result.tokens == Engine(target).generate(PROMPT, PARAMS).tokens
    assert result.stats.drafted > 0


def test_a_prompt_cancelled_before_its_end_says_so_though_nothing_was_to_be_emitted() -> None:
    stream = Engine(TableTarget()).stream((1,) * 20, SamplingParams(max_tokens=0, prompt_logprobs=0))
    stream.cancel()
    assert list(stream) == []
    assert stream.result.finish_reason == "cancelled"


def test_a_message_that_is_none_is_not_left_out() -> None:
    with pytest.raises(PromptError, match=r"'and this'.*expected"):
        Engine(TableTarget()).generate([{"role": "user", "content": "this"}, "and this"])  # type: ignore[list-item]


def test_a_stream_is_not_read_or_closed_from_within() -> None:
    refused: list[str] = []

    def meddle(event: Event) -> None:
        for call in (stream.close, lambda: next(stream)):
            with pytest.raises(RequestError, match=r"being read.*cancel\(\)"):
                call()
            refused.append(event.text)
        assert not stream.ended

    stream: Stream = Engine(TableTarget()).stream(PROMPT, PARAMS, on_token=meddle)
    assert len(list(stream)) == 8
    assert len(refused) == 16
    assert not stream.failed


@pytest.mark.parametrize("method", ["truncate", "observe"])
@pytest.mark.parametrize(("fault", "told"), [(ZeroDivisionError, DrafterError), (KeyboardInterrupt, KeyboardInterrupt)])
def test_a_drafter_that_fails_between_turns_is_made_anew(
    method: str, fault: type[BaseException], told: type[BaseException]
) -> None:
    drafter = guesser()
    engine = Engine(TableTarget(), drafter)
    conversation = engine.conversation()
    before = SpeculativeOptions(method="none") if method == "observe" else SpeculativeOptions()
    conversation.generate(PROMPT, PARAMS, speculative=before)
    closed = drafter.closed

    def broken(*_: object) -> None:
        raise fault("broken")

    setattr(drafter, method, broken)
    with pytest.raises(told, match=r"^broken$" if told is fault else r"Guesser failed between turns.*broken"):
        conversation.generate(PROMPT, PARAMS)
    assert drafter.closed == closed + 1
    delattr(drafter, method)
    result = conversation.generate(PROMPT, PARAMS)
    assert result.tokens == engine.generate(PROMPT, PARAMS).tokens
    assert result.stats.fallbacks == 0


def test_a_sample_that_is_not_there_is_not_cancelled() -> None:
    samples = Engine(TableTarget()).samples(PROMPT, PARAMS, n=2)
    for index in (-1, 2):
        with pytest.raises(RequestError, match=rf"{index}.*0 to 1"):
            samples.cancel(index)
    assert len(list(samples)) == 16


def test_a_cache_there_is_no_room_for_leaves_the_conversation_usable() -> None:
    class Full(TableTarget):
        is_full = False

        def new_cache(self, length: int, *, spare: int = 0) -> TableCache:
            if self.is_full:
                raise MemoryError
            return super().new_cache(length, spare=spare)

    class Reader(Guesser):
        capture = Capture(final=True)

    target, reader = Full(), Reader(lambda context: [[1, 1]])
    engine = Engine(target, reader)
    conversation = engine.conversation()
    conversation.generate(PROMPT, PARAMS, speculative=SpeculativeOptions(method="none"))
    target.is_full = True
    with pytest.raises(MemoryError):
        conversation.generate(PROMPT, PARAMS)
    target.is_full = False
    assert conversation.generate(PROMPT, PARAMS).stats.fallbacks == 0
    assert tuple(reader.context[:3]) == PROMPT


def test_weights_that_were_let_go_of_are_not_given_out_empty() -> None:
    model = make_model(dtype=torch.float32)
    assert model.state_dict()["norm"].numel() == 48
    model.prepare(exact="auto", prefill_chunk=8, release=True)
    if model.kernels is None:
        pytest.skip("nothing was let go of: torch computes")
    with pytest.raises(LoadError, match="let go of"):
        model.state_dict()
