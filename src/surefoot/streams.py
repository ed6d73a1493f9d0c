"""Counter-based streams of random choices for ``acceptance="reject"``, one per seed, sample, round, node and purpose.

No choice shares randomness with another or with the position noise: a residual drawn with the noise its draft was drawn
with would be biased.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from torch import Tensor

from surefoot.noise import stream_key, uniform

_CHOICE_DOMAIN = 0x43484F494345  # tells keys of choices from keys of noise


class Streams:
    """The production :class:`surefoot.protocols.Choices` of one request."""

    def __init__(self, seed: int, sample: int) -> None:
        self._key = stream_key(_CHOICE_DOMAIN, seed, sample)
        self._round = 0

    def next_round(self) -> None:
        """Opens the next round: the same node and purpose then key another stream."""
        self._round += 1

    def uniform(self, node: int, purpose: str) -> float:
        """The stream's variate, in (0, 1) and never at either end."""
        name = int.from_bytes(blake2b(purpose.encode(), digest_size=8).digest(), "little")
        return uniform(stream_key(self._key, self._round, node, name))

    def categorical(self, probs: Tensor, node: int, purpose: str) -> int:
        """An index drawn with probabilities ``probs [V]`` (their sum need not be rounded to 1); never one of zero."""
        cumulative = np.cumsum(probs.cpu().numpy())
        picked = int(np.searchsorted(cumulative, self.uniform(node, purpose) * cumulative[-1], side="right"))
        # The product may round up to the sum itself: the first index that reaches the sum is the last possible one.
        return min(picked, int(np.searchsorted(cumulative, cumulative[-1], side="left")))

    def bernoulli(self, probability: float, node: int, purpose: str) -> bool:
        """True with ``probability``: the strict comparison is never true at 0 and always at 1."""
        return self.uniform(node, purpose) < probability
