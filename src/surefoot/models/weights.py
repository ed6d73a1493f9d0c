"""The parameters of a decoder layer, and plain views of them for the forward.

Shape legend: H hidden, Q all query heads together, X query, key and value heads together, F feed-forward, G query
and key heads, D head size; of a delta layer P all projections together, Y all value heads together, Z a value head; of
a sparse layer E experts, I an expert, S the shared expert.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from surefoot.models.config import DecoderConfig
from surefoot.ops.delta_rule import DeltaParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights:
    """Attention as the forward reads it.

    Shapes: ``norm [H]``, ``qkv [X, H]``, ``qk_norm [G, D]`` (None without norms on heads), ``out [H, Q]``, ``gate
    [Q, H]`` (None where the output has no gate); biases as long as their linear's rows, or None.
    """

    norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    gate: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaWeights:
    """A Gated DeltaNet as the forward reads it.

    Shapes: ``norm [H]``, ``in_proj [P, H]`` (queries, keys and values; output gate; two gates a head), ``out [H, Y]``.
    """

    norm: Tensor
    in_proj: Tensor
    parameters: DeltaParameters
    out: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseWeights:
    """A dense feed-forward as the forward reads it: ``norm [H]``, ``gate_up [2F, H]``, ``down [H, F]``, biases."""

    norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseWeights:
    """A sparse feed-forward as the forward reads it.

    Shapes: ``norm [H]``, ``router [E, H]``, ``gate_up [E, 2I, H]``, ``down [E, H, I]``; of the shared expert
    ``shared_gate_up [2S, H]``, ``shared_down [H, S]``, ``shared_gate [1, H]``, None where there is none.
    """

    norm: Tensor
    router: Tensor
    gate_up: Tensor
    down: Tensor
    shared_gate_up: Tensor | None
    shared_down: Tensor | None
    shared_gate: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer's tensors, without a module call. Norms are ready to multiply by, whatever the checkpoint holds."""

    mixer: AttentionWeights | DeltaWeights
    feed_forward: DenseWeights | SparseWeights


class DecoderLayer(nn.Module):
    """One layer's parameters."""

    def __init__(self, config: DecoderConfig, index: int) -> None:
        super().__init__()
        self.mixer = DeltaMixer(config) if index in config.delta_layers else AttentionMixer(config)
        self.feed_forward = SparseFeedForward(config) if index in config.sparse_layers else DenseFeedForward(config)

    def views(self) -> LayerWeights:
        """The tensors behind the parameters."""
        return LayerWeights(mixer=self.mixer.views(), feed_forward=self.feed_forward.views())


class AttentionMixer(nn.Module):
    """Attention's parameters; gate, query, key and value in one matrix, one below the other."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        hidden, query = config.hidden_size, config.query_size
        fused = query + 2 * config.kv_size
        self._config = config
        self.norm = _parameter(hidden)
        self.qkv = _parameter(fused + query * config.gated_attention, hidden)
        self.qkv_bias = _parameter(fused) if config.qkv_bias else None
        self.q_norm = _parameter(config.head_dim) if config.qk_norm else None
        self.k_norm = _parameter(config.head_dim) if config.qk_norm else None
        self.out = _parameter(hidden, query)
        self.out_bias = _parameter(hidden) if config.out_bias else None

    def views(self) -> AttentionWeights:
        """The tensors behind the parameters; the norms of query and key heads side by side, a row per head."""
        gate_rows = self._config.query_size * self._config.gated_attention
        gate, qkv = self.qkv.detach().tensor_split((gate_rows,))
        return AttentionWeights(
            norm=norm_weight(self.norm, self._config),
            qkv=qkv,
            qkv_bias=_detached(self.qkv_bias),
            qk_norm=self._head_norms(),
            out=self.out.detach(),
            out_bias=_detached(self.out_bias),
            gate=gate if gate_rows else None,
        )

    def _head_norms(self) -> Tensor | None:
        config = self._config
        if self.q_norm is None or self.k_norm is None:
            return None
        q_norm, k_norm = norm_weight(self.q_norm, config), norm_weight(self.k_norm, config)
        return torch.cat((q_norm.expand(config.num_heads, -1), k_norm.expand(config.num_kv_heads, -1)))


class DeltaMixer(nn.Module):
    """A Gated DeltaNet's parameters; all that is projected from its input in one matrix, one below the other."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        assert config.delta is not None, config
        shape, hidden = config.delta, config.hidden_size
        self._config = config
        self.norm = _parameter(hidden)
        self.in_proj = _parameter(shape.projected, hidden)
        self.conv = _parameter(shape.channels, shape.conv_size)
        self.a_log = _parameter(shape.num_value_heads)
        self.dt_bias = _parameter(shape.num_value_heads)
        self.out_norm = _parameter(shape.value_dim)
        self.out = _parameter(hidden, shape.value_size)

    def views(self) -> DeltaWeights:
        """The tensors behind the parameters."""
        return DeltaWeights(
            norm=norm_weight(self.norm, self._config),
            in_proj=self.in_proj.detach(),
            parameters=DeltaParameters(
                conv=self.conv.detach(),
                a_log=self.a_log.detach().float(),
                dt_bias=self.dt_bias.detach().float(),
                norm=self.out_norm.detach(),
                eps=self._config.rms_norm_eps,
            ),
            out=self.out.detach(),
        )


class DenseFeedForward(nn.Module):
    """A dense feed-forward's parameters; gate and up in one matrix, one below the other."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self._config = config
        self.norm = _parameter(hidden)
        self.gate_up = _parameter(2 * inner, hidden)
        self.gate_up_bias = _parameter(2 * inner) if config.mlp_bias else None
        self.down = _parameter(hidden, inner)
        self.down_bias = _parameter(hidden) if config.mlp_bias else None

    def views(self) -> DenseWeights:
        """The tensors behind the parameters."""
        return DenseWeights(
            norm=norm_weight(self.norm, self._config),
            gate_up=self.gate_up.detach(),
            gate_up_bias=_detached(self.gate_up_bias),
            down=self.down.detach(),
            down_bias=_detached(self.down_bias),
        )


class SparseFeedForward(nn.Module):
    """A sparse feed-forward's parameters; each expert's gate and up in one matrix, one below the other."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        assert config.experts is not None, config
        shape, hidden = config.experts, config.hidden_size
        shared = shape.shared_size
        self._config = config
        self.norm = _parameter(hidden)
        self.router = _parameter(shape.num_experts, hidden)
        self.gate_up = _parameter(shape.num_experts, 2 * shape.inner_size, hidden)
        self.down = _parameter(shape.num_experts, hidden, shape.inner_size)
        self.shared_gate_up = _parameter(2 * shared, hidden) if shared else None
        self.shared_down = _parameter(hidden, shared) if shared else None
        self.shared_gate = _parameter(1, hidden) if shared else None

    def views(self) -> SparseWeights:
        """The tensors behind the parameters."""
        return SparseWeights(
            norm=norm_weight(self.norm, self._config),
            router=self.router.detach(),
            gate_up=self.gate_up.detach(),
            down=self.down.detach(),
            shared_gate_up=_detached(self.shared_gate_up),
            shared_down=_detached(self.shared_down),
            shared_gate=_detached(self.shared_gate),
        )


def norm_weight(parameter: nn.Parameter, config: DecoderConfig) -> Tensor:
    """What a norm multiplies by: the parameter, or where it is centred on zero ``1 + w``, in fp32 at least."""
    weight = parameter.detach()
    if not config.centred_norms:
        return weight
    return 1 + weight.to(torch.promote_types(weight.dtype, torch.float32))


def wide_parameters(config: DecoderConfig) -> frozenset[str]:
    """The last names of the parameters that are never narrower than fp32: rounded, they would shift every token."""
    centred = ("norm", "q_norm", "k_norm") if config.centred_norms else ()
    return frozenset(("a_log", "dt_bias", *centred))


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape), requires_grad=False)


def _detached(parameter: nn.Parameter | None) -> Tensor | None:
    return None if parameter is None else parameter.detach()
