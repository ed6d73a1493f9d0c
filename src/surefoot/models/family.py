"""What a model family is to the loader: how its config is read and where its checkpoint's tensors go."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from surefoot.models.config import DecoderConfig

RawConfig = Mapping[str, object]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Grouped:
    """Rows that lie group by group in a checkpoint, each group in parts, and part by part in ours.

    Attributes:
        groups: how many there are.
        parts: rows of each part of a group, as they lie there.
        order: indices of the parts, as they lie with us.
    """

    groups: int
    parts: tuple[int, ...]
    order: tuple[int, ...]

    def arranged(self, rows: Tensor) -> Tensor:
        """``rows [R, K]`` of a checkpoint, part by part."""
        parts = rows.view(self.groups, sum(self.parts), -1).split_with_sizes(self.parts, 1)
        return torch.cat([parts[index].reshape(-1, rows.shape[-1]) for index in self.order])


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor of a checkpoint and the place it fills.

    Attributes:
        name: its name in the checkpoint (Hugging Face layout).
        shape: its shape there.
        parameter: dotted name of the parameter of ``DecoderModel`` it fills, wholly or in part.
        start: first row that it fills there; parameters fused of several tensors take them one below the other. Rows
            are those of :func:`as_rows`.
        grouped: how its rows lie where that is otherwise than in the parameter.
    """

    name: str
    shape: tuple[int, ...]
    parameter: str
    start: int = 0
    grouped: Grouped | None = None

    @property
    def num_rows(self) -> int:
        """The rows it fills."""
        return self.shape[0] if len(self.shape) == 1 else math.prod(self.shape[:-1])

    def fill(self, parameter: Tensor, tensor: Tensor) -> Tensor:
        """Copies the checkpoint's ``tensor`` to its place in ``parameter``; returns that place."""
        rows, place = as_rows(tensor), as_rows(parameter)[self.start : self.start + self.num_rows]
        place.copy_(rows if self.grouped is None else self.grouped.arranged(rows))
        return place


def as_rows(tensor: Tensor) -> Tensor:
    """``tensor`` as a matrix: all dimensions but the last counted together, and a vector one element a row."""
    return tensor.view(-1, 1 if tensor.dim() == 1 else tensor.shape[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Tensors that are known and not read.

    Attributes:
        pattern: regular expression (full match) of their names.
        note: what a user should know of it; None where they carry no information.
    """

    pattern: str
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A Hugging Face ``model_type`` over the shared decoder stack.

    Attributes:
        model_type: the value in ``config.json``.
        parse: reads a whole raw ``config.json``. Raises ``UnsupportedModelError`` naming the field that asks for
            something not implemented, ``CheckpointError`` naming the field that is missing, malformed or
            contradicts another.
        tensors: every tensor a checkpoint of this config must hold; together they fill every parameter exactly once.
        other_layouts: the same for other names and cuts that checkpoints of the family come in.
        ignored: regular expressions (full match) of tensors that older exporters add and that carry no information; a
            name that ``tensors`` lists is never ignored.
        left_out: tensors that belong to the checkpoint and that this version does not read.
        own_code: entries of ``auto_map`` that name the family's original code, which its implementation here stands
            for. Like any code of a checkpoint it is never executed; other entries are refused.
        whole_models: classes of models of several modalities whose text part is of the family.
        flatten: takes the text part out of the ``config.json`` of such a model; any other it leaves as it is.
        refuse: raises ``UnsupportedModelError`` for shapes of tensors that tell of another library's conversion.
    """

    model_type: str
    parse: Callable[[RawConfig], DecoderConfig]
    tensors: Callable[[DecoderConfig], list[TensorSpec]]
    other_layouts: tuple[Callable[[DecoderConfig], list[TensorSpec]], ...] = ()
    ignored: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    own_code: frozenset[tuple[str, str]] = frozenset()
    whole_models: frozenset[str] = frozenset()
    flatten: Callable[[RawConfig], dict[str, object]] = dict
    refuse: Callable[[Shapes], None] = lambda shapes: None

    def names_own_code(self, auto_map: object) -> bool:
        """Whether every entry of an ``auto_map`` is one of ``own_code``, perhaps with the repository it lies in."""
        if not isinstance(auto_map, Mapping):
            return False
        return all(
            isinstance(code, str) and (name, code.rpartition("--")[2]) in self.own_code
            for name, code in auto_map.items()
        )

    def layout(self, config: DecoderConfig, shapes: Shapes) -> list[TensorSpec]:
        """The tensors a checkpoint must hold, in the layout that most of the names in ``shapes`` are of."""
        self.refuse(shapes)
        layouts = [tensors(config) for tensors in (self.tensors, *self.other_layouts)]
        return max(layouts, key=lambda specs: sum(spec.name in shapes for spec in specs))

    def is_known(self, name: str) -> bool:
        """Whether a tensor that no layout lists may be there all the same."""
        patterns = (*self.ignored, *(left.pattern for left in self.left_out))
        return any(re.fullmatch(pattern, name) for pattern in patterns)

    def notes(self, shapes: Shapes) -> tuple[str, ...]:
        """What a user should know of the tensors that are not read."""
        return tuple(
            left.note
            for left in self.left_out
            if left.note is not None and any(re.fullmatch(left.pattern, name) for name in shapes)
        )
