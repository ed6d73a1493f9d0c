"""The kernels on torch tensors: weights packed once, products with them, their rows as they were, and norms."""

from __future__ import annotations

import weakref
from array import array
from copy import copy

import torch
from torch.nn import functional

from surefoot.errors import TargetError
from surefoot.native.library import available, required
from surefoot.native.records import TYPE_CODES, Matrix, Product, type_code

LANES = 16
"""Outputs of a packed block."""
_FP32 = torch.float32


def checked(name: str, tensor: torch.Tensor, shape: tuple[int | None, ...], dtype: torch.dtype | None = None) -> int:
    """The address of a tensor the kernels can read: contiguous, on the CPU, of a format they know.

    Args:
        name: what it is, for the error.
        tensor: the tensor; it must outlive the address.
        shape: sizes it must have; None allows any.
        dtype: the format it must have; None allows fp32 and bf16.

    Raises ``TargetError``.
    """
    found = tensor.shape
    fits = len(found) == len(shape)
    for size, expected in zip(found, shape, strict=False):
        fits = fits and expected in (None, size)
    right = tensor.dtype == dtype if dtype is not None else tensor.dtype in TYPE_CODES
    if fits and right and tensor.is_cpu and tensor.is_contiguous():
        return tensor.data_ptr()
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    layout = "contiguous" if tensor.is_contiguous() else "not contiguous"
    raise TargetError(
        f"{name} is {tensor.dtype} {list(found)} on {tensor.device}, {layout}; expected "
        f"{dtype or 'torch.float32 or torch.bfloat16'} [{sizes}] on cpu, contiguous"
    )


class Packed:
    """A weight as the kernels read it, in memory of its own that is freed with it.

    Attributes:
        outputs: rows of the weight; of a pair, both halves' rows filled up to whole blocks.
        inputs: its columns.
        dtype: its number format.
        bias: fp32 [outputs, filled up to whole blocks with zeros], or None.
        record: what the kernels read; it points into this object.
    """

    def __init__(
        self,
        outputs: int,
        inputs: int,
        dtype: torch.dtype,
        bias: torch.Tensor | None,
        inside: torch.Tensor | None = None,
    ) -> None:
        """Reserves memory that ``pack`` and ``pack_pairs`` fill, or takes over that of ``inside``, packed already.

        ``bias`` is the attribute.
        """
        self.outputs, self.inputs, self.dtype, self.bias = outputs, inputs, dtype, bias
        self._inside: torch.Tensor | Packed | None = inside
        if inside is None:
            library = required()
            memory = library.allocate(type_code(dtype), outputs, inputs)
            weakref.finalize(self, library.free, memory).atexit = False
        else:
            memory = inside.data_ptr()
        self.record = Matrix(memory, None if bias is None else bias.data_ptr(), inputs, outputs)

    def last(self, count: int) -> Packed:
        """The outputs of its last blocks, of as many as ``count`` outputs fill; it lies in this one's memory."""
        first = max(0, _whole_blocks(self.outputs) - _whole_blocks(count))
        part = copy(self)
        part._inside = self
        part.outputs, part.bias = self.outputs - first, None if self.bias is None else self.bias[first:]
        memory = self.record.packed + required().packed_bytes(type_code(self.dtype), first, self.inputs)
        part.record = Matrix(memory, None if part.bias is None else part.bias.data_ptr(), self.inputs, part.outputs)
        return part


def _whole_blocks(rows: int) -> int:
    return -(-rows // LANES) * LANES


def pack(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Packed:
    """A linear's weight [outputs, inputs], and its bias [outputs], packed. Both may be dropped afterwards."""
    source = checked("a weight", weight, (None, None))
    outputs, inputs = weight.shape
    wide = None
    if bias is not None:
        checked("a bias", bias, (outputs,))
        wide = torch.zeros(_whole_blocks(outputs), dtype=torch.float32)
        wide[:outputs] = bias
    packed = Packed(outputs, inputs, weight.dtype, wide)
    required().pack_rows(type_code(weight.dtype), source, outputs, inputs, packed.record.packed, 0, 1)
    return packed


def pack_in_place(weight: torch.Tensor) -> Packed:
    """A linear's weight [outputs, inputs] packed in the tensor's own memory, which must not be used as before.

    A weight without whole blocks is packed elsewhere, as ``pack`` does.
    """
    source = checked("a weight", weight, (None, None))
    outputs, inputs = weight.shape
    if required().pack_in_place(type_code(weight.dtype), source, outputs, inputs):
        return pack(weight)
    return Packed(outputs, inputs, weight.dtype, None, weight)


def pack_pairs(
    gate: torch.Tensor, up: torch.Tensor, biases: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)
) -> Packed:
    """Gate and up, each [inner, inputs], packed as the feed-forward reads them: 16 gates, then their 16 ups.

    ``biases`` are theirs, each [inner] or None.
    """
    sources = checked("a gate", gate, (None, None)), checked("an up", up, tuple(gate.shape), gate.dtype)
    inner, inputs = gate.shape
    wide = None
    if biases != (None, None):
        wide = torch.zeros(_whole_blocks(inner) // LANES, 2, LANES, dtype=torch.float32)
        for half, bias in enumerate(biases):
            if bias is not None:
                checked("a bias", bias, (inner,))
                wide[:, half] = functional.pad(bias, (0, _whole_blocks(inner) - inner)).view(-1, LANES)
    packed = Packed(2 * _whole_blocks(inner), inputs, gate.dtype, wide)
    for first, source in enumerate(sources):
        required().pack_rows(type_code(gate.dtype), source, inner, inputs, packed.record.packed, first, 2)
    return packed


def unpack_rows(packed: Packed, rows: torch.Tensor) -> torch.Tensor:
    """Rows ``rows`` (int64 [N], each in [0, outputs)) of the weight that was packed: [N, inputs], bit for bit."""
    address = checked("rows", rows, (None,), torch.int64)
    count = len(rows)
    if count and not 0 <= int(rows.min()) <= int(rows.max()) < packed.outputs:
        raise TargetError(f"rows go from {int(rows.min())} to {int(rows.max())}; expected ids in [0, {packed.outputs})")
    out = torch.empty(count, packed.inputs, dtype=packed.dtype)
    required().unpack_rows(type_code(packed.dtype), packed.record.address, address, count, out.data_ptr())
    return out


def product(x: torch.Tensor, packed: Packed, norm: torch.Tensor | None = None, eps: float = 0.0) -> torch.Tensor:
    """x w^T plus the bias, in fp32: [N, outputs] of ``x`` [N, inputs] in the weight's format.

    With ``norm`` (fp32 [inputs]) the rows are normalised first, and rounded to their format.
    """
    source = checked("x", x, (None, packed.inputs), packed.dtype)
    scale = None if norm is None else checked("a norm", norm, (packed.inputs,), torch.float32)
    count = x.shape[0]
    y = torch.empty(count, packed.outputs, dtype=torch.float32)
    call = Product(type_code(packed.dtype), count, source, packed.record.address, scale, eps, y.data_ptr())
    if count and required().product(call.address):
        raise TargetError(f"no memory was left for {count} rows; expected room for a copy of them; use fewer at once")
    return y


def readable(logits: torch.Tensor) -> bool:
    """Whether there are kernels and they can read these rows of logits [N, W] where they lie."""
    return logits.dtype == torch.float32 and logits.is_cpu and logits.stride(1) == 1 and available() is not None


class BestTokens:
    """Finds the likeliest tokens, with the kernels where they can read the rows; for one caller at a time, as the
    memory they are written to is its own."""

    def __init__(self) -> None:
        self._library = available()
        self._tokens = array("q")
        self._address = 0

    def of(self, logits: torch.Tensor, most: int) -> list[int]:
        """The lowest of the likeliest tokens below ``most`` of each row of ``logits`` [N, W]; -1 where there is NaN, or
        where the largest logit is infinite."""
        num_rows, columns = logits.shape
        width = columns if columns < most else most
        stride, step = logits.stride()
        library, tokens = self._library, self._tokens
        if library is None or step != 1 or logits.dtype is not _FP32 or not logits.is_cpu:
            return best_reference(logits, width)
        if len(tokens) != num_rows:
            tokens = self._tokens = array("q", bytes(8 * num_rows))
            self._address, _ = tokens.buffer_info()
        library.best(logits.data_ptr(), num_rows, stride, width, self._address)
        return tokens.tolist()


def best(logits: torch.Tensor, most: int) -> list[int]:
    """What :class:`BestTokens` finds, for whoever asks once."""
    return BestTokens().of(logits, most)


def likeliest(logits: torch.Tensor, width: int, most: int) -> torch.Tensor:
    """The ``most`` likeliest tokens below ``width`` of each row of fp32 ``logits`` [N, W] on the CPU, whose columns lie
    side by side: int64 [N, most], the likeliest first, of equals the lowest first; -1 in a row with NaN.

    Raises ``TargetError`` unless 1 <= most <= width <= W.
    """
    if not 1 <= most <= width <= logits.shape[1]:
        raise TargetError(f"the {most} likeliest of {width} tokens were asked for; expected 1 to {width} of them")
    tokens = torch.empty(logits.shape[0], most, dtype=torch.int64)
    shape = (logits.shape[0], logits.stride(0), width)
    if required().likeliest(logits.data_ptr(), shape, most, tokens.data_ptr()):
        raise TargetError(f"no memory was left for {most} tokens; expected room for them; ask for fewer")
    return tokens


def likeliest_reference(logits: torch.Tensor, width: int, most: int) -> torch.Tensor:
    """The same in torch, on any device and of any float."""
    ordered = logits[:, :width].sort(dim=1, descending=True, stable=True).indices[:, :most]
    return ordered.masked_fill(logits[:, :width].isnan().any(dim=1, keepdim=True), -1)


def best_reference(logits: torch.Tensor, width: int) -> list[int]:
    """The same in torch, on any device and of any float: one transfer."""
    most, tokens = logits[:, :width].max(dim=1)  # NaN counts as the largest, so a row with one has none that is finite
    found: list[int] = torch.where(most.isfinite(), tokens, -1).tolist()
    return found


def product_reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, norm: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """What ``product`` rounds, in fp64; a norm's result is rounded to the format of ``x``, as it is there."""
    rows = x.double() if norm is None else normalise_reference(x, norm, eps).to(x.dtype).double()
    y = rows @ weight.double().T
    return y if bias is None else y + bias.double()


def normalise(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Rows of ``x`` [N, width] over the root of their mean square, times ``weight`` (fp32 [width]), as ``x`` is."""
    source = checked("x", x, (None, None))
    scale = checked("a norm", weight, (x.shape[1],), torch.float32)
    out = torch.empty_like(x)
    required().normalise_rows(type_code(x.dtype), source, len(x), x.shape[1], scale, eps, out.data_ptr())
    return out


def normalise_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """What ``normalise`` rounds, in fp64."""
    wide = x.double()
    return wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()
