"""Blocks driven through their records alone, and the same blocks in fp64 by the plain operations.

Shape suffixes: N rows, H hidden, X query, key and value heads together, G query heads, K key heads, D head size,
C capacity, P positions, R rotated dimensions, F feed-forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import addressof
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from surefoot.native import pack, pack_pairs
from surefoot.native.library import required
from surefoot.native.records import KIND_ATTENTION, KIND_MLP, Attention, Call, Mlp, Record, Row, Step, type_code
from surefoot.native.records import Sequence as SequenceRecord
from surefoot.ops.attention import Sight, attend_rows
from surefoot.ops.mlp import swiglu
from surefoot.ops.norm import rms_norm
from surefoot.ops.rope import Factors, Rope, RopeTable, rotate
from surefoot.tree import path_to

EPS = 1e-6
LAYER, LAYERS = 1, 2
"""A block stands in the second of two layers, so that a wrong offset into the cache shows."""
POSITIONS = 128


class Node(NamedTuple):
    """A row of a call, as the record has it; ``seen`` are places of its round."""

    sequence: int
    position: int
    place: int
    committed: int
    seen: tuple[int, ...]


def nodes_of(parents: Sequence[int], length: int, *, first: int = 0, sequence: int = 0) -> list[Node]:
    """The rows of a round's nodes from ``first`` on, after ``length`` committed ones."""
    paths = [path_to(parents, node) for node in range(len(parents))]
    return [
        Node(sequence, length + len(path) - 1, length + path[-1], length, tuple(length + node for node in path))
        for path in paths[first:]
    ]


def chain_of(count: int) -> range:
    return range(-1, count - 1)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def narrowing(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Rounds fp64 as the kernels round what lies between their steps; fp32 is kept as it is."""
    return lambda x: x if dtype == torch.float32 else x.to(dtype).double()


def call(x_NH: Tensor, kind: int, block: Record, nodes: Sequence[Node], sequences: object) -> Tensor:
    """One step over a copy of the rows."""
    out = x_NH.clone()
    seen, rows = [0], (Row * max(1, len(nodes)))()
    for row, node in zip(rows, nodes, strict=False):
        row.sequence, row.position, row.place, row.committed = node[:4]
        row.seen, row.num_seen = len(seen), len(node.seen)
        seen += node.seen
    places = torch.tensor(seen)
    step = Step(kind, block.address, None)
    record = Call(
        type=type_code(x_NH.dtype),
        num_rows=len(x_NH),
        hidden=x_NH.shape[1],
        stream=out.data_ptr(),
        rows=addressof(rows),
        sequences=addressof(sequences),
        seen=places.data_ptr(),
        steps=step.address,
        num_steps=1,
    )
    assert required().forward(record.address) == 0
    return out


@dataclass(frozen=True, kw_only=True)
class Heads:
    """The shape of an attention block."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    rotated: int = 0
    window: int | None = None
    qk_norm: bool = False
    bias: bool = False
    gated: bool = False
    norm_once: bool = False


class AttentionBlock:
    """An attention block of random weights; its tensors may be changed before ``pack``."""

    def __init__(self, shape: Heads, dtype: torch.dtype, cache_dtype: torch.dtype = torch.float32) -> None:
        hidden, heads = shape.hidden, shape.heads + 2 * shape.kv_heads
        fused, query = heads * shape.head_dim, shape.heads * shape.head_dim
        self.shape, self.dtype, self.cache_dtype = shape, dtype, cache_dtype
        self.norm = 1 + 0.2 * draw(hidden)
        self.qkv = (draw(fused, hidden) * hidden**-0.5).to(dtype)
        self.out = (draw(hidden, query) * query**-0.5).to(dtype)
        self.qkv_bias = 0.2 * draw(fused, seed=1) if shape.bias else None
        self.out_bias = 0.2 * draw(hidden, seed=1) if shape.bias else None
        self.gate = (draw(query, hidden, seed=2) * hidden**-0.5).to(dtype) if shape.gated else None
        rotated_heads = shape.heads + shape.kv_heads
        self.head_norm = 1 + 0.2 * draw(rotated_heads, shape.head_dim) if shape.qk_norm else None
        self.scale = shape.head_dim**-0.5
        size = shape.rotated or shape.head_dim
        table = RopeTable(Rope(theta=1e4, dim=size), 1, dtype=torch.float32, device=torch.device("cpu"))
        self.first, self.second = (factor.squeeze(1).contiguous() for factor in table.run(0, POSITIONS))

    def pack(self) -> AttentionBlock:
        """Lays the weights out for the kernels; returns itself."""
        shape = self.shape
        qkv = self.qkv if self.gate is None else torch.cat((self.qkv, self.gate))
        bias = self.qkv_bias
        if bias is not None and self.gate is not None:
            bias = torch.cat((bias, torch.zeros(len(self.gate))))
        self.packed = pack(qkv, bias), pack(self.out, self.out_bias)
        self.record = Attention(
            qkv=self.packed[0].record,
            out=self.packed[1].record,
            norm=self.norm.data_ptr(),
            head_norm=None if self.head_norm is None else self.head_norm.data_ptr(),
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            window=shape.window or 0,
            layer=LAYER,
            cache_type=type_code(self.cache_dtype),
            eps=EPS,
            scale=self.scale,
            gated=shape.gated,
            norm_once=shape.norm_once,
        )
        return self

    def cache(self, length: int, capacity: int, seed: int = 3) -> Tensor:
        """Random rows of keys and values ``[2 * layers, K, C, D]``; NaN beyond the first ``length``."""
        shape = self.shape
        rows = torch.full((2 * LAYERS, shape.kv_heads, capacity, shape.head_dim), torch.nan)
        rows[:, :, :length] = draw(2 * LAYERS, shape.kv_heads, length, shape.head_dim, seed=seed)
        return rows.to(self.cache_dtype)

    def run(self, x_NH: Tensor, nodes: Sequence[Node], caches: Sequence[Tensor]) -> Tensor:
        """The block on rows ``x_NH``, one for each node; their keys and values are written."""
        size = self.first.shape[1]
        records = [
            (rows.data_ptr(), rows.shape[2], self.first.data_ptr(), self.second.data_ptr(), size) for rows in caches
        ]
        return call(x_NH, KIND_ATTENTION, self.record, nodes, (SequenceRecord * len(records))(*records))

    def reference(self, x_NH: Tensor, nodes: Sequence[Node], caches: Sequence[Tensor], *, rounds: bool) -> Tensor:
        """The same in fp64 on ``caches`` of fp64; with ``rounds``, rounded wherever the kernels round."""
        shape = self.shape
        narrow = narrowing(self.dtype) if rounds else narrowing(torch.float32)
        keep = narrowing(self.cache_dtype) if rounds else narrow
        x_NH = x_NH.double()
        h = narrow(rms_norm(x_NH, self.norm.double(), EPS))
        fused = narrow(functional.linear(h, self.qkv.double(), _double(self.qkv_bias)))
        heads = fused.view(len(x_NH), -1, shape.head_dim)
        qk_NGD, v_NKD = heads.split_with_sizes((shape.heads + shape.kv_heads, shape.kv_heads), 1)
        if self.head_norm is not None:
            normed = rms_norm(qk_NGD, None, EPS)
            qk_NGD = narrow((normed if shape.norm_once else narrow(normed)) * self.head_norm.double())
        q_NGD, k_NKD = rotate(qk_NGD, *self._factors(nodes)).split_with_sizes((shape.heads, shape.kv_heads), 1)
        for node, key, value in zip(nodes, k_NKD, v_NKD, strict=True):
            rows = caches[node.sequence]
            rows[2 * LAYER, :, node.place], rows[2 * LAYER + 1, :, node.place] = keep(key), keep(value)
        mixed = []
        for query, node in zip(q_NGD, nodes, strict=True):
            rows = caches[node.sequence]
            sight = Sight(0, None, (torch.tensor(visible(node, shape.window)),))
            mixed.append(attend_rows(query[None], rows[2 * LAYER], rows[2 * LAYER + 1], sight))
        mixed_NX = torch.cat(mixed)
        if self.gate is not None:
            mixed_NX = mixed_NX * narrow(functional.linear(h, self.gate.double())).sigmoid()
        out = narrow(functional.linear(narrow(mixed_NX), self.out.double(), _double(self.out_bias)))
        return narrow(x_NH + out)

    def _factors(self, nodes: Sequence[Node]) -> Factors:
        positions = [node.position for node in nodes]
        return self.first[positions][:, None].double(), self.second[positions][:, None].double()


def visible(node: Node, window: int | None) -> list[int]:
    """The places a row sees, by the positions of what lies there."""
    start = node.position - len(node.seen) + 1
    places = [*((place, place) for place in range(node.committed)), *enumerate(node.seen, start)]
    return [place for position, place in places if window is None or node.position - position < window]


@dataclass(frozen=True, kw_only=True)
class Width:
    """The shape of a feed-forward block."""

    hidden: int
    inner: int
    bias: bool = False


class MlpBlock:
    """A feed-forward block of random weights, ``scale`` times as large."""

    def __init__(self, shape: Width, dtype: torch.dtype, scale: float = 1.0) -> None:
        hidden, inner = shape.hidden, shape.inner
        self.shape, self.dtype = shape, dtype
        self.norm = 1 + 0.2 * draw(hidden)
        self.gate, self.up = ((scale * draw(inner, hidden, seed=n) * hidden**-0.5).to(dtype) for n in (0, 1))
        self.down = (draw(hidden, inner) * inner**-0.5).to(dtype)
        self.biases = (0.2 * draw(inner), 0.2 * draw(inner, seed=1)) if shape.bias else (None, None)
        self.down_bias = 0.2 * draw(hidden, seed=1) if shape.bias else None
        self.packed = pack_pairs(self.gate, self.up, self.biases), pack(self.down, self.down_bias)
        self.record = Mlp(
            gate_up=self.packed[0].record,
            down=self.packed[1].record,
            norm=self.norm.data_ptr(),
            inner=inner,
            eps=EPS,
        )

    def run(self, x_NH: Tensor) -> Tensor:
        """The block on rows ``x_NH``."""
        return call(x_NH, KIND_MLP, self.record, (), (SequenceRecord * 1)())

    def reference(self, x_NH: Tensor, *, rounds: bool) -> Tensor:
        """The same in fp64; with ``rounds``, rounded wherever the kernels round."""
        narrow = narrowing(self.dtype) if rounds else narrowing(torch.float32)
        x_NH = x_NH.double()
        h = narrow(rms_norm(x_NH, self.norm.double(), EPS))
        gate, up = (
            narrow(functional.linear(h, weight.double(), _double(bias)))
            for weight, bias in zip((self.gate, self.up), self.biases, strict=True)
        )
        h = narrow(narrow(functional.silu(gate)) * up) if rounds else swiglu(torch.cat((gate, up), -1))
        return narrow(x_NH + narrow(functional.linear(h, self.down.double(), _double(self.down_bias))))


def _double(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.double()
