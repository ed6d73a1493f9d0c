"""Exact rows do not know of each other, and the self-test finds those that do."""

from __future__ import annotations

import pytest
import torch
from tests.factories import make_model
from torch import Tensor

from surefoot.errors import LoadError
from surefoot.models import decoder
from surefoot.ops.attention import Round, Sight
from surefoot.ops.exactness import RowShapes, differing_rows
from surefoot.ops.linear import BLOCK_ROWS, linear, linear_blocks
from surefoot.ops.mlp import gated, gated_rows, swiglu, swiglu_rows
from surefoot.ops.norm import rms_norm
from surefoot.ops.rows import ExactRows, FastRows

DTYPES = [torch.float32, torch.bfloat16, torch.float64]


def shapes(dtype: torch.dtype = torch.float32) -> RowShapes:
    generator = torch.Generator().manual_seed(3)
    weights = {
        name: torch.randn(size, generator=generator).to(dtype) for name, size in (("a", (40, 48)), ("b", (48, 72)))
    }
    return RowShapes(
        linears={name: (weight, None) for name, weight in weights.items()},
        hidden_size=52,
        activations=(44,),
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        attention_dtype=torch.float64 if dtype == torch.float64 else torch.float32,
        windows=(None, 30),
        context_length=512,
    )


def nudged(out: Tensor, when: bool) -> Tensor:
    return torch.nextafter(out, out + 1) if when else out


class CountsInLinear(ExactRows):
    """One last bit differs where more than 8 rows are given."""

    @staticmethod
    def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return nudged(linear_blocks(x, weight, bias), len(x) > 8 and weight.shape[0] == 48)


class CountsInActivation(ExactRows):
    @staticmethod
    def swiglu(gate_up: Tensor) -> Tensor:
        return nudged(swiglu_rows(gate_up), len(gate_up) == 3)


class CountsInAttention(ExactRows):
    @staticmethod
    def attend(q: Tensor, keys: Tensor, values: Tensor, sight: Sight) -> Tensor:
        return nudged(ExactRows.attend(q, keys, values, sight), len(q) > 1 and len(sight.rows[-1]) > 250)


class CountsInWindows(ExactRows):
    @staticmethod
    def attend(q: Tensor, keys: Tensor, values: Tensor, sight: Sight) -> Tensor:
        is_cut = keys.shape[1] > len(sight.rows[-1]) + 20
        return nudged(ExactRows.attend(q, keys, values, sight), len(q) == 9 and is_cut)


class CountsInTrees(ExactRows):
    @staticmethod
    def see(around: Round, window: int | None, group: int, dtype: torch.dtype, device: torch.device) -> Sight:
        """Shows the tree's last node one row too many."""
        sight = ExactRows.see(around, window, group, dtype, device)
        if around.is_chain or window is not None or around.length > 5:
            return sight
        return Sight(sight.first, None, (*sight.rows[:-1], torch.arange(around.stop)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_rows_pass_their_self_test(dtype: torch.dtype) -> None:
    assert differing_rows(ExactRows(), shapes(dtype), stop_early=False) == []


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (CountsInLinear(), "b (48, 72)"),
        (CountsInActivation(), "activation of width 44"),
        (CountsInAttention(), "attention over 300 tokens"),
        (CountsInWindows(), "attention over 300 tokens, window 30"),
        (CountsInTrees(), "attention over 5 tokens"),
    ],
)
def test_one_differing_bit_is_found_and_its_shape_named(rows: ExactRows, named: str) -> None:
    assert differing_rows(rows, shapes(), stop_early=False) == [named]
    assert differing_rows(rows, shapes(), stop_early=True) == [named]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 20])
def test_both_arithmetics_compute_the_same(dtype: torch.dtype, count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    x, weight, bias = (torch.randn(size, generator=generator).to(dtype) for size in ((count, 48), (44, 48), (44,)))
    torch.testing.assert_close(linear_blocks(x, weight, bias), linear(x, weight, bias))
    expected = torch.nn.functional.silu(x[:, :24]) * x[:, 24:]
    torch.testing.assert_close(swiglu(x), expected)
    torch.testing.assert_close(swiglu_rows(x), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 13])
def test_gates_have_the_bits_of_the_row_alone(dtype: torch.dtype, width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    x, gate = (torch.randn(19, size, generator=generator).to(dtype) for size in (13, width))
    together = gated_rows(x, gate)
    assert torch.equal(together, torch.cat([gated(x[row : row + 1], gate[row : row + 1]) for row in range(19)]))
    torch.testing.assert_close(together, x * torch.sigmoid(gate))


def test_blocks_have_one_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    right = torch.nn.functional.linear
    monkeypatch.setattr(
        torch.nn.functional, "linear", lambda x, weight, bias: (seen.append(len(x)), right(x, weight, bias))[1]
    )
    for count in (1, 8, 19):
        linear_blocks(torch.randn(count, 4), torch.randn(3, 4), None)
    assert seen == [BLOCK_ROWS] * 5


def widths_that_differ(multiply, dtype: torch.dtype) -> list[int]:  # type: ignore[no-untyped-def]
    """At which numbers of inputs a row among others has other bits than alone, of few outputs and of many."""
    generator, found = torch.Generator().manual_seed(1), []
    for width in (3, 18, 35, 48, 63, 66, 257):
        x = torch.randn(16, width, generator=generator).to(dtype)
        for outputs in (2, 5, 9, 33):
            weight = torch.randn(outputs, width, generator=generator).to(dtype)
            alone = torch.cat([multiply(row[None].clone(), weight, None) for row in x])
            if any(not torch.equal(multiply(x[-count:].clone(), weight, None), alone[-count:]) for count in (2, 5, 16)):
                found.append(width)
    return found


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
def test_blocks_are_exact_at_odd_widths_too(dtype: torch.dtype) -> None:
    """As of a router of a few experts; rows that begin anywhere in a cache line are summed in other orders."""
    assert widths_that_differ(linear_blocks, dtype) == []


def test_a_call_of_the_library_is_not() -> None:
    """Negative control."""
    assert widths_that_differ(linear, torch.float32) != []


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_is_the_textbook_one_and_exact_in_rows(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(9, 44, generator=generator).to(dtype), torch.randn(44, generator=generator).to(dtype)
    wide = x.double()
    expected = (wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()).to(dtype)
    torch.testing.assert_close(rms_norm(x, weight, 1e-6), expected)
    assert torch.equal(rms_norm(x, weight, 1e-6), torch.cat([rms_norm(row[None], weight, 1e-6) for row in x]))


def test_a_model_reports_what_the_self_test_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_model("llama", torch.float32, trainable=True, exact="require").strict
    monkeypatch.setattr(decoder, "FastRows", CountsInActivation)
    assert not make_model("llama", torch.float32, trainable=True, intermediate_size=44).strict
    monkeypatch.setattr(decoder, "FastRows", ExactRows)
    assert make_model("llama", torch.float32, trainable=True).strict


def test_required_exactness_fails_by_the_name_of_the_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "ExactRows", CountsInActivation)
    with pytest.raises(LoadError, match="activation of width 80"):
        make_model("llama", torch.float32, trainable=True, exact="require")


def test_fast_rows_are_a_library_call_each() -> None:
    x, weight = torch.randn(5, 48), torch.randn(44, 48)
    assert torch.equal(FastRows.linear(x, weight, None), torch.nn.functional.linear(x, weight))
