"""The same on the native kernels: every layer's context in one product, a block in one call.

The attention kernel takes for each row the list of places it sees, so that a block's rows may see each other both ways;
nothing else tells its forward from a target's.

Shape suffixes: S rows of context, Q rows of a block, H hidden, L layers, K key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surefoot.drafters.dflash.context import Context
from surefoot.drafters.dflash.network import DFlashNetwork, Layer
from surefoot.errors import DrafterError
from surefoot.models.native_blocks import dense_block
from surefoot.models.weights import DenseWeights
from surefoot.native import normalise, pack, product
from surefoot.native.library import Library
from surefoot.native.records import KIND_ATTENTION, Attention, Call, type_code
from surefoot.ops.norm import rms_norm
from surefoot.ops.rope import RopeTable, rotate

IntArray: TypeAlias = NDArray[np.int64]
Sight: TypeAlias = tuple[int | None, bool]
"""A layer's window, and whether it is causal inside the block."""

_PLACES = 1024


class NativeBlocks:
    """The network packed for the kernels; keys and values are kept in fp32."""

    def __init__(self, network: DFlashNetwork, library: Library) -> None:
        config = self._config = network.config
        weight = network.norm.weight.detach()
        self._library, self._dtype, self._type = library, weight.dtype, type_code(weight.dtype)
        self._rope = RopeTable(config.rope, config.context_length, dtype=torch.float32, device=weight.device)
        self._norm, self._hidden_norm = _wide(network.norm.weight), _wide(network.hidden_norm.weight)
        self._fc = pack(network.fc.weight.detach().contiguous())
        layers = [layer for layer in network.layers if isinstance(layer, Layer)]
        pairs = [(layer.self_attn.k_proj.weight, layer.self_attn.v_proj.weight) for layer in layers]
        self._keys_values = pack(torch.cat([half.detach() for pair in pairs for half in pair]))
        self._key_norms_L1D = torch.stack([_wide(layer.self_attn.k_norm.weight) for layer in layers])[:, None]
        self._kept: list[object] = []
        steps = [self._steps(index, layer) for index, layer in enumerate(layers)]
        sights = list(zip(config.windows, config.causal, strict=True))
        self._runs: list[tuple[Sight, IntArray]] = []
        for sight, group in groupby(range(len(steps)), key=sights.__getitem__):
            self._runs.append((sight, np.array([step for index in group for step in steps[index]], dtype=np.int64)))
        self._places = np.arange(_PLACES, dtype=np.int64)

    @property
    def dtype(self) -> torch.dtype:
        """The weights'."""
        return self._dtype

    def new_context(self) -> Context:
        """Rows in fp32."""
        return Context(self._config, torch.empty(0))

    def extend(self, context: Context, taps: Sequence[Tensor]) -> None:
        """As in ``blocks.Blocks``."""
        config, count = self._config, len(taps[0])
        context.reserve(count)
        with torch.inference_mode():
            mixed = product(torch.cat(tuple(taps), -1).to(self._dtype), self._fc).to(self._dtype)
            rows = product(mixed, self._keys_values, self._hidden_norm, config.rms_norm_eps)
            heads = rows.view(count, config.num_layers, 2, config.num_kv_heads, config.head_dim)
            keys_SLKD = rms_norm(heads[:, :, 0], None, config.rms_norm_eps) * self._key_norms_L1D
            first, second = self._rope.run(context.length, count)
            keys_SLKD = rotate(keys_SLKD, first[:, None], second[:, None])
            room = context.rows(context.length, count).unflatten(0, (config.num_layers, 2))
            room[:, 0].copy_(keys_SLKD.permute(1, 2, 0, 3))
            room[:, 1].copy_(heads[:, :, 1].permute(1, 2, 0, 3))
        context.length += count

    def denoise(self, context: Context, noise: Tensor) -> Tensor:
        """As in ``blocks.Blocks``; ``noise`` is used up."""
        start, count = context.length, len(noise)
        context.reserve(count)
        places = self._places  # another thread may put longer ones in their place
        if start + count > len(places):
            places = self._places = np.arange(2 * (start + count), dtype=np.int64)
        first, second = self._rope.reserve(start + count)
        sequence = np.array(
            [context.address, context.capacity, first.data_ptr(), second.data_ptr(), first.shape[-1], 0], dtype=np.int64
        )
        for sight, steps in self._runs:
            rows = _rows(start, count, sight)
            call = Call(
                type=self._type,
                num_rows=count,
                hidden=noise.shape[1],
                stream=noise.data_ptr(),
                rows=_address(rows),
                sequences=_address(sequence),
                seen=_address(places),
                steps=_address(steps),
                num_steps=len(steps),
            )
            if self._library.forward(call.address):
                raise DrafterError(f"no memory was left for a block of {count} rows; expected room for it")
        return normalise(noise, self._norm, self._config.rms_norm_eps)

    def _steps(self, index: int, layer: Layer) -> list[tuple[int, int, int]]:
        """The two blocks of a layer as steps of a forward."""
        config, mixer = self._config, layer.self_attn
        qkv = pack(torch.cat([part.weight.detach() for part in (mixer.q_proj, mixer.k_proj, mixer.v_proj)]))
        out, norm = pack(mixer.o_proj.weight.detach()), _wide(layer.input_layernorm.weight)
        counts = (config.num_heads, config.num_kv_heads)
        halves = zip((mixer.q_norm, mixer.k_norm), counts, strict=True)
        head_norm = torch.cat([_wide(norm.weight).expand(heads, -1) for norm, heads in halves]).contiguous()
        attention = Attention(
            qkv=qkv.record,
            out=out.record,
            norm=norm.data_ptr(),
            head_norm=head_norm.data_ptr(),
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            window=(config.windows[index] or 0) if config.causal[index] else 0,  # else the rows' lists are cut
            layer=index,
            cache_type=type_code(torch.float32),
            eps=config.rms_norm_eps,
            scale=config.head_dim**-0.5,
        )
        weights = DenseWeights(
            norm=layer.post_attention_layernorm.weight.detach(),
            gate_up=torch.cat((layer.mlp.gate_proj.weight.detach(), layer.mlp.up_proj.weight.detach())),
            gate_up_bias=None,
            down=layer.mlp.down_proj.weight.detach(),
            down_bias=None,
        )
        mlp = dense_block(weights, config.rms_norm_eps)
        self._kept += [qkv, out, norm, head_norm, attention, mlp]
        return [(KIND_ATTENTION, attention.address, 0), (mlp.kind, mlp.record.address, 0)]


def _rows(start: int, count: int, sight: Sight) -> IntArray:
    """The records ``Row [Q, 6]`` of a block after ``start`` rows; what they see is counted in a list of all places."""
    window, causal = sight
    places = np.arange(start, start + count, dtype=np.int64)
    rows = np.zeros((count, 6), dtype=np.int64)
    rows[:, 1] = rows[:, 2] = places
    if window is not None and not causal:
        rows[:, 4] = np.maximum(places - window + 1, 0)
        rows[:, 5] = start + count - rows[:, 4]
        return rows
    rows[:, 3] = rows[:, 4] = start
    rows[:, 5] = np.arange(1, count + 1) if causal else count
    return rows


def _wide(weight: Tensor) -> Tensor:
    return weight.detach().float().contiguous()


def _address(array: IntArray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
