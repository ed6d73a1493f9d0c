"""What a model family is to the loader: how its config is read and where its checkpoint's tensors go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from surefoot.models.config import DecoderConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor of a checkpoint and the place it fills.

    Attributes:
        name: its name in the checkpoint (Hugging Face layout).
        shape: its shape there.
        parameter: dotted name of the parameter of ``DecoderModel`` it fills, wholly or in part.
        start: first row of dimension 0 that it fills there; parameters fused of several tensors take them one below the
            other.
    """

    name: str
    shape: tuple[int, ...]
    parameter: str
    start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A Hugging Face ``model_type`` over the shared decoder stack.

    Attributes:
        model_type: the value in ``config.json``.
        parse: reads a whole raw ``config.json``. Raises ``UnsupportedModelError`` naming the field that asks for
            something not implemented, ``CheckpointError`` naming the field that is missing, malformed or
            contradicts another.
        tensors: every tensor a checkpoint of this config must hold; together they fill every parameter exactly once.
        ignored: regular expressions (full match) of tensors that older exporters add and that carry no information; a
            name that ``tensors`` lists is never ignored.
        own_code: entries of ``auto_map`` that name the family's original code, which its implementation here stands
            for. Like any code of a checkpoint it is never executed; other entries are refused.
    """

    model_type: str
    parse: Callable[[Mapping[str, object]], DecoderConfig]
    tensors: Callable[[DecoderConfig], list[TensorSpec]]
    ignored: tuple[str, ...] = ()
    own_code: frozenset[tuple[str, str]] = frozenset()

    def names_own_code(self, auto_map: object) -> bool:
        """Whether every entry of an ``auto_map`` is one of ``own_code``, perhaps with the repository it lies in."""
        if not isinstance(auto_map, Mapping):
            return False
        return all(
            isinstance(code, str) and (name, code.rpartition("--")[2]) in self.own_code
            for name, code in auto_map.items()
        )
