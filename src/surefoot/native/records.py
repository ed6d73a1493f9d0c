"""The records the kernels are handed: mirrors of ``source/model.hpp``, field by field. Pointers are addresses."""

from __future__ import annotations

from ctypes import Structure, addressof, c_double, c_int64, c_void_p

import torch

from surefoot.errors import TargetError

KIND_ATTENTION, KIND_MLP, KIND_COPY, KIND_DELTA, KIND_EXPERTS = 0, 1, 2, 3, 4
"""What one step of a forward does."""

TYPE_CODES = {torch.float32: 0, torch.bfloat16: 1}
"""What numbers are stored as."""


def type_code(dtype: torch.dtype) -> int:
    """The kernels' number for a format. Raises ``TargetError`` for one they do not know."""
    code = TYPE_CODES.get(dtype)
    if code is None:
        raise TargetError(f"found {dtype}; expected torch.float32 or torch.bfloat16; load with one of them")
    return code


class Record(Structure):
    """A record with an address, which is good for as long as the record lives."""

    @property
    def address(self) -> int:
        """Where it is."""
        return addressof(self)


class Matrix(Record):
    """A linear's packed weight, and its bias: fp32, whole blocks of 16, or null."""

    _fields_ = (("packed", c_void_p), ("bias", c_void_p), ("inputs", c_int64), ("outputs", c_int64))


class Attention(Record):
    """One attention block: norm, query-key-value, head norms, rotation, cache, attention, gate, output, residual."""

    _fields_ = (
        ("qkv", Matrix),
        ("out", Matrix),
        ("norm", c_void_p),
        ("head_norm", c_void_p),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("window", c_int64),
        ("layer", c_int64),
        ("cache_type", c_int64),
        ("eps", c_double),
        ("scale", c_double),
        ("gated", c_int64),
        ("norm_once", c_int64),
    )


class Delta(Record):
    """One Gated DeltaNet block: norm, projection, convolution, gates, delta rule, gated norm, output, residual."""

    _fields_ = (
        ("projection", Matrix),
        ("out", Matrix),
        ("norm", c_void_p),
        ("conv", c_void_p),
        ("rate", c_void_p),
        ("dt_bias", c_void_p),
        ("head_norm", c_void_p),
        ("key_heads", c_int64),
        ("value_heads", c_int64),
        ("key_dim", c_int64),
        ("value_dim", c_int64),
        ("taps", c_int64),
        ("layer", c_int64),
        ("eps", c_double),
        ("head_eps", c_double),
    )


class Mlp(Record):
    """One feed-forward block: norm, gate and up, activation, down, residual."""

    _fields_ = (("gate_up", Matrix), ("down", Matrix), ("norm", c_void_p), ("inner", c_int64), ("eps", c_double))


class Experts(Record):
    """One feed-forward block of experts: norm, router, some experts for each row, a gated shared one, residual."""

    _fields_ = (
        ("router", Matrix),
        ("gate_up", c_void_p),
        ("down", c_void_p),
        ("shared_gate_up", Matrix),
        ("shared_down", Matrix),
        ("norm", c_void_p),
        ("num_experts", c_int64),
        ("num_active", c_int64),
        ("inner", c_int64),
        ("shared_inner", c_int64),
        ("renormalised", c_int64),
        ("eps", c_double),
    )


class Step(Record):
    """One step of a forward: a block, or a copy of the residual stream to a destination."""

    _fields_ = (("kind", c_int64), ("block", c_void_p), ("destination", c_void_p))


class States(Record):
    """What a sequence's delta layers keep, and the tape of its round."""

    _fields_ = (
        ("length", c_int64),
        ("first", c_int64),
        ("row", c_int64),
        ("num_rows", c_int64),
        ("state", c_void_p),
        ("history", c_void_p),
        ("next_state", c_void_p),
        ("next_history", c_void_p),
        ("continues", c_int64),
        ("capacity", c_int64),
        ("channels", c_void_p),
        ("keys", c_void_p),
        ("changes", c_void_p),
        ("decays", c_void_p),
    )


class Sequence(Record):
    """A sequence's keys and values, the tables of its rotation, and its ``States`` or null."""

    _fields_ = (
        ("rows", c_void_p),
        ("capacity", c_int64),
        ("first", c_void_p),
        ("second", c_void_p),
        ("rotated", c_int64),
        ("states", c_void_p),
    )


class Row(Record):
    """A row of a forward: whose it is, where it stands and what it sees."""

    _fields_ = (
        ("sequence", c_int64),
        ("position", c_int64),
        ("place", c_int64),
        ("committed", c_int64),
        ("seen", c_int64),
        ("num_seen", c_int64),
    )


class Ends(Record):
    """What a decoder has before and after its layers."""

    _fields_ = (("head", Matrix), ("norm", c_void_p), ("eps", c_double), ("embedding", c_void_p))


class Call(Record):
    """A forward: tokens or rows through steps, and to logits where they are asked for."""

    _fields_ = (
        ("type", c_int64),
        ("num_rows", c_int64),
        ("hidden", c_int64),
        ("stream", c_void_p),
        ("rows", c_void_p),
        ("sequences", c_void_p),
        ("seen", c_void_p),
        ("steps", c_void_p),
        ("num_steps", c_int64),
        ("ends", c_void_p),
        ("tokens", c_void_p),
        ("final", c_void_p),
        ("logits", c_void_p),
        ("first", c_int64),
    )


class Product(Record):
    """A product of rows with a packed matrix, after a norm where one is given."""

    _fields_ = (
        ("type", c_int64),
        ("num_rows", c_int64),
        ("x", c_void_p),
        ("matrix", c_void_p),
        ("norm", c_void_p),
        ("eps", c_double),
        ("y", c_void_p),
    )


class Replay(Record):
    """The commit of a path in all delta layers, from the tape."""

    _fields_ = (
        ("states", c_void_p),
        ("path", c_void_p),
        ("count", c_int64),
        ("type", c_int64),
        ("layers", c_int64),
        ("key_heads", c_int64),
        ("value_heads", c_int64),
        ("key_dim", c_int64),
        ("value_dim", c_int64),
        ("taps", c_int64),
    )


RECORDS: tuple[type[Record], ...] = (
    *(Matrix, Attention, Delta, Mlp, Experts, Step, States, Sequence, Row, Ends, Call, Product, Replay),
)
"""Every record; the library is asked for the size of each before it is used."""
