"""A draw is a function of the row, the history and the seed; a row without a token is an error, never an id."""

from __future__ import annotations

import math

import pytest
import torch
from tests.sampling.statistics import chi_square, chi_square_limit

from surefoot.errors import SamplingError
from surefoot.options import SamplingParams, SpeculativeOptions
from surefoot.sampling import UNDRAWABLE, RequestSampler

V = 16
EDITS = [
    {"repetition_penalty": 1.4},
    {"presence_penalty": 1.0},
    {"frequency_penalty": 0.7},
    {"logit_bias": {3: 4.0}},
    {"forbidden_tokens": (0, 1)},
    {"allowed_tokens": tuple(range(2, 12))},
    {"min_tokens": 4},
]
TRUNCATIONS = [{}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 9, "top_p": 0.9, "min_p": 0.02}]


def sampler(
    options: dict | None = None, history=(1, 2, 3), seed: int = 0, vocab_size: int = V, **more
) -> RequestSampler:
    return RequestSampler(
        SamplingParams(**(options or {})), list(history), seed=seed, vocab_size=vocab_size, stop_ids=(5, 7), **more
    )


def rows(count: int, seed: int = 0, scale: float = 2.0, width: int = V) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("temperature", [0, 0.8, 1.0])
@pytest.mark.parametrize("edit", [{}, *EDITS], ids=str)
@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
def test_a_path_counts_like_tokens_already_emitted(temperature, edit, truncation):
    """The heart of exactness: the draw after a drafted path is the draw after having emitted that path."""
    options = {"temperature": temperature, **edit, **truncation}
    path = [4, 4, 7, 2]
    for count, row in enumerate(rows(5)):
        drafted = sampler(options).draw(row, path[:count])
        emitted = sampler(options)
        emitted.advance(path[:count])
        one_by_one = sampler(options)
        for token in path[:count]:
            one_by_one.advance([token])
        assert drafted == emitted.draw(row) == one_by_one.draw(row)


def test_a_draw_does_not_depend_on_the_draws_before_it():
    table = rows(40)
    for options in ({"temperature": 1}, {"temperature": 1, "top_k": 4}):
        fresh = [sampler(options).draw(row, [2] * i) for i, row in enumerate(table)]
        used = sampler(options)
        backwards = [used.draw(row, [2] * i) for i, row in reversed(list(enumerate(table)))]
        assert fresh == backwards[::-1]


def test_seed_sample_and_position_each_change_the_draws():
    table = rows(60, scale=0.5)

    def draws(*, seed=0, index=0, history=(1, 2, 3)):
        return [
            sampler({"temperature": 1, "sample_index": index}, seed=seed, history=history).draw(row, [2] * i)
            for i, row in enumerate(table)
        ]

    base = draws()
    assert base == draws()
    for other in (draws(seed=1), draws(index=1), draws(history=(1, 2, 3, 4))):
        assert sum(a != b for a, b in zip(base, other, strict=True)) > 20


@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
@pytest.mark.parametrize("along", ["position", "seed", "sample"])
def test_frequencies_follow_the_law(truncation, along):
    """6,000 draws against up to 16 cells, false alarm 1e-9; a shift of TV .05 is seen with power above .99."""
    row = rows(1, seed=4, scale=1.0)[0]
    options = {"temperature": 0.8, **truncation}
    law = sampler(options).law(row)
    counts = [0] * V
    walking = sampler(options)
    for i in range(6000):
        if along == "position":
            walking.advance([0])
            drawing = walking
        elif along == "seed":
            drawing = sampler(options, seed=i)
        else:
            drawing = sampler({**options, "sample_index": i})
        counts[drawing.draw(row)] += 1
    assert chi_square(counts, law.tolist()) < chi_square_limit(int((law > 0).sum()) - 1)
    flat = sampler({**options, "temperature": 1.2}).law(row)
    assert chi_square(counts, flat.clamp(min=1e-9).tolist()) > chi_square_limit(V - 1), "the control must fail"


@pytest.mark.parametrize("options", [{}, {"temperature": 1}, {"temperature": 1, "top_k": 3}, {"repetition_penalty": 2}])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_are_errors(options, bad):
    for place in (0, 7, V - 1):
        row = rows(1)[0]
        row[place] = bad
        for call in (
            lambda s, row=row: s.draw(row),
            lambda s, row=row: s.law(row),
            lambda s, row=row: s.draft(row, [], shared_noise=True),
            lambda s, row=row: s.draft(row, [], shared_noise=False),
        ):
            with pytest.raises(SamplingError, match="position 3"):
                call(sampler(options))


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_row_without_a_possible_token_is_an_error(temperature):
    with pytest.raises(SamplingError):
        sampler({"temperature": temperature}).draw(torch.full((V,), -math.inf))
    with pytest.raises(SamplingError):
        sampler({"temperature": temperature, "forbidden_tokens": tuple(range(V))}).draw(rows(1)[0])
    with pytest.raises(SamplingError):
        sampler({"temperature": temperature, "allowed_tokens": (5, 7), "min_tokens": 1}).draw(rows(1)[0])
    lonely = sampler({"temperature": temperature, "allowed_tokens": (5,), "forbidden_tokens": (4,)})
    assert lonely.draw(rows(1)[0]) == 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_drawn_together_are_the_first_maxima(dtype):
    """float64 takes the way of accelerators, and of machines without the kernels."""
    table = rows(6).to(dtype)
    table[0, [3, 9]] = 50.0
    table[1] = 1.0
    table[2, 4] = math.nan
    table[3, 4] = math.inf
    table[4] = -math.inf
    table[5, :9] = -math.inf
    drawn = sampler().draw_rows(table)
    assert drawn == [3, 0, UNDRAWABLE, UNDRAWABLE, UNDRAWABLE, int(table[5].argmax())]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_both_ways_of_drawing_rows_agree(dtype):
    """bfloat16 takes the way of accelerators; its rows are full of ties."""
    table = rows(200, scale=1.0).to(torch.bfloat16)
    expected = [row.index(max(row)) for row in table.tolist()]
    assert sampler().draw_rows(table.to(dtype)) == expected


def test_rows_that_lie_apart_are_drawn_like_rows_side_by_side_and_stay_what_they_are():
    """Whatever their layout and number, in one request; lists given earlier do not change."""
    table, drawing = rows(6), sampler()
    whole = drawing.draw_rows(table)
    apart = table.repeat(1, 2)[:, : table.shape[1]], table.T.contiguous().T
    assert [drawing.draw_rows(layout) for layout in apart] == [whole, whole]
    assert [drawing.draw_rows(table[i : i + 1]) for i in range(6)] == [[token] for token in whole]
    assert len(set(whole)) > 1, "negative control: the rows tell each other apart"


@pytest.mark.parametrize("edit", EDITS, ids=str)
def test_rows_are_drawn_together_only_where_nothing_edits_them(edit):
    assert sampler().greedy_rows
    assert sampler({"top_k": 3, "top_p": 0.5, "min_p": 0.2}).greedy_rows, "truncation cannot change an argmax"
    assert not sampler({"temperature": 1}).greedy_rows
    assert not sampler(edit).greedy_rows


def test_rows_may_be_drawn_together_once_min_tokens_is_reached():
    waiting = sampler({"min_tokens": 2})
    waiting.advance([1])
    assert not waiting.greedy_rows
    waiting.advance([1])
    assert waiting.greedy_rows


def test_temperatures_below_epsilon_are_greedy():
    row = rows(1)[0]
    assert sampler({"temperature": 9e-6}).greedy_rows
    assert not sampler({"temperature": 1.1e-5}).greedy_rows
    assert sampler({"temperature": 1.1e-5}).draw(row) == int(row.argmax())


@pytest.mark.parametrize("options", [{}, {"temperature": 1}, {"temperature": 1, "top_k": 4}, {"logit_bias": {1: 1.0}}])
def test_padding_beyond_the_vocabulary_is_never_drawn(options):
    for row in rows(30):
        padded = torch.cat([row, torch.full((8,), 99.0)])
        assert sampler(options).draw(padded) == sampler(options).draw(row)
        assert torch.equal(sampler(options).law(padded), sampler(options).law(row))
    assert max(sampler().draw_rows(torch.cat([rows(3), torch.full((3, 8), 99.0)], dim=1))) < V


@pytest.mark.parametrize("options", [{}, *EDITS], ids=str)
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_narrower_row_is_one_whose_missing_ids_are_impossible(options, temperature):
    options = {**options, "temperature": temperature}
    for row in rows(10, width=V - 6):
        filled = torch.cat([row, torch.full((6,), -math.inf)])
        for shared in (True, False):
            narrow, _ = sampler(options, history=(1, 15)).draft(row, [15, 3], shared_noise=shared)
            assert narrow == sampler(options, history=(1, 15)).draft(filled, [15, 3], shared_noise=shared)[0]
        torch.testing.assert_close(sampler(options).law(row), sampler(options).law(filled), rtol=1e-14, atol=0)


def test_a_shared_noise_draft_from_the_targets_own_row_is_the_targets_draw():
    for options in ({"temperature": 1}, {"temperature": 0.7, "top_p": 0.9}, {}, {"repetition_penalty": 1.5}):
        for i, row in enumerate(rows(20)):
            both = sampler(options)
            assert both.draft(row, [3] * i, shared_noise=True) == (both.draw(row, [3] * i), None)


def test_an_argmax_draft_is_the_likeliest_processed_token():
    row = rows(1)[0]
    row[int(row.argmax())] = 1.0
    options = {"temperature": 1, "forbidden_tokens": (int(row.argmax()),)}
    law = sampler(options).law(row)
    assert sampler(options).draft(row, [], shared_noise=False) == (int(law.argmax()), None)


def test_the_request_overrides_how_a_drafter_guesses():
    table = rows(30, scale=0.5)
    argmax = sampler({"temperature": 1}, speculative=SpeculativeOptions(draft_sampling="argmax"))
    shared = sampler({"temperature": 1}, speculative=SpeculativeOptions(draft_sampling="shared"))
    for row in table:
        assert argmax.draft(row, [], shared_noise=True) == argmax.draft(row, [], shared_noise=False)
        assert shared.draft(row, [], shared_noise=False) == shared.draft(row, [], shared_noise=True)
    assert any(argmax.draft(row, [], shared_noise=True) != shared.draft(row, [], shared_noise=True) for row in table)


def test_under_reject_a_draft_comes_with_the_law_it_was_sampled_from():
    """3,000 rounds, false alarm 1e-9: the frequencies are those of the returned law."""
    row = rows(1, scale=1.0)[0]
    rejecting = sampler({"temperature": 0.8, "top_k": 6}, speculative=SpeculativeOptions(acceptance="reject"))
    counts = [0] * V
    for _ in range(3000):
        token, law = rejecting.draft(row, [], shared_noise=True)
        counts[token] += 1
        rejecting.advance([0])
    assert law is not None
    assert law.dtype == torch.float64
    assert torch.equal(law, rejecting.law(row))
    assert chi_square(counts, law.tolist()) < chi_square_limit(5)


def test_under_reject_the_likeliest_token_comes_without_a_law():
    row = rows(1, scale=1.0)[0]
    rejecting = sampler({"temperature": 0.8}, speculative=SpeculativeOptions(acceptance="reject"))
    assert rejecting.draft(row, [], shared_noise=False) == (int(row.argmax()), None)


def test_under_reject_the_streams_change_with_round_node_and_purpose():
    rejecting = sampler({"temperature": 1}, speculative=SpeculativeOptions(acceptance="reject"))
    flat = torch.full((1000,), 1 / 1000, dtype=torch.float64)
    first = {(n, p): rejecting.choices.categorical(flat, n, p) for n in range(4) for p in ("accept", "draft")}
    assert first == {(n, p): rejecting.choices.categorical(flat, n, p) for n in range(4) for p in ("accept", "draft")}
    rejecting.advance([1])
    second = {(n, p): rejecting.choices.categorical(flat, n, p) for n in range(4) for p in ("accept", "draft")}
    assert len({*first.values(), *second.values()}) >= 15
