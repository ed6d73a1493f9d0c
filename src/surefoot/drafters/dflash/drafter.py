"""DFlash while decoding: a block of the last token and masks, filled in at once over what the target has shown.

Only rows of committed tokens ever enter a drafter's context: ``observe`` projects the target's layers of the path that
stands, and drops them. So the context holds every committed token but the root, whatever was drafted.

Shape suffixes: N rows of a forward, K slots, V vocabulary, H hidden.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from surefoot.drafters.dflash.blocks import Blocks, TorchBlocks
from surefoot.drafters.dflash.config import DFlashConfig
from surefoot.drafters.dflash.native_blocks import NativeBlocks
from surefoot.drafters.dflash.network import DFlashNetwork
from surefoot.drafters.dflash.tree import best_nodes
from surefoot.errors import DrafterError, OptionError, PairError
from surefoot.models.native_forward import MOST_HEAD_DIM, NATIVE_DTYPES
from surefoot.native import available, likeliest, likeliest_reference, readable
from surefoot.native.library import Library
from surefoot.protocols import Sampler, Target
from surefoot.sampling import UNDRAWABLE
from surefoot.tree import chain
from surefoot.types import Capture, DraftTree, Plan, TargetOutput


class DFlash:
    """A DFlash network as drafter: :meth:`start` begins a sequence of the target it was made for.

    Args:
        network: the weights, which are laid out anew; change them, and make another.
        whole_block: compute all rows of the block it was trained with, however few tokens are to be drafted.
        shared_noise: at temperature > 0 draw each slot of a chain under the target's own noise, or from its law where
            the request rejects; otherwise take the likeliest token. Both were measured (docs/benchmarks.md); a target
            whose laws are far sharper than the slots' may do better with the likeliest.
        sharpness: what logits are multiplied by before they are drawn from.
    """

    method: ClassVar[str] = "dflash"

    def __init__(
        self, network: DFlashNetwork, *, whole_block: bool = False, shared_noise: bool = True, sharpness: float = 1.0
    ) -> None:
        if not sharpness > 0:
            raise OptionError(f"sharpness is {sharpness!r}; expected a number greater than 0")
        self.config = network.config
        self.whole_block, self.shared_noise, self.sharpness = whole_block, shared_noise, sharpness
        self.blocks = _lay_out(network)

    def start(self, target: Target) -> DFlashDrafter:
        """A drafter that knows nothing of the text yet. Raises ``PairError`` where the target is of another shape."""
        return DFlashDrafter(self, target)


def _lay_out(network: DFlashNetwork) -> Blocks:
    weight = network.norm.weight
    kernels = kernels_for(network.config, weight.dtype, weight.device)
    return TorchBlocks(network) if kernels is None else NativeBlocks(network, kernels)


def kernels_for(config: DFlashConfig, dtype: torch.dtype, device: torch.device) -> Library | None:
    """The kernels, which keep a context in fp32; None where torch computes, in the weights' dtype."""
    fits = device.type == "cpu" and dtype in NATIVE_DTYPES and config.head_dim <= MOST_HEAD_DIM
    return available() if fits else None


class DFlashDrafter:
    """One sequence: its context, and what the target lends, embedding and output head."""

    def __init__(self, shared: DFlash, target: Target) -> None:
        self._shared, self._target, self._config = shared, target, shared.config
        self._blocks = shared.blocks
        self._context = self._blocks.new_context()
        self._capture = Capture(layers=self._config.target_layer_ids)
        self._check_shape()

    @property
    def capture(self) -> Capture:
        """The layers its network reads."""
        return self._capture

    @property
    def num_context(self) -> int:
        """Committed tokens it has seen the target's layers of."""
        return self._context.length

    def observe(self, tokens: Sequence[int], out: TargetOutput, path: Sequence[int] | None) -> None:
        """Projects the committed rows into its context.

        Raises:
            DrafterError: the layers are not those it asked for, or not of these tokens.
        """
        taps = out.layers
        if len(taps) != self._config.num_taps:
            raise DrafterError(f"the target showed {len(taps)} layers; expected {self._config.num_taps}")
        if path is not None:
            taps = tuple(_picked(layer_NH, path) for layer_NH in taps)
        for layer_NH in taps:
            if layer_NH.shape != (len(tokens), self._config.hidden_size):
                raise DrafterError(
                    f"the target showed rows of shape {list(layer_NH.shape)} for {len(tokens)} tokens; expected "
                    f"{[len(tokens), self._config.hidden_size]}"
                )
        if tokens:
            self._blocks.extend(self._context, taps)

    def propose(self, root: int, plan: Plan, sampler: Sampler) -> DraftTree:
        """A chain of each slot's token, or where the plan allows siblings a tree of the likeliest combinations.

        Raises:
            DrafterError: the sequence outgrew the positions its rotation is meant for, or its logits are no numbers.
        """
        count = min(plan.num_nodes, plan.depth, self._config.block_size - 1)
        if count < 1:
            return chain((root,))
        logits_KV = self._slots(root, count)
        if plan.width > 1:
            return self._tree(root, logits_KV, plan)
        if sampler.greedy_rows:
            drafted = sampler.draw_rows(logits_KV)
            _check_numbers(UNDRAWABLE not in drafted)
            return chain((root, *drafted))
        return self._one_by_one(root, logits_KV, sampler)

    def truncate(self, length: int) -> None:
        """Goes back to the first ``length`` tokens observed; exact, as every position has a row of its own."""
        self._context.truncate(length)

    def close(self) -> None:
        """Frees the context."""
        self._context = self._blocks.new_context()

    def _check_shape(self) -> None:
        """Raises ``PairError`` where the target has another vocabulary or width."""
        config, target = self._config, self._target
        if target.vocab_size != config.vocab_size:
            raise PairError(
                f"the drafter is for a vocabulary of {config.vocab_size}, and the target's is {target.vocab_size}; "
                "expected the same. Take the target it was made for"
            )
        width = target.embed(torch.tensor([config.mask_token_id])).shape[-1]
        if width != config.hidden_size:
            raise PairError(
                f"the drafter is {config.hidden_size} wide, and the target {width}; expected the same. Take the target "
                "it was made for"
            )

    def _slots(self, root: int, count: int) -> Tensor:
        """The logits of the ``count`` slots after the root, ``[K, V]``."""
        config = self._config
        num_rows = config.block_size if self._shared.whole_block else count + 1
        if self._context.length + num_rows > config.context_length:
            raise DrafterError(
                f"the block ends at position {self._context.length + num_rows}; the drafter's positions end at "
                f"{config.context_length}; use a drafter with a longer context"
            )
        tokens = torch.tensor([root] + [config.mask_token_id] * (num_rows - 1))
        noise_NH = self._target.embed(tokens).to(self._blocks.dtype)
        return self._target.unembed(self._blocks.denoise(self._context, noise_NH)[1 : count + 1])

    def _one_by_one(self, root: int, logits_KV: Tensor, sampler: Sampler) -> DraftTree:
        """The slots' tokens under the request's processors, each with those before it as its past."""
        rows_KV = logits_KV.cpu()  # one transfer
        if self._shared.sharpness != 1.0:
            rows_KV = rows_KV * self._shared.sharpness
        drafted: list[int] = []
        laws: list[Tensor] = []
        for row_V in rows_KV:
            token, law = sampler.draft(row_V, drafted, shared_noise=self._shared.shared_noise)
            drafted.append(token)
            if law is not None:
                laws.append(law)
        return chain((root, *drafted), q=torch.stack(laws) if laws else None)

    def _tree(self, root: int, logits_KV: Tensor, plan: Plan) -> DraftTree:
        """The likeliest combinations of the slots' tokens, as far as each slot's law knows nothing of the others."""
        width = min(plan.width, plan.num_nodes, logits_KV.shape[-1])
        find = likeliest if readable(logits_KV) else likeliest_reference
        ids_KW = find(logits_KV, logits_KV.shape[-1], width)
        log_probs_KW = logits_KV.gather(-1, ids_KW.clamp(min=0)) - logits_KV.logsumexp(-1, keepdim=True)
        log_probs, ids = log_probs_KW.tolist(), ids_KW.tolist()
        _check_numbers(all(math.isfinite(row[0]) for row in log_probs))
        nodes = best_nodes(log_probs, plan)
        return DraftTree(
            tokens=torch.tensor([root, *(ids[depth][rank] for _, depth, rank in nodes)], dtype=torch.int64),
            parents=(-1, *(parent for parent, _, _ in nodes)),
            score=torch.tensor([0.0, *(log_probs[depth][rank] for _, depth, rank in nodes)]),
        )


def _check_numbers(are_numbers: bool) -> None:
    if not are_numbers:
        raise DrafterError("the slots hold NaN or infinity; expected logits. The drafter's weights are damaged")


def _picked(layer_NH: Tensor, path: Sequence[int]) -> Tensor:
    """The rows of a path: a view, where it is the beginning of the round."""
    count = len(path)
    if list(path) == list(range(count)):
        return layer_NH[:count]
    return layer_NH.index_select(0, torch.tensor(path, device=layer_NH.device))
