"""The delta rule is the papers', and its rows never know how many are computed beside them."""

from __future__ import annotations

from random import Random
from unittest.mock import patch

import pytest
import torch
from tests.delta_layers import EVEN, ODD, DeltaLayers, random_parameters, random_tokens, torch_threads
from torch import Tensor
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_recurrent_gated_delta_rule

from surefoot.ops import delta_rule
from surefoot.ops.conv import causal_conv, history_after, window_rows
from surefoot.ops.delta_rule import DeltaParameters, DeltaPlace, DeltaShape, DeltaState, gated_delta, replay

SINGLE_HEAD = DeltaShape(num_key_heads=1, num_value_heads=1, key_dim=7, value_dim=33, conv_size=2)
TRIPLE = DeltaShape(num_key_heads=2, num_value_heads=6, key_dim=8, value_dim=24)
SHAPES = {"even": EVEN, "odd": ODD, "single head": SINGLE_HEAD, "three to one": TRIPLE}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def gated_delta_reference(projected: Tensor, parameters: DeltaParameters, shape: DeltaShape) -> tuple[Tensor, Tensor]:
    """The formulas, token by token and head by head in fp64: outputs, and the state after the last token."""
    x = projected.double()
    c, y, heads = shape.channels, shape.value_size, shape.num_value_heads
    qkv, z, b, a = x.split([c, y, heads, heads], 1)
    padded = torch.cat((torch.zeros(shape.conv_size - 1, c, dtype=x.dtype), qkv))
    group = heads // shape.num_key_heads
    state = torch.zeros(heads, shape.key_dim, shape.value_dim, dtype=x.dtype)
    outs = []
    for t in range(len(x)):
        window = padded[t : t + shape.conv_size]
        mixed = torch.nn.functional.silu((window * parameters.conv.double().t()).sum(0))
        q, k, v = mixed.split([shape.key_size, shape.key_size, y])
        out = []
        for head in range(heads):
            keys = slice(head // group * shape.key_dim, (head // group + 1) * shape.key_dim)
            q_h = q[keys] / (q[keys].square().sum() + 1e-6).sqrt() * shape.key_dim**-0.5
            k_h = k[keys] / (k[keys].square().sum() + 1e-6).sqrt()
            v_h = v[head * shape.value_dim : (head + 1) * shape.value_dim]
            softplus = torch.log1p(torch.exp(a[t, head] + parameters.dt_bias[head].double()))
            kept = torch.exp(-parameters.a_log[head].double().exp() * softplus) * state[head]
            delta = torch.sigmoid(b[t, head]) * (v_h - kept.t() @ k_h)
            state[head] = kept + torch.outer(k_h, delta)
            read = state[head].t() @ q_h
            read = read / (read.square().mean() + parameters.eps).sqrt() * parameters.norm.double()
            out.append(read * torch.nn.functional.silu(z[t, head * shape.value_dim : (head + 1) * shape.value_dim]))
        outs.append(torch.cat(out))
    return torch.stack(outs), state


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("count", [1, 2, 3, 30])
def test_the_layer_is_the_formulas(shape: DeltaShape, count: int) -> None:
    parameters = random_parameters(shape, torch.float32, 0)
    projected = torch.randn(count, shape.projected, generator=torch.Generator().manual_seed(1))
    before, after = (
        DeltaState(
            torch.zeros(shape.num_value_heads, shape.key_dim, shape.value_dim),
            torch.zeros(shape.conv_size - 1, shape.channels),
        )
        for _ in range(2)
    )
    place = DeltaPlace(
        parents=range(-1, count - 1), num_new=count, committed=before, after=after, continues=False, tape=None
    )
    out = gated_delta(projected, parameters, shape, place)
    expected, state = gated_delta_reference(projected, parameters, shape)
    torch.testing.assert_close(out.double(), expected, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(after.state.double(), state, atol=1e-5, rtol=1e-4)
    assert torch.equal(after.history, history_after(before.history, projected[:, : shape.channels]))
    assert not before.state.any()


def test_the_rule_is_that_of_transformers() -> None:
    generator = torch.Generator().manual_seed(2)
    count, heads, size = 20, 4, 16
    q, k, v = (torch.randn(count, heads, size, generator=generator) for _ in range(3))
    k = torch.nn.functional.normalize(k, dim=-1)
    beta, alpha = torch.rand(count, heads, generator=generator), torch.rand(count, heads, generator=generator)
    state = torch.randn(heads, size, size, generator=generator)
    expected, last = torch_recurrent_gated_delta_rule(
        *(x[None] for x in (q, k, v, alpha.log(), beta)), state[None], output_final_state=True
    )
    shape = DeltaShape(num_key_heads=heads, num_value_heads=heads, key_dim=size, value_dim=size)
    before = DeltaState(state, torch.zeros(3, shape.channels))
    after = DeltaState(torch.empty_like(state), torch.empty(3, shape.channels))
    place = DeltaPlace(
        parents=range(-1, count - 1), num_new=count, committed=before, after=after, continues=False, tape=None
    )
    inputs = delta_rule._Inputs(q * size**-0.5, k, v, beta, alpha)
    out = delta_rule._walk(inputs, place, shape)
    torch.testing.assert_close(out, expected[0], atol=2e-6, rtol=1e-5)
    assert last is not None
    torch.testing.assert_close(after.state, last[0], atol=2e-6, rtol=1e-5)


def rows_differ(shape: DeltaShape, dtype: torch.dtype, *, long_run: bool) -> bool:
    """Whether some row of some chain of 1 to 16 comes out otherwise than step by step."""
    layers = DeltaLayers(shape, dtype)
    tokens = random_tokens(Random(5), 16)
    alone = layers.sequence(long_run=long_run).steps(tokens)
    sequence = layers.sequence(long_run=long_run)
    for count in range(1, 17):
        if not torch.equal(sequence.score(tokens[:count], range(-1, count - 1)), alone[:, :count]):
            return True
        sequence.cache.rollback()
    return False


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_rows_side_by_side_are_those_of_single_steps(shape: DeltaShape, dtype: torch.dtype) -> None:
    assert not rows_differ(shape, dtype, long_run=False)
    assert not rows_differ(shape, dtype, long_run=True)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_so_they_are_on_two_threads(dtype: torch.dtype) -> None:
    with torch_threads(2):
        assert not rows_differ(ODD, dtype, long_run=True)


def test_rows_as_wide_as_a_real_models_are_those_of_single_steps_too() -> None:
    shape = DeltaShape(num_key_heads=4, num_value_heads=8, key_dim=128, value_dim=128)
    layers = DeltaLayers(shape, torch.float32)
    tokens = random_tokens(Random(5), 16)
    alone = layers.sequence(long_run=True).steps(tokens)
    for count in (2, 3, 5, 16):
        together = layers.sequence(long_run=True).score(tokens[:count], range(-1, count - 1))
        assert torch.equal(together, alone[:, :count])


def test_deltas_taken_from_the_state_before_the_round_are_noticed() -> None:
    """Negative control: each node's delta computed as if it were the round's first."""
    walk = delta_rule._walk

    def careless(inputs, place, shape):  # type: ignore[no-untyped-def]
        outs = []
        for row in range(place.num_new):
            alone = DeltaPlace(
                parents=[-1], num_new=1, committed=place.committed, after=place.after, continues=False, tape=None
            )
            outs.append(walk(delta_rule._Inputs(*(x[row : row + 1] for x in inputs)), alone, shape))
        return torch.cat(outs)

    with patch.object(delta_rule, "_walk", careless):
        assert rows_differ(EVEN, torch.float32, long_run=True)


def test_a_replay_is_the_steps_again() -> None:
    layers = DeltaLayers(ODD, torch.bfloat16)
    tokens = random_tokens(Random(1), 9)
    together, stepwise = layers.sequence(long_run=True), layers.sequence(long_run=True)
    together.score(tokens, range(-1, 8))
    tape = together.cache.states.tape
    assert tape is not None
    for count in range(1, 10):
        stepwise.step(tokens[count - 1])
        for layer in range(layers.num_layers):
            rows = delta_rule.Tape(*(part[layer] for part in tape))
            memory = replay(together.cache.states.committed.layers[layer], rows, range(count))
            expected = stepwise.cache.states.committed.layers[layer]
            assert torch.equal(memory.state, expected.state)
            assert torch.equal(memory.history, expected.history)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_convolution_is_that_of_torch(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    rows, taps = (torch.randn(*shape, generator=generator).to(dtype) for shape in ((13, 6), (6, 4)))
    out = causal_conv(rows, taps, range(-1, 9), 10)
    expected = torch.nn.functional.conv1d(rows.double().t()[None], taps.double()[:, None], groups=6)[0].t()
    torch.testing.assert_close(out.double(), expected, atol=0.03 if dtype == torch.bfloat16 else 1e-5, rtol=0.01)


def test_windows_reach_back_along_ancestors_and_into_the_history() -> None:
    parents = (-1, 0, 0, 2, 1)
    # Rows 0 to 2 are the history, 3 to 7 the nodes.
    assert window_rows(parents, 5, 4) == [[0, 1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 5], [2, 3, 5, 6], [2, 3, 4, 7]]
    rows = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    taps = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    together = causal_conv(rows, taps, parents, 5)
    for node, window in enumerate(window_rows(parents, 5, 4)):
        alone = causal_conv(rows[window], taps, [-1], 1)
        assert torch.equal(together[node], alone[0])
    assert torch.equal(causal_conv(rows, taps, parents, 2), together[3:])


@pytest.mark.parametrize("count", range(6))
def test_a_history_is_the_last_rows_in_order(count: int) -> None:
    history, rows = torch.arange(3.0)[:, None], torch.arange(3.0, 9.0)[:, None]
    assert history_after(history, rows[:count]).flatten().tolist() == [count, count + 1, count + 2]
