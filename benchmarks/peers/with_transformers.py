"""``transformers``: ``generate()`` on eager modules with their own kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.generation.streamers import BaseStreamer
from worker import First, Job, serve


class FirstToken(BaseStreamer):
    """Calls when the first token after the prompt arrives; shows nothing."""

    def __init__(self, call: First) -> None:
        self._call = call
        self._count = 0

    def put(self, value: Tensor) -> None:
        self._count += 1
        if self._count == 2:  # the prompt comes first
            self._call(value.numel())

    def end(self) -> None: ...


class Transformers:
    """A model and, where there is one, its assistant."""

    remarks: ClassVar[Mapping[str, str]] = {}

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(job.threads)
        torch.set_grad_enabled(False)
        self._model, self._draft = (
            AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, job.dtype)).eval() if path else None
            for path in (job.model, job.draft)
        )
        for model in filter(None, (self._model, self._draft)):
            model.generation_config.eos_token_id = None
            model.generation_config.num_assistant_tokens = job.num_draft
            model.generation_config.num_assistant_tokens_schedule = "constant"
            model.generation_config.assistant_confidence_threshold = 0.0
        self._cache = DynamicCache()
        self._length = 0

    def answer(self, prompt: Sequence[int], max_tokens: int, first: First) -> list[int]:
        ids = torch.tensor([prompt])
        extra = {"assistant_model": self._draft} if self._draft is not None else {}
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            streamer=FirstToken(first),
            **extra,
        )
        return out[0, len(prompt) :].tolist()

    def read(self, prompt: Sequence[int]) -> None:
        self._cache = DynamicCache()
        self._length = len(prompt)
        self._model(torch.tensor([prompt]), past_key_values=self._cache, logits_to_keep=1)

    def forward(self, tokens: Sequence[int]) -> None:
        self._model(torch.tensor([tokens]), past_key_values=self._cache)

    def undo(self) -> None:
        self._cache.crop(self._length - self._cache.get_seq_length())


if __name__ == "__main__":
    serve(Transformers, ("transformers", "torch"))
