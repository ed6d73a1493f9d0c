"""Makes the cache that a model's layers need: of keys and values alone, or with recurrent states beside them."""

from __future__ import annotations

from torch import Tensor

from surefoot.cache.hybrid import AttentionRows, HybridCache
from surefoot.cache.kv import KVCache
from surefoot.cache.recurrent import RecurrentStates, Replayer
from surefoot.models.config import DecoderConfig
from surefoot.ops.rope import RopeTable


def make_cache(
    config: DecoderConfig,
    *,
    owner: object,
    capacity: int,
    rope: RopeTable,
    like: tuple[Tensor, Tensor],
    replayer: Replayer | None = None,
) -> KVCache:
    """An empty cache of one sequence for ``capacity`` tokens.

    Args:
        config: the model's.
        owner: the model, the only one that may use it.
        capacity: tokens, committed and tentative together.
        rope: the table all keys are rotated by.
        like: two tensors with the device and the dtypes of keys and values, and of the model.
        replayer: as of :class:`surefoot.cache.recurrent.RecurrentStates`.
    """
    keys, rows = like
    attention = AttentionRows(len(config.attention_layers), config.num_kv_heads, config.head_dim)
    if config.delta is None:
        return KVCache(
            owner=owner,
            capacity=capacity,
            num_layers=attention.num_layers,
            num_kv_heads=attention.num_kv_heads,
            head_dim=attention.head_dim,
            rope=rope,
            like=keys,
        )
    states = RecurrentStates(config.delta, len(config.delta_layers), rows, replayer)
    return HybridCache(owner=owner, capacity=capacity, rows=attention, rope=rope, like=keys, states=states)
