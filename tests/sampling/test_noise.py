"""The noise is what it says: keyed by position and id alone, Gumbel distributed, independent along every key."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.sampling.statistics import chi_square, chi_square_limit

from surefoot.noise import (
    PositionNoise,
    gumbel,
    gumbel_of_weyl,
    gumbel_on_device,
    gumbel_reference,
    position_key,
    splitmix64,
    uniform,
    weyl_words,
)
from surefoot.options import MAX_SEED

KEYS = [(0, 0, 0), (0, 0, 1), (1, 0, 0), (0, 1, 0), (MAX_SEED, 3, 131_071), (42, 2**40, 7)]


def noise_table(along: str, rows: int, ids: int) -> np.ndarray:
    """Noise ``[rows, ids]`` with one part of the key running down the rows."""
    keys = {"seed": lambda i: (i, 5, 9), "sample": lambda i: (5, i, 9), "position": lambda i: (5, 9, i)}[along]
    return np.stack([gumbel(*keys(i), ids).numpy() for i in range(rows)])


def test_splitmix64_gives_the_published_sequence():
    state, words = 1234567, []
    for _ in range(3):
        words.append(splitmix64(state))
        state += 0x9E3779B97F4A7C15
    assert words == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("key", KEYS)
def test_noise_equals_its_scalar_reference(key):
    ids = torch.tensor([0, 1, 2, 77, 4095, 151_935, 2**31])
    expected = [gumbel_reference(*key, token) for token in ids.tolist()]
    assert gumbel(*key, ids).tolist() == pytest.approx(expected, rel=1e-14, abs=1e-14)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, 999])
def test_any_subset_of_ids_has_the_same_bits(step):
    row = gumbel(3, 1, 20, 4096)
    for start in (0, 1, 5):
        ids = torch.arange(start, 4096, step)
        assert torch.equal(gumbel(3, 1, 20, ids), row[start::step])
    shuffled = torch.randperm(4096, generator=torch.Generator().manual_seed(0))
    assert torch.equal(gumbel(3, 1, 20, shuffled), row[shuffled])


def test_a_kept_row_and_single_ids_have_the_same_bits():
    noise, ids = PositionNoise(3, 1, 4096), np.array([4, 9, 4095])
    alone = noise.at(20, ids)
    assert (noise.row(20)[ids] == alone).all()
    assert (noise.at(20, ids) == alone).all()
    assert noise.row(20) is noise.row(20)
    noise.forget_before(21)
    assert (noise.row(20)[ids] == alone).all(), "forgetting a row must not change it"


def test_the_device_code_agrees_with_the_host_code():
    for key in KEYS:
        host = gumbel(*key, 10_000)
        device = gumbel_on_device(position_key(*key), torch.arange(10_000))
        torch.testing.assert_close(device, host, rtol=1e-14, atol=1e-14)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_an_accelerator_draws_the_same_tokens():
    generator = torch.Generator().manual_seed(0)
    for position in range(2000):
        logits = torch.randn(4096, generator=generator, dtype=torch.float64) * 2
        host = (logits + gumbel(1, 0, position, 4096)).argmax()
        device = (logits.cuda() + gumbel(1, 0, position, 4096, device="cuda")).argmax()
        assert int(host) == int(device)


def test_noise_is_finite_at_the_ends_of_the_word():
    for word in (0, 1, 2**12 - 1, 2**64 - 1, 2**64 - 2**12):
        assert 0 < uniform(word) < 1
        assert math.isfinite(-math.log(-math.log(uniform(word))))
    assert -math.log(-math.log(uniform(0))) > -3.61
    assert -math.log(-math.log(uniform(2**64 - 1))) < 36.75


def test_a_uniform_of_53_bits_would_not_be_finite():
    """The negative control of the above: with one bit more the largest uniform rounds to 1."""
    assert ((2**64 - 1 >> 11) + 0.5) * 2.0**-53 == 1.0


def test_noise_has_the_moments_of_the_gumbel_law():
    """2.1 million values; limits are 5 standard errors."""
    values = noise_table("position", 512, 4096).ravel()
    assert np.isfinite(values).all()
    assert abs(values.mean() - 0.5772156649) < 5 * 1.2825 / math.sqrt(values.size)
    assert abs(values.var() - math.pi**2 / 6) < 5 * math.sqrt(4.4 / values.size) * math.pi**2 / 6


@pytest.mark.parametrize("along", ["seed", "sample", "position"])
def test_noise_has_the_shape_of_the_gumbel_law(along):
    """256 equally likely cells, 0.5 million values, false alarm 1e-9."""
    values = noise_table(along, 128, 4096)
    cells = np.floor(np.exp(-np.exp(-values)) * 256).astype(int).ravel()
    counts = np.bincount(cells, minlength=256)
    assert chi_square(counts.tolist(), [1 / 256] * 256) < chi_square_limit(255)


def correlation(table: np.ndarray, lag: int, axis: int) -> float:
    """The correlation of entries ``lag`` apart along an axis, in units of its standard error."""
    earlier, later = table.take(range(table.shape[axis] - lag), axis), table.take(range(lag, table.shape[axis]), axis)
    return float(np.corrcoef(earlier.ravel(), later.ravel())[0, 1] * math.sqrt(earlier.size))


@pytest.mark.parametrize("along", ["seed", "sample", "position"])
@pytest.mark.parametrize("lag", [1, 2, 3, 16, 64])
def test_noise_is_uncorrelated_along_every_part_of_its_key(along, lag):
    table = noise_table(along, 128, 2048)
    assert abs(correlation(table, lag, axis=0)) < 5, "along the key"
    assert abs(correlation(table, lag, axis=1)) < 5, "along the ids"
    assert abs(correlation(table[lag:, :-lag], 1, axis=0)) < 5
    diagonal = np.corrcoef(table[:-lag, :-lag].ravel(), table[lag:, lag:].ravel())[0, 1]
    assert abs(diagonal) * math.sqrt(table[lag:, lag:].size) < 5, "along key and ids together"


def test_the_correlation_check_sees_keys_that_are_only_added():
    """The negative control: with position and id in one sum, one position's noise is the next one's, shifted."""
    golden = 0x9E3779B97F4A7C15
    table = np.stack([gumbel_of_weyl((p * golden) % 2**64, weyl_words(np.arange(2048))) for p in range(64)])
    diagonal = np.corrcoef(table[:-1, 1:].ravel(), table[1:, :-1].ravel())[0, 1]
    assert diagonal > 0.99


def test_the_parts_of_a_key_are_not_interchangeable():
    keys = {position_key(*parts) for parts in [(1, 2, 3), (3, 2, 1), (2, 1, 3), (1, 3, 2), (6, 0, 0), (0, 0, 6)]}
    assert len(keys) == 6
