"""The race gives the token of the definition, bit for bit, whoever computes its bounds; where it cannot, it says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from surefoot import native
from surefoot.errors import SamplingError
from surefoot.native.library import INSTRUCTIONS, Library
from surefoot.noise import PositionNoise, gumbel
from surefoot.options import SamplingParams
from surefoot.sampling import RequestSampler, processors, race
from surefoot.sampling.sampler import FEW

V = FEW + 1001
OPTIONS = [
    {},
    {"top_p": 0.95},
    {"top_p": 0.5},
    {"top_p": 1e-9},
    {"top_p": 0.999999},
    {"min_p": 0.05},
    {"min_p": 1},
    {"top_p": 0.9, "min_p": 0.01},
    {"top_k": 50},
    {"top_k": 1},
    {"top_k": 4000},
    {"top_k": 50, "top_p": 0.9, "min_p": 0.02},
    {"repetition_penalty": 1.3},
    {"top_p": 0.9, "frequency_penalty": 0.5, "logit_bias": {5: 8.0}, "forbidden_tokens": (0, 7)},
    {"allowed_tokens": tuple(range(0, V, 3)), "top_p": 0.8},
]


def normal(seed: int, spread: float, width: int = V) -> Tensor:
    return torch.randn(width, generator=torch.Generator().manual_seed(seed)) * spread


def peaked(seed: int) -> Tensor:
    row = normal(seed, 1.0)
    row[seed * 37 % V] = 25.0
    return row


ROWS: dict[str, Callable[[int], Tensor]] = {
    "flat": lambda seed: normal(seed, 0.01),
    "of a random model": lambda seed: normal(seed, 1.0),
    "of a trained model": lambda seed: normal(seed, 3.0) + 5,
    "wide": lambda seed: normal(seed, 12.0),
    "peaked": peaked,
    "tied": lambda seed: normal(seed, 2.0).round(),
    "nearly tied": lambda seed: normal(seed, 2.0).round() + normal(seed + 1, 1e-6),
    "all equal": lambda seed: torch.full((V,), float(seed)),
    "bf16": lambda seed: normal(seed, 2.0).bfloat16(),
    "fp64": lambda seed: normal(seed, 2.0).double() + 1e-9 * normal(seed + 1, 1.0).double(),
    "mostly impossible": lambda seed: torch.where(normal(seed, 1.0) > 2, normal(seed, 1.0), -math.inf),
    "huge": lambda seed: normal(seed, 1e30),
}


@pytest.fixture(params=["kernels", "numpy"])
def bounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who computes the bounds."""
    if request.param == "numpy":
        monkeypatch.setattr(race.native, "available", lambda: None)
    elif native.available() is None:
        pytest.skip(f"no kernels: {native.why_not()}")
    return str(request.param)


def sampler(options: dict[str, object], temperature: float = 0.8) -> RequestSampler:
    params = SamplingParams(**{"temperature": temperature, **options})
    return RequestSampler(params, [1, 2, 2], seed=3, vocab_size=V, stop_ids=(5,))


def differing(options: dict[str, object], rows: list[Tensor], temperature: float = 0.8) -> list[int]:
    drawing = sampler(options, temperature)
    found = []
    for i, row in enumerate(rows):
        if drawing.draw(row, [4] * (i % 3)) != drawing.noisy_best_reference(row, [4] * (i % 3)):
            found.append(i)
        drawing.advance([i])
    return found


def bare(logits: Tensor, temperature: float = 0.8) -> race.Row:
    narrow = logits.float().numpy()
    return race.Row(exact=narrow, narrow=narrow, top=float(narrow.max()), temperature=temperature)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_a_draw_is_the_definitions(bounds: str, options: dict[str, object]) -> None:
    for make in ROWS.values():
        assert differing(options, [make(seed) for seed in range(4)]) == []


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**30),
    spread=st.floats(0.001, 20),
    digits=st.integers(0, 6),
    temperature=st.floats(0.02, 20),
    top_p=st.floats(0.01, 1),
    min_p=st.sampled_from([0.0, 0.001, 0.3]),
    top_k=st.sampled_from([0, 0, 7, 200]),
)
def test_any_draw_is_the_definitions(
    seed: int, spread: float, digits: int, temperature: float, top_p: float, min_p: float, top_k: int
) -> None:
    row = normal(seed, spread).mul(10**digits).round().div(10**digits)
    assert differing({"top_p": top_p, "min_p": min_p, "top_k": top_k}, [row], temperature) == []


def test_a_race_that_forgets_top_p_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the above."""
    monkeypatch.setattr(race, "_stays", lambda *_, **__: True)
    rows = [normal(seed, 1.0) for seed in range(30)]
    assert len(differing({"top_p": 0.5}, rows)) > 5
    assert differing({}, rows) == []


def test_bounds_of_another_position_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: bounds of other noise leave the winner out."""
    bounds = race.Race._bounds
    monkeypatch.setattr(race.Race, "_bounds", lambda self, row, position, floor: bounds(self, row, position + 1, floor))
    assert len(differing({}, [normal(seed, 1.0) for seed in range(30)])) > 5


@pytest.mark.parametrize("options", OPTIONS[:3] + OPTIONS[5:10], ids=lambda options: "-".join(options) or "plain")
def test_the_definition_is_hardly_ever_evaluated(
    bounds: str, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(RequestSampler, "noisy_best_reference", lambda *_: calls.append(1) or 0)
    drawing = sampler(options)
    for make in (ROWS["of a random model"], ROWS["of a trained model"], ROWS["peaked"]):
        for seed in range(10):
            drawing.draw(make(seed))
            drawing.advance([1])
    assert len(calls) <= 1


def test_ties_that_truncation_tells_apart_are_left_to_the_definition(bounds: str) -> None:
    equal = bare(torch.zeros(V))
    assert race.Race(PositionNoise(1, 0, V)).winner(equal, 3, top_p=0.5) is None
    assert race.Race(PositionNoise(1, 0, V)).winner(equal, 3) == int(gumbel(1, 0, 3, V).argmax())
    assert race.top_k(equal, 50) is None


def test_logits_too_large_to_be_rounded_are_left_to_the_definition() -> None:
    large = race.narrowed(normal(1, 1.0).double().numpy() + 1e9, 0.8)
    assert not large.bounded
    assert race.Race(PositionNoise(1, 0, V)).winner(large, 3) is None
    assert bare(normal(1, 1.0) + 1e9).bounded, "nothing is rounded where logits are fp32"


@pytest.mark.parametrize("make", ROWS.values(), ids=ROWS)
def test_a_support_is_the_processors_own(make: Callable[[int], Tensor]) -> None:
    logits = make(2)
    row = bare(logits)
    whole = processors.with_temperature(row.narrow.astype(np.float64), 0.8)
    for k in (1, 2, 50, 100):
        assert_same(race.top_k(row, k), processors.top_k(whole, k))
    for share in (1e-6, 0.05, 0.9, 1.0):
        assert_same(race.min_p(row, share), processors.min_p(whole, share))


def assert_same(found: processors.Support | None, expected: processors.Support) -> None:
    if found is None:
        assert len(expected.logits) > V // race.MANY // 2
        return
    assert expected.ids is not None
    assert found.ids is not None
    assert (found.ids == expected.ids).all()
    assert (found.logits == expected.logits).all()


def test_logits_that_are_tied_only_after_the_shift_are_all_kept() -> None:
    """Logits next to nought are one logit once 5 is taken off."""
    logits = torch.full((V,), -9.0)
    logits[:5] = torch.tensor([5.0, 1e-20, 1e-25, 1e-22, -1e-24])
    support = race.top_k(bare(logits), 2)
    assert support is not None
    assert support.ids is not None
    assert support.ids.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rows_without_a_token_are_errors(bad: float) -> None:
    row = normal(1, 1.0)
    row[V - 1] = bad
    with pytest.raises(SamplingError, match="position 3"):
        sampler({}).draw(row)
    with pytest.raises(SamplingError, match="position 3"):
        sampler({}).draw(torch.full((V,), -math.inf))


def test_narrower_wider_and_scattered_rows_are_read_as_they_are() -> None:
    row = normal(1, 1.0, V - 500)
    filled = torch.cat([row, torch.full((500,), -math.inf)])
    padded = torch.cat([filled, torch.full((64,), 99.0)])
    scattered = torch.stack([filled, filled], dim=1)[:, 0]
    drawn = {sampler({"top_p": 0.9}).draw(logits) for logits in (row, filled, padded, scattered)}
    assert drawn == {sampler({"top_p": 0.9}).noisy_best_reference(filled, ())}


@pytest.fixture
def kernels() -> Iterator[Library]:
    opened = native.available()
    if opened is None:
        pytest.skip(f"no kernels: {native.why_not()}")
    before = opened.instructions
    yield opened
    opened.choose(before)
    opened.use_threads(None)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("size", [1, 15, 16, 255, 256, 257, 8192, 20_011])
def test_the_kernels_bounds_are_what_they_say(kernels: Library, instructions: str, size: int) -> None:
    if not kernels.choose(instructions):
        pytest.skip(f"this processor, or the compiler, has no {instructions}")
    row, noise = bare(normal(size, 3.0, size)), PositionNoise(7, 1, size)
    stretches = -(-size // race.STRETCH)
    exact = np.full(stretches * race.STRETCH, np.inf)
    exact[:size] = np.exp(-noise.row(9)) / np.exp(row.shifted(np.arange(size)))
    for floor in (-math.inf, 0.5):
        exact[:size][row.narrow <= floor] = np.inf
        least = np.full(stretches + 1, -1, dtype=np.float32)
        kernels.race(noise.key(9), row.for_kernels, floor, least.ctypes.data)
        assert least[-1] == -1, "nothing is written beyond the stretches"
        reference = race.bounds_reference(noise.missing_to_one(9, size), row, floor)
        assert (least[:-1] <= reference * 1.0001).all()
        near = reference <= reference.min() * 1.4
        np.testing.assert_allclose(least[:-1][near], reference[near], rtol=1e-4, err_msg="exact where it is close")
        assert (least[:-1] > reference.min() * 1.4)[~near].all(), "others do not come close"
        assert (least[:-1] <= exact.reshape(-1, race.STRETCH).min(axis=1) * 1.001).all(), "bounds from below"
    for bound in (-1.0, 0.5, row.top - 1e-3, row.top):
        mass, total = kernels.mass_above(row.for_kernels, bound)
        assert mass == pytest.approx(float(np.exp(row.shifted(row.narrow > bound)).sum()), rel=1e-5)
        assert total == pytest.approx(float(np.exp(row.shifted(np.arange(size))).sum()), rel=1e-5)
