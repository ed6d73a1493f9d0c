"""Checkpoint tensors into a model: every parameter filled once, or one error that names all that is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor

from surefoot.drafters.dflash.network import DFlashNetwork
from surefoot.errors import CheckpointError
from surefoot.loading.header import StoredTensor
from surefoot.models.decoder import DecoderModel
from surefoot.models.family import TensorSpec, as_rows

FLOATS: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}
"""Dtypes weights may have."""


class Layout(Protocol):
    """What may lie in a checkpoint beside the tensors that are read: a family says it."""

    def is_known(self, name: str) -> bool:
        """Whether a tensor that is not read may be there all the same."""
        ...


def shapes_of(stored: Mapping[str, StoredTensor]) -> dict[str, tuple[int, ...]]:
    """The shapes of a checkpoint's tensors, as a family asks for them."""
    return {name: tensor.shape for name, tensor in stored.items()}


def check_tensors(specs: Sequence[TensorSpec], layout: Layout, stored: Mapping[str, StoredTensor]) -> None:
    """Raises ``CheckpointError`` naming every missing, unexpected, misshapen, non-float and non-finite tensor.

    Where names, shapes and dtypes are right nothing is read; :func:`fill` looks at the numbers as it copies them.
    """
    problems = [*structural_problems(specs, layout, stored)]
    if problems:
        usable = [spec for spec in specs if spec.name in stored and _fits(spec, stored[spec.name])]
        raise _misfit(stored, problems + _each(usable, stored, _non_finite))


def fill(
    model: DecoderModel | DFlashNetwork,
    specs: Sequence[TensorSpec],
    stored: Mapping[str, StoredTensor],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Moves ``model`` from ``meta`` to ``device`` and copies checked tensors in, converted as its ``cast`` says.

    Each row of each parameter is filled once, by the family's table of tensors.

    Raises:
        CheckpointError: naming every tensor that holds NaN or infinity, or does so once converted.
    """
    _check_cover(model, specs)
    model.cast(dtype)
    model.to_empty(device=device)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        problems = _each(specs, stored, lambda spec, tensor: _copy(parameters[spec.parameter], spec, tensor))
    if problems:
        raise _misfit(stored, problems)


def _misfit(stored: Mapping[str, StoredTensor], problems: list[str]) -> CheckpointError:
    where = ", ".join(sorted({str(tensor.path.parent) for tensor in stored.values()})) or "the checkpoint"
    return CheckpointError(
        f"{where}: the weights do not fit config.json; expected the tensors its fields describe, all finite. "
        "Download the checkpoint again, or repair its config:\n" + "\n".join(f"  {problem}" for problem in problems)
    )


def check_tied_head(stored: Mapping[str, StoredTensor], head: str, embedding: str) -> None:
    """Where a checkpoint stores a tied output head all the same, it must be the embedding it is tied to."""
    if head not in stored or embedding not in stored:
        return
    ((_, copy),) = read([stored[head]])
    ((_, original),) = read([stored[embedding]])
    if copy.shape != original.shape or not torch.equal(copy.to(original.dtype), original):
        raise CheckpointError(
            f"{stored[head].path}: tensor {head!r} differs from {embedding!r}, which config.json ties it to; "
            "expected the same values. Set tie_word_embeddings to false if the head is its own, or remove the tensor"
        )


def _check_cover(model: DecoderModel | DFlashNetwork, specs: Iterable[TensorSpec]) -> None:
    """The family's table must fill every row of every parameter once: our invariant, whatever the checkpoint."""
    rows_of = {name: as_rows(parameter) for name, parameter in model.named_parameters()}
    end_of = dict.fromkeys(rows_of, 0)
    for spec in sorted(specs, key=lambda spec: (spec.parameter, spec.start)):
        assert spec.start == end_of[spec.parameter], spec
        assert spec.num_rows * rows_of[spec.parameter].shape[1] == math.prod(spec.shape), spec
        end_of[spec.parameter] += spec.num_rows
    for name, end in end_of.items():
        assert end == len(rows_of[name]), (name, end, rows_of[name].shape)


def structural_problems(
    specs: Sequence[TensorSpec], layout: Layout, stored: Mapping[str, StoredTensor]
) -> Iterator[str]:
    """What headers alone show: each missing, unexpected, misshapen and non-float tensor, a line each."""
    expected = {spec.name for spec in specs}
    for spec in specs:
        if spec.name not in stored:
            yield f"missing: {spec.name} {list(spec.shape)}"
    for name, tensor in stored.items():
        if name not in expected and not layout.is_known(name):
            yield f"unexpected: {name} {list(tensor.shape)} {tensor.dtype} in {tensor.path.name}"
    for spec in specs:
        tensor_or_none = stored.get(spec.name)
        if tensor_or_none is None:
            continue
        if tensor_or_none.shape != spec.shape:
            yield f"wrong shape: {spec.name} is {list(tensor_or_none.shape)}, expected {list(spec.shape)}"
        if tensor_or_none.dtype not in FLOATS:
            yield f"wrong dtype: {spec.name} is {tensor_or_none.dtype}, expected one of {', '.join(FLOATS)}"


def _fits(spec: TensorSpec, tensor: StoredTensor) -> bool:
    return tensor.shape == spec.shape and tensor.dtype in FLOATS


def _each(
    specs: Iterable[TensorSpec],
    stored: Mapping[str, StoredTensor],
    visit: Callable[[TensorSpec, Tensor], str | None],
) -> list[str]:
    """Visits the tensors in the order they lie in the files; returns the problems found."""
    problems: list[str] = []
    in_order = sorted(specs, key=lambda spec: (stored[spec.name].path, stored[spec.name].start))
    for _, group in groupby(in_order, key=lambda spec: stored[spec.name].path):
        of_file = {spec.name: spec for spec in group}
        for name, tensor in read(stored[name] for name in of_file):
            problem = visit(of_file[name], tensor)
            if problem is not None:
                problems.append(problem)
    return problems


def read(tensors: Iterable[StoredTensor]) -> Iterator[tuple[str, Tensor]]:
    """Float tensors of one file, one after the other, each in memory of its own.

    Files are read and not mapped: what was mapped would stay in memory beside the parameters.
    """
    tensors = list(tensors)
    name = ""
    try:
        with tensors[0].path.open("rb") as file:
            begin = 8 + int.from_bytes(file.read(8), "little")
            for tensor in tensors:
                name = tensor.name
                found = torch.empty(tensor.shape, dtype=FLOATS[tensor.dtype])
                file.seek(begin + tensor.start)
                if file.readinto(found.view(-1).view(torch.uint8).numpy()) != tensor.end - tensor.start:
                    raise EOFError("the file ends inside it")
                yield name, found
    except (EOFError, OSError) as fault:
        path = tensors[0].path
        raise CheckpointError(f"{path}: tensor {name!r} cannot be read: {fault}. Download the file again") from fault


def _copy(parameter: Tensor, spec: TensorSpec, tensor: Tensor) -> str | None:
    rows = spec.fill(parameter, tensor)
    if _is_finite(rows):
        return None
    return _non_finite(spec, tensor) or f"not finite: {spec.name}, once converted to {parameter.dtype}"


def _non_finite(spec: TensorSpec, tensor: Tensor) -> str | None:
    return None if _is_finite(tensor) else f"not finite: {spec.name} holds NaN or infinity"


def _is_finite(tensor: Tensor) -> bool:
    """Whether no element is NaN or infinite; NaN survives the minimum and the maximum."""
    if tensor.numel() == 0:
        return True
    low, high = torch.aminmax(tensor)
    return bool(torch.isfinite(low) & torch.isfinite(high))
