"""What the frozen target shows of sequences: computed when it is needed, a little ahead if wished, never stored.

Shape suffixes: W sequences side by side, S tokens of one, T layers, H hidden.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surefoot.protocols import Cache, Target
from surefoot.types import Capture, TargetOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Of sequences side by side: the captured layers' outputs beside each other ``[W, S, T * H]``, and the normalised
    hidden states ``[W, S, H]`` or None."""

    layers: Tensor
    final: Tensor | None


class FeatureReader:
    """Reads sequences with the target; one cache serves them all, one after the other, whatever threads ask."""

    def __init__(self, target: Target, capture: Capture) -> None:
        self._target, self._capture = target, capture
        self._cache: Cache | None = None
        self._lock = Lock()

    def read(self, ids: NDArray[np.int32]) -> Features:
        """The features of token ids ``[W, S]``. A sequence's do not depend on those beside it."""
        with self._lock:  # the loop looks at held-out sequences while others are read ahead
            seen = [self._read_one(row.tolist()) for row in ids]
        final = torch.stack([final for _, final in seen]) if self._capture.final else None
        return Features(layers=torch.stack([layers for layers, _ in seen]), final=final)

    def _read_one(self, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        if self._cache is None or not self._target.serves(self._cache, len(tokens)):
            self._cache = self._target.new_cache(len(tokens))
        self._cache.truncate(0)
        outs = [out for _, out in self._target.prefill(tokens, self._cache, self._capture)]
        # Joining them outside inference mode gives tensors that autograd may keep.
        layers = [torch.cat(parts) for parts in zip(*(out.layers for out in outs), strict=True)]
        return torch.cat(layers, -1) if layers else torch.empty(len(tokens), 0), _final(outs)


def _final(outs: Sequence[TargetOutput]) -> Tensor:
    parts = [out.final for out in outs if out.final is not None]
    return torch.cat(parts) if parts else torch.empty(0)


def read_ahead(reader: FeatureReader, batches: Iterable[NDArray[np.int32]], ahead: int) -> Iterator[Features]:
    """The features of each batch of ids in turn, those of at most ``ahead`` more computed meanwhile in a thread.

    They are the same whether computed ahead or not; an error of the target comes where its batch is asked for.
    """
    if ahead == 0:
        for ids in batches:
            yield reader.read(ids)
        return
    waiting: deque[Future[Features]] = deque()
    with ThreadPoolExecutor(max_workers=1) as thread:
        try:
            for ids in batches:
                waiting.append(thread.submit(reader.read, ids))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
