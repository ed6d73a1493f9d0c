"""Where the tensors of a checkpoint in the Llama layout go, whether its linears are apart or fused as ours are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from surefoot.models.config import DecoderConfig
from surefoot.models.family import Grouped, TensorSpec

UNINFORMATIVE = (
    r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
    r"model\.rotary_emb\.inv_freq",
    r"lm_head\.weight",
)
"""Tensors that older exporters add: rotary frequencies, which the config determines, and a tied head a second time."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's names.

    Attributes:
        config: of the model.
        index: which layer.
        prefix: what stands before ``layers`` in the checkpoint.
    """

    config: DecoderConfig
    index: int
    prefix: str

    def tensor(
        self, name: str, shape: tuple[int, ...], parameter: str, *, start: int = 0, grouped: Grouped | None = None
    ) -> TensorSpec:
        """The tensor ``name`` of this layer."""
        return TensorSpec(
            name=f"{self.prefix}layers.{self.index}.{name}",
            shape=shape,
            parameter=f"layers.{self.index}.{parameter}",
            start=start,
            grouped=grouped,
        )

    def linear(
        self, name: str, shape: tuple[int, int], parameter: str, *, bias: bool = False, start: int = 0
    ) -> list[TensorSpec]:
        """The weight of a linear, and its bias where it has one."""
        found = [self.tensor(f"{name}.weight", shape, parameter, start=start)]
        if bias:
            found.append(self.tensor(f"{name}.bias", shape[:1], f"{parameter}_bias", start=start))
        return found


LayerTensors = Callable[[Layer], list[TensorSpec]]


def decoder_tensors(config: DecoderConfig) -> list[TensorSpec]:
    """Every tensor of a checkpoint of ``config`` with the parameter of ``DecoderModel`` it fills."""
    return all_tensors(config, lambda layer: attention_tensors(layer) + dense_tensors(layer))


def fused_decoder_tensors(config: DecoderConfig) -> list[TensorSpec]:
    """The same where query, key and value are one tensor, and gate and up another, in this order; without biases."""
    return all_tensors(config, _fused_layer_tensors)


def all_tensors(config: DecoderConfig, layer_tensors: LayerTensors, prefix: str = "model.") -> list[TensorSpec]:
    """The embedding, every layer, the last norm and the head where it is a matrix of its own."""
    hidden, vocab = config.hidden_size, config.vocab_size
    specs = [TensorSpec(name=f"{prefix}embed_tokens.weight", shape=(vocab, hidden), parameter="embedding")]
    for index in range(config.num_layers):
        specs += layer_tensors(Layer(config, index, prefix))
    specs.append(TensorSpec(name=f"{prefix}norm.weight", shape=(hidden,), parameter="norm"))
    if not config.tied_head:
        specs.append(TensorSpec(name="lm_head.weight", shape=(vocab, hidden), parameter="head"))
    return specs


def attention_tensors(layer: Layer) -> list[TensorSpec]:
    """Attention's, and the norm before it. Where its output is gated, each head's gate lies below its query."""
    config = layer.config
    hidden, query, kv, bias = config.hidden_size, config.query_size, config.kv_size, config.qkv_bias
    specs = [layer.tensor("input_layernorm.weight", (hidden,), "mixer.norm")]
    below = query
    if config.gated_attention:
        assert not bias, config
        heads = Grouped(config.num_heads, (config.head_dim, config.head_dim), (1, 0))
        below = 2 * query
        specs.append(layer.tensor("self_attn.q_proj.weight", (below, hidden), "mixer.qkv", grouped=heads))
    else:
        specs += layer.linear("self_attn.q_proj", (query, hidden), "mixer.qkv", bias=bias)
    specs += layer.linear("self_attn.k_proj", (kv, hidden), "mixer.qkv", bias=bias, start=below)
    specs += layer.linear("self_attn.v_proj", (kv, hidden), "mixer.qkv", bias=bias, start=below + kv)
    if config.qk_norm:
        specs.append(layer.tensor("self_attn.q_norm.weight", (config.head_dim,), "mixer.q_norm"))
        specs.append(layer.tensor("self_attn.k_norm.weight", (config.head_dim,), "mixer.k_norm"))
    return specs + layer.linear("self_attn.o_proj", (hidden, query), "mixer.out", bias=config.out_bias)


def dense_tensors(layer: Layer) -> list[TensorSpec]:
    """A dense feed-forward's, and the norm before it."""
    hidden, inner, bias = layer.config.hidden_size, layer.config.intermediate_size, layer.config.mlp_bias
    specs = [layer.tensor("post_attention_layernorm.weight", (hidden,), "feed_forward.norm")]
    specs += layer.linear("mlp.gate_proj", (inner, hidden), "feed_forward.gate_up", bias=bias)
    specs += layer.linear("mlp.up_proj", (inner, hidden), "feed_forward.gate_up", bias=bias, start=inner)
    return specs + layer.linear("mlp.down_proj", (hidden, inner), "feed_forward.down", bias=bias)


def _fused_layer_tensors(layer: Layer) -> list[TensorSpec]:
    config = layer.config
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes = {
        "input_layernorm": ("mixer.norm", (hidden,)),
        "self_attn.qkv_proj": ("mixer.qkv", (config.query_size + 2 * config.kv_size, hidden)),
        "self_attn.o_proj": ("mixer.out", (hidden, config.query_size)),
        "post_attention_layernorm": ("feed_forward.norm", (hidden,)),
        "mlp.gate_up_proj": ("feed_forward.gate_up", (2 * inner, hidden)),
        "mlp.down_proj": ("feed_forward.down", (hidden, inner)),
    }
    return [layer.tensor(f"{theirs}.weight", shape, ours) for theirs, (ours, shape) in shapes.items()]
