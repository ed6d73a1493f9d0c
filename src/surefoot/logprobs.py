"""How likely the target thought the tokens that stand: log probabilities of raw logits, before any processor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from surefoot import native
from surefoot.noise import FloatArray
from surefoot.types import TokenLogprobs, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobScorer:
    """Scores tokens by the rows they were drawn from.

    Rows are normalised in fp64 on the host, so a score depends on its row alone and not on what was computed beside it.

    Attributes:
        num_top: how many of the likeliest tokens are reported beside the one that stands.
        vocab_size: a row may be wider; what lies beyond is padding and no part of the law.
    """

    num_top: int
    vocab_size: int

    def score(self, token: int, logits: Tensor) -> TokenLogprobs:
        """The account of ``token`` at the position that the row ``logits [V]`` speaks of; one transfer.

        Of equal logits the lowest id comes first, in ``rank`` and ``top`` alike.
        """
        on_host = logits.detach()[: self.vocab_size].to("cpu")
        row: FloatArray = on_host.double().numpy()
        best = row.max()
        normaliser = best + np.log(np.exp(row - best).sum())
        before = np.count_nonzero(row > row[token]) + np.count_nonzero(row[:token] == row[token])
        return TokenLogprobs(
            token=token,
            logprob=float(row[token] - normaliser),
            rank=1 + int(before),
            top=tuple((int(top), float(row[top] - normaliser)) for top in _likeliest(on_host, self.num_top)),
        )


class PromptLogprobs:
    """The prompt's tokens, each scored by the row of the token before it, chunk by chunk."""

    def __init__(self, scorer: LogprobScorer) -> None:
        self._scorer = scorer
        self._scored: list[TokenLogprobs | None] = []
        self._last_row: Tensor | None = None

    def read(self, tokens: Tokens, logits: Tensor) -> None:
        """Scores a chunk: ``tokens`` were fed at the rows of ``logits [N, V]``."""
        for token, row in zip(tokens, logits, strict=True):
            self._scored.append(None if self._last_row is None else self._scorer.score(token, self._last_row))
            self._last_row = row
        if self._last_row is not None:
            self._last_row = self._last_row.clone()  # the target may write over its logits

    @property
    def scored(self) -> tuple[TokenLogprobs | None, ...]:
        """One per token read; None for the first, which nothing comes before."""
        return tuple(self._scored)


def _likeliest(logits: Tensor, count: int) -> list[int]:
    """The ids of the ``count`` largest entries of a row ``[V]``, largest first; of equals the lowest ids, ascending."""
    if count == 0:
        return []
    find = native.likeliest if native.readable(logits[None]) else native.likeliest_reference
    ids: list[int] = find(logits[None], len(logits), min(count, len(logits)))[0].tolist()
    return ids
