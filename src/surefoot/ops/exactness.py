"""The self-test of a row arithmetic: does a row's result depend, in its last bit, on how many rows are computed
beside it?

Shape suffixes: N rows, K inputs, G query heads, T cache rows, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from surefoot.ops.attention import FOLD_ROWS, Round
from surefoot.ops.norm import rms_norm
from surefoot.ops.rows import RowArithmetic
from surefoot.tree import depths, is_chain, path_to

ROW_COUNTS = (2, 3, 4, 7, 8, 9, 16, FOLD_ROWS + 1)
"""Rows side by side: a few drafted nodes, blocks full and not quite, and as many as take another path in attention."""
TREE = (-1, 0, 0, 1, 1, 2, 2, 3)
CONTEXTS = (5, 37, 300)
"""Keys that are committed before the rows under test; the library's kernels block keys by the hundreds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShapes:
    """The classes of shapes a model computes rows in.

    ``linears`` maps the name of each class to one weight ``[M, K]`` of it and its bias; ``activations`` are the
    distinct widths of a feed-forward's gate, ``windows`` the distinct attention windows, None for none.
    """

    linears: Mapping[str, tuple[Tensor, Tensor | None]]
    hidden_size: int
    activations: tuple[int, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    attention_dtype: torch.dtype
    windows: tuple[int | None, ...]
    context_length: int


def differing_rows(rows: RowArithmetic, shapes: RowShapes, *, stop_early: bool) -> list[str]:
    """The names of the shape classes where some row of several differs bitwise from the same row alone.

    Inputs are random and the same each time; ``stop_early`` returns after the first difference. An empty list is
    evidence for these shapes, this machine and this number of threads, not a proof.
    """
    found: list[str] = []
    for name, differs in _checks(rows, shapes):
        if differs():
            found.append(name)
            if stop_early:
                break
    return found


def _checks(rows: RowArithmetic, shapes: RowShapes) -> Iterator[tuple[str, Callable[[], bool]]]:
    """The named checks, those that read the least memory first."""
    draw = _Draw(next(iter(shapes.linears.values()))[0])
    most = max(ROW_COUNTS)
    norm = partial(rms_norm, weight=None, eps=1e-6)
    yield f"norm of width {shapes.hidden_size}", partial(_rows_differ, norm, draw.normal(most, shapes.hidden_size))
    for width in shapes.activations:
        gate_up = draw.normal(most, 2 * width)
        yield f"activation of width {width}", partial(_rows_differ, rows.swiglu, gate_up)
    for context in CONTEXTS:
        if context + most <= shapes.context_length:
            for window in shapes.windows:
                name = f"attention over {context} tokens" + f", window {window}" * (window is not None)
                yield name, partial(_attention_differs, rows, shapes, context, window, draw)
    for name, (weight, bias) in sorted(shapes.linears.items(), key=lambda item: item[1][0].numel()):
        product = partial(_product, rows, weight, bias)
        yield f"{name} {tuple(weight.shape)}", partial(_rows_differ, product, draw.normal(most, weight.shape[1]))


class _Draw:
    """Random inputs, the same each time, on the device and by default in the dtype of ``like``."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._generator = torch.Generator().manual_seed(0)

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        drawn = torch.randn(shape, generator=self._generator, dtype=torch.float32)
        return drawn.to(self._like.device, dtype or self._like.dtype)


def _product(rows: RowArithmetic, weight: Tensor, bias: Tensor | None, x_NK: Tensor) -> Tensor:
    return rows.linear(x_NK, weight, bias)


def _rows_differ(compute: Callable[[Tensor], Tensor], x_NK: Tensor) -> bool:
    """Whether ``compute`` gives some row of a block of several other bits than the same row alone."""
    alone = torch.cat([compute(row_K[None].clone()) for row_K in x_NK.unbind()])
    return any(not torch.equal(compute(x_NK[-count:].clone()), alone[-count:]) for count in ROW_COUNTS)


def _attention_differs(rows: RowArithmetic, shapes: RowShapes, context: int, window: int | None, draw: _Draw) -> bool:
    """Whether some node of a chain or tree attends to other bits than the same node at the end of its path alone."""
    dtype, most = shapes.attention_dtype, max(ROW_COUNTS)
    q_NGD = draw.normal(most, shapes.num_heads, shapes.head_dim, dtype=dtype)
    keys, values = (draw.normal(shapes.num_kv_heads, context + most, shapes.head_dim, dtype=dtype) for _ in range(2))

    def attend(parents: Sequence[int], num_new: int, nodes: Sequence[int]) -> Tensor:
        """The last ``num_new`` of a round whose rows are those of ``nodes``."""
        around = Round(context, parents, depths(parents), num_new, is_chain(parents))
        sight = rows.see(around, window, shapes.num_heads // shapes.num_kv_heads, dtype, q_NGD.device)
        read = torch.tensor([*range(context), *(context + node for node in nodes)], device=q_NGD.device)[sight.first :]
        new = torch.tensor(nodes[-num_new:], device=q_NGD.device)
        return rows.attend(q_NGD[new], keys[:, read], values[:, read], sight)

    def differs(parents: Sequence[int]) -> bool:
        together = attend(parents, len(parents), range(len(parents)))
        paths = [path_to(parents, node) for node in range(len(parents))]
        alone = [attend(range(-1, len(path) - 1), 1, path) for path in paths]
        return not torch.equal(together, torch.cat(alone))

    return any(differs(range(-1, count - 1)) for count in ROW_COUNTS) or differs(TREE)
