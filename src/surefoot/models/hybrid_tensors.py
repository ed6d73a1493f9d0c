"""Where the tensors of layers with a Gated DeltaNet or with experts go, in every cut that checkpoints come in."""

from __future__ import annotations

from dataclasses import dataclass

from surefoot.errors import UnsupportedModelError
from surefoot.models.config import DecoderConfig
from surefoot.models.family import Grouped, LeftOut, Shapes, TensorSpec
from surefoot.models.tensors import Layer, LayerTensors, all_tensors, attention_tensors, dense_tensors

LATER_TOKENS = LeftOut(
    pattern=r"mtp\..*",
    note="the weights that predict several tokens (mtp.*) are not read: no drafter here uses them",
)
VISION = LeftOut(
    pattern=r"(model\.)?visual\..*",
    note="the weights that read images (visual.*) are not read: the model answers text alone",
)


def flat_delta(layer: Layer) -> list[TensorSpec]:
    """A Gated DeltaNet's with projections of their own, and the norm before it (Qwen 3.5)."""
    config = layer.config
    assert config.delta is not None, config
    shape, hidden, heads = config.delta, config.hidden_size, config.delta.num_value_heads
    start, specs = 0, []
    for name, rows in (("qkv", shape.channels), ("z", shape.value_size), ("b", heads), ("a", heads)):
        name, parameter = f"linear_attn.in_proj_{name}.weight", "mixer.in_proj"
        specs.append(layer.tensor(name, (rows, hidden), parameter, start=start))
        start += rows
    return specs + _beside_projections(layer)


def grouped_delta(layer: Layer) -> list[TensorSpec]:
    """The same with two projections whose rows lie key head by key head (Qwen3-Next)."""
    config = layer.config
    assert config.delta is not None, config
    shape, hidden = config.delta, config.hidden_size
    served = shape.num_value_heads // shape.num_key_heads
    values = served * shape.value_dim
    wide = Grouped(shape.num_key_heads, (shape.key_dim, shape.key_dim, values, values), (0, 1, 2, 3))
    gates = Grouped(shape.num_key_heads, (served, served), (0, 1))
    start, rows = shape.channels + shape.value_size, 2 * shape.num_value_heads
    return [
        layer.tensor("linear_attn.in_proj_qkvz.weight", (start, hidden), "mixer.in_proj", grouped=wide),
        layer.tensor("linear_attn.in_proj_ba.weight", (rows, hidden), "mixer.in_proj", start=start, grouped=gates),
        *_beside_projections(layer),
    ]


def _beside_projections(layer: Layer) -> list[TensorSpec]:
    config = layer.config
    assert config.delta is not None, config
    shape, hidden = config.delta, config.hidden_size
    return [
        layer.tensor("input_layernorm.weight", (hidden,), "mixer.norm"),
        layer.tensor("linear_attn.conv1d.weight", (shape.channels, 1, shape.conv_size), "mixer.conv"),
        layer.tensor("linear_attn.A_log", (shape.num_value_heads,), "mixer.a_log"),
        layer.tensor("linear_attn.dt_bias", (shape.num_value_heads,), "mixer.dt_bias"),
        layer.tensor("linear_attn.norm.weight", (shape.value_dim,), "mixer.out_norm"),
        layer.tensor("linear_attn.out_proj.weight", (hidden, shape.value_size), "mixer.out"),
    ]


def apart_experts(layer: Layer) -> list[TensorSpec]:
    """A sparse feed-forward's with three tensors for each expert, and the norm before it."""
    config = layer.config
    assert config.experts is not None, config
    hidden, inner = config.hidden_size, config.experts.inner_size
    gate_up, down = "feed_forward.gate_up", "feed_forward.down"
    specs = _beside_experts(layer)
    for expert in range(config.experts.num_experts):
        theirs, top = f"mlp.experts.{expert}", 2 * inner * expert
        for part, rows in (("gate", top), ("up", top + inner)):
            specs += layer.linear(f"{theirs}.{part}_proj", (inner, hidden), gate_up, start=rows)
        specs += layer.linear(f"{theirs}.down_proj", (hidden, inner), down, start=hidden * expert)
    return specs


def fused_experts(layer: Layer) -> list[TensorSpec]:
    """The same with two tensors for all experts together, each expert's gate above its up."""
    config = layer.config
    assert config.experts is not None, config
    hidden, inner, count = config.hidden_size, config.experts.inner_size, config.experts.num_experts
    return [
        *_beside_experts(layer),
        layer.tensor("mlp.experts.gate_up_proj", (count, 2 * inner, hidden), "feed_forward.gate_up"),
        layer.tensor("mlp.experts.down_proj", (count, hidden, inner), "feed_forward.down"),
    ]


def _beside_experts(layer: Layer) -> list[TensorSpec]:
    config = layer.config
    assert config.experts is not None, config
    hidden, shared = config.hidden_size, config.experts.shared_size
    specs = [layer.tensor("post_attention_layernorm.weight", (hidden,), "feed_forward.norm")]
    specs += layer.linear("mlp.gate", (config.experts.num_experts, hidden), "feed_forward.router")
    if shared:
        gate_up = "feed_forward.shared_gate_up"
        specs += layer.linear("mlp.shared_expert.gate_proj", (shared, hidden), gate_up)
        specs += layer.linear("mlp.shared_expert.up_proj", (shared, hidden), gate_up, start=shared)
        specs += layer.linear("mlp.shared_expert.down_proj", (hidden, shared), "feed_forward.shared_down")
        specs += layer.linear("mlp.shared_expert_gate", (1, hidden), "feed_forward.shared_gate")
    return specs


@dataclass(frozen=True, slots=True)
class HybridLayout:
    """Every tensor of a checkpoint of a config, as ``Family.tensors`` wants it.

    Attributes:
        prefix: what stands before ``layers``.
        delta: the tensors of a layer with a Gated DeltaNet.
        sparse: those of a feed-forward with experts.
    """

    prefix: str = "model."
    delta: LayerTensors = flat_delta
    sparse: LayerTensors = apart_experts

    def __call__(self, config: DecoderConfig) -> list[TensorSpec]:
        return all_tensors(config, self._layer, self.prefix)

    def _layer(self, layer: Layer) -> list[TensorSpec]:
        config = layer.config
        mixer = self.delta if layer.index in config.delta_layers else attention_tensors
        feed_forward = self.sparse if layer.index in config.sparse_layers else dense_tensors
        return mixer(layer) + feed_forward(layer)


def both_cuts(prefix: str, delta: LayerTensors = flat_delta) -> tuple[HybridLayout, ...]:
    """The layouts with experts apart and with experts fused."""
    return HybridLayout(prefix, delta, apart_experts), HybridLayout(prefix, delta, fused_experts)


def refuse_converted(shapes: Shapes) -> None:
    """Refuses checkpoints that MLX made: their norms hold ``1 + w`` and their convolutions lie transposed."""
    for name, shape in shapes.items():
        if name.endswith("linear_attn.conv1d.weight") and len(shape) == 3 and shape[-1] == 1 < shape[1]:
            raise UnsupportedModelError(
                f"tensor {name} has the shape {list(shape)}, as in a checkpoint converted for MLX, whose norms are "
                f"changed too; expected {[shape[0], 1, shape[1]]}. Use the original checkpoint"
            )
