"""Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464): one layer's recurrence over a chain or tree, and its replay.

Every row goes through the same operations in the same shapes, alone or among others, so its bits never depend on the
rows beside it; a replay repeats the very updates of the state that the forward made.

Shape suffixes: N new rows, M nodes of the round, C channels, P projected, V value heads, U key heads, D key size,
E value size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from surefoot.ops.conv import causal_conv, history_after
from surefoot.ops.norm import rms_norm
from surefoot.tree import path_to

NORM_EPS = 1e-6
"""Added to the sum of squares by which queries and keys are normalised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaShape:
    """The sizes of a Gated DeltaNet layer.

    Attributes:
        num_key_heads: heads of queries and keys; each serves ``num_value_heads / num_key_heads`` value heads.
        num_value_heads: heads of values and of the state.
        key_dim: size of a query or key head.
        value_dim: size of a value head.
        conv_size: taps of the causal convolution.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_size: int = 4

    @property
    def key_size(self) -> int:
        """Width of all keys side by side, and of all queries."""
        return self.num_key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        """Width of all values side by side."""
        return self.num_value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """What the convolution reads: queries, keys and values side by side."""
        return 2 * self.key_size + self.value_size

    @property
    def projected(self) -> int:
        """Rows of the input projection: the channels, the output gate (as wide as the values), and two gates a head."""
        return self.channels + self.value_size + 2 * self.num_value_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaParameters:
    """What a Gated DeltaNet layer holds beside its projections.

    Attributes:
        conv: taps ``[C, K]`` of each channel, oldest first, in the model's dtype.
        a_log: fp32 ``[Hv]``, the logarithm of each head's decay rate.
        dt_bias: fp32 ``[Hv]``, what is added to a head's decay gate.
        norm: ``[Dv]``, the weight of the norm of each head's output, as it is (not ``1 + w``).
        eps: of that norm.
    """

    conv: Tensor
    a_log: Tensor
    dt_bias: Tensor
    norm: Tensor
    eps: float


class Tape(NamedTuple):
    """What one layer's round can be replayed from, a row for each node.

    Attributes:
        qkv: what the convolution read, ``[M, C]``, in the model's dtype.
        k: normalised keys, fp32 ``[M, U, D]``.
        delta: what was written under each key, fp32 ``[M, V, E]``.
        alpha: how much of the state was kept before, fp32 ``[M, V]``.
    """

    qkv: Tensor
    k: Tensor
    delta: Tensor
    alpha: Tensor


class DeltaState(NamedTuple):
    """One layer's memory of the tokens before: the state fp32 ``[V, D, E]``, and the convolution's history, the last
    K - 1 rows it read, ``[K - 1, C]`` in the model's dtype, oldest first."""

    state: Tensor
    history: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaPlace:
    """Where one layer of one sequence stands in a forward.

    Attributes:
        parents: those of all nodes of the round, the new ones last.
        num_new: how many of the nodes are new.
        committed: the memory of the committed tokens, which is only read.
        after: where the memory after the last node goes, where the round is a chain.
        continues: whether ``after`` holds the memory after the last old node of a chain, so that nothing need be
            replayed.
        tape: where the nodes' rows go, and the old nodes' are; None where the round is committed as it is.
    """

    parents: Sequence[int]
    num_new: int
    committed: DeltaState
    after: DeltaState | None
    continues: bool
    tape: Tape | None


def gated_delta(projected_NP: Tensor, parameters: DeltaParameters, shape: DeltaShape, place: DeltaPlace) -> Tensor:
    """One layer's convolution, gates, rule and gated norm for the new rows of one sequence: ``[N, V * E]``.

    ``projected`` has the rows of the input projection in the order q, k, v, output gate, write gate, decay gate. The
    rule and its state are fp32 whatever the model is. Writes the tape and ``place.after``, and changes nothing else.
    """
    projected_NP = projected_NP.contiguous()
    heads = shape.num_value_heads
    qkv_NC, z_NY, b_NV, a_NV = projected_NP.split_with_sizes((shape.channels, shape.value_size, heads, heads), 1)
    num_new, first = place.num_new, len(place.parents) - place.num_new
    if place.tape is not None:
        place.tape.qkv.narrow(0, first, num_new).copy_(qkv_NC)
        rows_EC = torch.cat((place.committed.history, place.tape.qkv.narrow(0, 0, first + num_new)))
    else:
        rows_EC = torch.cat((place.committed.history, qkv_NC))
    mixed_NC = _each_row(functional.silu, causal_conv(rows_EC, parameters.conv, place.parents, num_new))
    inputs = _inputs(mixed_NC, b_NV, a_NV, parameters, shape)
    out_NVE = _walk(inputs, place, shape)
    if place.after is not None:
        place.after.history.copy_(history_after(place.committed.history, rows_EC[place.committed.history.shape[0] :]))
    normed_NVE = rms_norm(out_NVE.to(mixed_NC.dtype).float(), None, parameters.eps).to(mixed_NC.dtype)
    gate_NY = _each_row(functional.silu, z_NY.float())
    gated_NY = (parameters.norm * normed_NVE).reshape(num_new, shape.value_size) * gate_NY
    return gated_NY.to(mixed_NC.dtype)


def replay(before: DeltaState, tape: Tape, path: Sequence[int]) -> DeltaState:
    """The memory after the nodes of ``path``, from the memory before the round: bit for bit what decoding them one by
    one leaves. Nothing is changed; what is returned may share memory with ``before`` where ``path`` is empty."""
    state_VDE = before.state
    for node in path:
        state_VDE = _decayed(state_VDE, tape.alpha[node])
        _write(state_VDE, _spread(tape.k[node], state_VDE.shape[0]), tape.delta[node].clone())
    rows_NC = tape.qkv.index_select(0, torch.tensor(path, dtype=torch.int64, device=tape.qkv.device))
    return DeltaState(state_VDE, history_after(before.history, rows_NC))


class _Inputs(NamedTuple):
    """The rule's inputs, fp32, a row for each new node: queries and keys ``[N, U, D]``, values ``[N, V, E]``, and how
    much each head writes and keeps, ``[N, V]``."""

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    alpha: Tensor


def _inputs(mixed_NC: Tensor, b_NV: Tensor, a_NV: Tensor, parameters: DeltaParameters, shape: DeltaShape) -> _Inputs:
    num_rows = mixed_NC.shape[0]
    qk_size = shape.key_size
    qk_NUD = mixed_NC[:, : 2 * qk_size].float().view(num_rows, 2 * shape.num_key_heads, shape.key_dim)
    qk_NUD = qk_NUD / (qk_NUD.square().sum(-1, keepdim=True) + NORM_EPS).sqrt()
    q_NUD, k_NUD = qk_NUD.chunk(2, 1)
    v_NVE = mixed_NC[:, 2 * qk_size :].float().view(num_rows, shape.num_value_heads, shape.value_dim)
    decay = partial(_decay, rate_V=parameters.a_log.exp(), bias_V=parameters.dt_bias)
    return _Inputs(
        q=q_NUD * shape.key_dim**-0.5,
        k=k_NUD,
        v=v_NVE,
        beta=_each_row(torch.sigmoid, b_NV).float(),
        alpha=_each_row(decay, a_NV.float()),
    )


def _decay(a_V: Tensor, rate_V: Tensor, bias_V: Tensor) -> Tensor:
    """How much of each head's state is kept: ``exp(-rate * softplus(a + bias))``."""
    return torch.exp(-(rate_V * functional.softplus(a_V + bias_V)))


def _walk(inputs: _Inputs, place: DeltaPlace, shape: DeltaShape) -> Tensor:
    """The rule node by node, each from its parent's state: what each reads after its own write, fp32 ``[N, V, E]``.

    A state is let go of with its last child.
    """
    parents, heads = place.parents, shape.num_value_heads
    first = len(parents) - place.num_new
    last_child = {parent: node for node, parent in enumerate(parents) if node >= first}
    states: dict[int, Tensor] = {}
    reads = []
    for row, parent in enumerate(parents[first:]):
        if parent not in states:
            states[parent] = _old_state(place, parent)
        before_VDE = states.pop(parent) if last_child[parent] == first + row else states[parent]
        state_VDE = _decayed(before_VDE, inputs.alpha[row])
        k_VD = _spread(inputs.k[row], heads)
        known_VE = torch.bmm(k_VD[:, None], state_VDE)[:, 0]
        delta_VE = (inputs.v[row] - known_VE) * inputs.beta[row][:, None]
        _write(state_VDE, k_VD, delta_VE)
        reads.append(torch.bmm(_spread(inputs.q[row], heads)[:, None], state_VDE)[:, 0])
        if place.tape is not None:
            place.tape.delta[first + row].copy_(delta_VE)
        if first + row in last_child:
            states[first + row] = state_VDE
    if place.tape is not None:
        place.tape.k.narrow(0, first, place.num_new).copy_(inputs.k)
        place.tape.alpha.narrow(0, first, place.num_new).copy_(inputs.alpha)
    if place.after is not None:
        place.after.state.copy_(state_VDE)
    return torch.stack(reads)


def _old_state(place: DeltaPlace, node: int) -> Tensor:
    """The state after a node that was there before this forward; -1 is the committed tokens."""
    if node < 0:
        return place.committed.state
    if place.continues and place.after is not None:
        return place.after.state
    assert place.tape is not None, "a round that keeps no tape is one chain from the committed tokens on"
    return replay(place.committed, place.tape, path_to(place.parents, node)).state


def _decayed(state_VDE: Tensor, alpha_V: Tensor) -> Tensor:
    """The state kept by each head's share, in memory of its own."""
    return state_VDE * alpha_V[:, None, None]


def _write(state_VDE: Tensor, k_VD: Tensor, delta_VE: Tensor) -> None:
    """Adds the outer product of key and delta to each head's state, in place.

    Products of matrices may depend on how operands are aligned, so all three lie in memory of their own.
    """
    state_VDE.baddbmm_(k_VD[:, :, None], delta_VE[:, None])


def _spread(heads_UD: Tensor, num_value_heads: int) -> Tensor:
    """Each key head repeated for the value heads it serves, in memory of its own: ``[V, D]``."""
    num_key_heads, size = heads_UD.shape
    spread = heads_UD[:, None].expand(num_key_heads, num_value_heads // num_key_heads, size)
    return spread.clone(memory_format=torch.contiguous_format).view(num_value_heads, size)


def _each_row(function: Callable[[Tensor], Tensor], x_NY: Tensor) -> Tensor:
    """``function`` of each row by itself.

    Vectorised exponentials and their scalar tails differ in the last bit, and which elements fall into a tail depends
    on how many rows are laid end to end and on how many threads share them.
    """
    return torch.stack([function(row_Y) for row_Y in x_NY.unbind()])
