"""Ours. ``SUREFOOT_NATIVE=0`` in the environment turns the native kernels off."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from worker import First, Job, serve

import surefoot
from surefoot.options import SamplingParams, SpeculativeOptions
from surefoot.protocols import Cache
from surefoot.tree import chain
from surefoot.types import Capture

_SPARE = 64


class Surefoot:
    """An engine, asked by token ids."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(job.threads)
        self._engine = surefoot.load(job.model, job.draft, dtype=job.dtype)
        self._options = SpeculativeOptions(num_draft=job.num_draft if job.draft else 0)
        self._cache: Cache | None = None
        self.remarks = {"rows": "exact" if self._engine.target.strict else "not exact"}

    def answer(self, prompt: Sequence[int], max_tokens: int, first: First) -> list[int]:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        with self._engine.stream(prompt, params, speculative=self._options) as stream:
            next(stream)
            first(1)
            for _ in stream:
                pass
        assert stream.result.stats.fallbacks == 0, "the drafter failed"
        return list(stream.result.tokens)

    def read(self, prompt: Sequence[int]) -> None:
        self._cache = self._engine.target.new_cache(len(prompt), spare=_SPARE)
        for _ in self._engine.target.prefill(prompt, self._cache, Capture()):
            pass

    def forward(self, tokens: Sequence[int]) -> None:
        assert self._cache is not None
        self._engine.target.score([(chain(tokens), self._cache)], Capture())

    def undo(self) -> None:
        assert self._cache is not None
        self._cache.rollback()


if __name__ == "__main__":
    serve(Surefoot, ("surefoot", "torch"))
