"""A layer's weights packed for the kernels: one block for its mixer, one for its feed-forward."""

from __future__ import annotations

from ctypes import addressof
from dataclasses import dataclass

import torch
from torch import Tensor

from surefoot.models.config import DecoderConfig
from surefoot.models.weights import AttentionWeights, DeltaWeights, DenseWeights, SparseWeights
from surefoot.native import Packed, pack, pack_pairs
from surefoot.native.records import (
    KIND_ATTENTION,
    KIND_DELTA,
    KIND_EXPERTS,
    KIND_MLP,
    Attention,
    Delta,
    Experts,
    Matrix,
    Mlp,
    Record,
    type_code,
)
from surefoot.ops.delta_rule import DeltaShape
from surefoot.ops.moe import ExpertShape


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a layer: what the kernels read, and what that points to."""

    kind: int
    record: Record
    kept: tuple[object, ...]


def mixer_block(
    weights: AttentionWeights | DeltaWeights, config: DecoderConfig, layer: int, cache_dtype: torch.dtype
) -> Block:
    """The mixer of layer ``layer``, whose place in a cache is its place among the layers of its kind."""
    if isinstance(weights, AttentionWeights):
        return _attention(weights, config, layer, cache_dtype)
    assert config.delta is not None, layer
    slot = sorted(config.delta_layers).index(layer)
    return delta_block(weights, config.delta, slot=slot, eps=config.rms_norm_eps)


def feed_forward_block(weights: DenseWeights | SparseWeights, config: DecoderConfig) -> Block:
    """A layer's feed-forward."""
    if isinstance(weights, DenseWeights):
        return dense_block(weights, config.rms_norm_eps)
    assert config.experts is not None, weights
    return sparse_block(weights, config.experts, config.rms_norm_eps)


def _attention(weights: AttentionWeights, config: DecoderConfig, layer: int, cache_dtype: torch.dtype) -> Block:
    qkv, bias = weights.qkv, weights.qkv_bias
    if weights.gate is not None:
        qkv = torch.cat((qkv, weights.gate))
        bias = None if bias is None else torch.cat((bias, bias.new_zeros(len(weights.gate))))
    packed, out = pack(qkv, bias), pack(weights.out, weights.out_bias)
    norm, head_norm = _wide(weights.norm), None if weights.qk_norm is None else _wide(weights.qk_norm)
    record = Attention(
        qkv=packed.record,
        out=out.record,
        norm=norm.data_ptr(),
        head_norm=None if head_norm is None else head_norm.data_ptr(),
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        window=config.windows[layer] or 0,
        layer=config.attention_layers.index(layer),
        cache_type=type_code(cache_dtype),
        eps=config.rms_norm_eps,
        scale=config.head_dim**-0.5,
        gated=weights.gate is not None,
        norm_once=config.centred_norms,
    )
    return Block(KIND_ATTENTION, record, (packed, out, norm, head_norm))


def dense_block(weights: DenseWeights, eps: float) -> Block:
    """A feed-forward of one gate and up, also of a drafter's network."""
    inner = weights.down.shape[1]
    biases = (None, None) if weights.gate_up_bias is None else weights.gate_up_bias.split(inner)
    gate, up = weights.gate_up.split(inner)
    gate_up, down = pack_pairs(gate, up, biases), pack(weights.down, weights.down_bias)
    norm = _wide(weights.norm)
    record = Mlp(gate_up=gate_up.record, down=down.record, norm=norm.data_ptr(), inner=inner, eps=eps)
    return Block(KIND_MLP, record, (gate_up, down, norm))


def delta_block(weights: DeltaWeights, shape: DeltaShape, *, slot: int, eps: float) -> Block:
    """A Gated DeltaNet, the ``slot``-th of a model's."""
    parameters = weights.parameters
    projection, out = pack(weights.in_proj), pack(weights.out)
    norm, head_norm = _wide(weights.norm), _wide(parameters.norm)
    conv, rate = _wide(parameters.conv.t()), _wide(parameters.a_log.exp())
    dt_bias = _wide(parameters.dt_bias)
    record = Delta(
        projection=projection.record,
        out=out.record,
        norm=norm.data_ptr(),
        conv=conv.data_ptr(),
        rate=rate.data_ptr(),
        dt_bias=dt_bias.data_ptr(),
        head_norm=head_norm.data_ptr(),
        key_heads=shape.num_key_heads,
        value_heads=shape.num_value_heads,
        key_dim=shape.key_dim,
        value_dim=shape.value_dim,
        taps=shape.conv_size,
        layer=slot,
        eps=eps,
        head_eps=parameters.eps,
    )
    return Block(KIND_DELTA, record, (projection, out, norm, conv, rate, dt_bias, head_norm))


def sparse_block(weights: SparseWeights, shape: ExpertShape, eps: float) -> Block:
    """A feed-forward of experts; the shared expert's gate is one more output of the router."""
    router = weights.router if weights.shared_gate is None else torch.cat((weights.router, weights.shared_gate))
    packed = pack(router)
    experts = [pack_pairs(*gate_up.split(shape.inner_size)) for gate_up in weights.gate_up]
    downs = [pack(down) for down in weights.down]
    shared: tuple[Packed, ...] = ()
    if weights.shared_gate_up is not None and weights.shared_down is not None:
        shared = pack_pairs(*weights.shared_gate_up.split(shape.shared_size)), pack(weights.shared_down)
    tables = [(Matrix * len(part))(*(one.record for one in part)) for part in (experts, downs)]
    norm = _wide(weights.norm)
    record = Experts(
        router=packed.record,
        gate_up=addressof(tables[0]),
        down=addressof(tables[1]),
        norm=norm.data_ptr(),
        num_experts=shape.num_experts,
        num_active=shape.num_active,
        inner=shape.inner_size,
        shared_inner=shape.shared_size,
        renormalised=shape.renormalised,
        eps=eps,
    )
    if shared:
        record.shared_gate_up, record.shared_down = (one.record for one in shared)
    return Block(KIND_EXPERTS, record, (packed, experts, downs, shared, tables, norm))


def _wide(weight: Tensor) -> Tensor:
    """fp32 numbers in memory of their own, or where they are."""
    return weight.float().contiguous()
