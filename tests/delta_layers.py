"""Delta layers by themselves: random weights and inputs, and one sequence of rows through them and their cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from surefoot.cache.hybrid import AttentionRows, HybridCache
from surefoot.cache.recurrent import RecurrentStates, Replayer
from surefoot.ops.delta_rule import DeltaParameters, DeltaShape, gated_delta
from surefoot.ops.rope import Rope, RopeTable

EVEN = DeltaShape(num_key_heads=2, num_value_heads=4, key_dim=16, value_dim=16)
ODD = DeltaShape(num_key_heads=1, num_value_heads=3, key_dim=12, value_dim=5)
"""Three value heads to a key head, unequal sizes, and no width that fills a vector."""
VOCABULARY = 40


def random_parameters(shape: DeltaShape, dtype: torch.dtype, seed: int) -> DeltaParameters:
    """Weights under which states live long and are written everywhere."""
    generator = torch.Generator().manual_seed(seed)
    heads = shape.num_value_heads
    return DeltaParameters(
        conv=(0.5 * torch.randn(shape.channels, shape.conv_size, generator=generator)).to(dtype),
        a_log=torch.rand(heads, generator=generator).log(),
        dt_bias=torch.randn(heads, generator=generator),
        norm=(1 + 0.2 * torch.randn(shape.value_dim, generator=generator)).to(dtype),
        eps=1e-6,
    )


class DeltaLayers:
    """A few delta layers, each with its own row of inputs for every token."""

    def __init__(self, shape: DeltaShape, dtype: torch.dtype, num_layers: int = 2) -> None:
        generator = torch.Generator().manual_seed(9)
        self.shape, self.dtype, self.num_layers = shape, dtype, num_layers
        self.parameters = [random_parameters(shape, dtype, seed) for seed in range(self.num_layers)]
        drawn = torch.randn(self.num_layers, VOCABULARY, shape.projected, generator=generator)
        self.inputs = drawn.to(dtype)

    def sequence(self, *, long_run: bool = False, replayer: Replayer | None = None) -> DeltaSequence:
        """An empty sequence, or one of seven tokens whose states are as after a long run."""
        like = torch.empty(0, dtype=self.dtype)
        rope = RopeTable(Rope(theta=10000.0, dim=2), 1, dtype=torch.float32, device=torch.device("cpu"))
        cache = HybridCache(
            owner=None,
            capacity=4096,
            rows=AttentionRows(num_layers=1, num_kv_heads=1, head_dim=2),
            rope=rope,
            like=torch.empty(0),
            states=RecurrentStates(self.shape, self.num_layers, like, replayer),
        )
        if long_run:
            cache.fill_committed(7, torch.Generator().manual_seed(3))
        return DeltaSequence(self, cache)


@dataclass(frozen=True)
class Snapshot:
    """All that is committed of a sequence."""

    state: Tensor
    history: Tensor
    rows: Tensor

    def equals(self, other: Snapshot) -> bool:
        pairs = ((self.state, other.state), (self.history, other.history), (self.rows, other.rows))
        return all(torch.equal(ours, theirs) for ours, theirs in pairs)


class Interrupted(Exception):  # noqa: N818  (not an error of ours)
    """A forward that ends before its last layer."""


class DeltaSequence:
    """Rounds and prefill chunks through the layers, as a model would have them; a row of keys holds its token."""

    def __init__(self, layers: DeltaLayers, cache: HybridCache) -> None:
        self.layers, self.cache = layers, cache

    @torch.inference_mode()
    def score(self, tokens: Sequence[int], parents: Sequence[int], *, fail: bool = False) -> Tensor:
        """Appends nodes to the open round; what every layer gives for each, ``[L, N, V * E]``."""
        transaction, states = self.cache.transaction, self.cache.states
        nodes = transaction.extended(parents)
        states.open(transaction.open, nodes, keeps_tape=True)
        self._write_rows(tokens)
        outs = []
        for layer, place in enumerate(states.places(nodes, len(tokens))):
            outs.append(self._layer(layer, tokens, place))
            if fail:
                raise Interrupted
        transaction.open = nodes
        return torch.stack(outs)

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int]) -> Tensor:
        """One chunk, committed."""
        nodes = self.cache.transaction.extended(range(-1, len(tokens) - 1))
        self.cache.states.open(self.cache.transaction.open, nodes, keeps_tape=False)
        self._write_rows(tokens)
        places = self.cache.states.places(nodes, len(tokens))
        outs = torch.stack([self._layer(layer, tokens, place) for layer, place in enumerate(places)])
        self.cache.commit_chunk(len(tokens))
        return outs

    def step(self, token: int) -> Tensor:
        """Plain decoding of one token."""
        out = self.score([token], [-1])
        self.cache.commit([0])
        return out

    def steps(self, tokens: Sequence[int]) -> Tensor:
        """Plain decoding of several."""
        return torch.cat([self.step(token) for token in tokens], 1)

    def snapshot(self) -> Snapshot:
        memory = self.cache.states.committed
        rows = torch.cat([rows.flatten(1) for rows in self.cache.rows_to_read(0, self.cache.length)])
        return Snapshot(memory.state.clone(), memory.history.clone(), rows.clone())

    def _layer(self, layer: int, tokens: Sequence[int], place) -> Tensor:  # type: ignore[no-untyped-def]
        projected = self.layers.inputs[layer][list(tokens)]
        return gated_delta(projected, self.layers.parameters[layer], self.layers.shape, place)

    def _write_rows(self, tokens: Sequence[int]) -> None:
        start = self.cache.length + self.cache.num_open
        for rows in self.cache.rows_to_write(start, len(tokens)):
            rows.copy_(torch.tensor(tokens, dtype=torch.float32)[:, None, None].expand(rows.shape))


def random_tree(choices: Random, most: int = 24) -> list[int]:
    """Parents of a tree of up to ``most`` nodes that branches here and there."""
    count = choices.randint(2, most)
    return [-1, *(choices.randint(max(0, node - 4), node - 1) for node in range(1, count))]


def random_tokens(choices: Random, count: int) -> list[int]:
    return [choices.randrange(VOCABULARY) for _ in range(count)]


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Another number of threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
