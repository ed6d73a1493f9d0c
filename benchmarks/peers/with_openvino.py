"""``openvino-genai``, from an intermediate representation that ``optimum-intel`` exports from the same checkpoint.

Weights are kept in fp32 on disk and computed in the dtype that is asked for; keys and values are kept in that dtype,
too, where the library's default would quantise them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import openvino
import openvino_genai
from worker import First, Job, serve

_PRECISION = {"bfloat16": "bf16", "float32": "f32"}


def exported(job: Job, model: Path) -> Path:
    """The exported directory, made on first use."""
    path = job.cache / f"{model.name}-openvino"
    if not path.exists():
        part = path.with_name(path.name + ".part")
        script = Path(__file__).with_name("export_openvino.py")
        subprocess.run([sys.executable, script, model, part], check=True, stdout=sys.stderr)
        part.rename(path)
    return path


class OpenVINO:
    """A pipeline for answers, and on first use a plain compiled model for forwards."""

    remarks: ClassVar[Mapping[str, str]] = {}

    def __init__(self, job: Job) -> None:
        self._job = job
        precision = _PRECISION[job.dtype]
        self._settings = {
            "INFERENCE_NUM_THREADS": job.threads,
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,
        }
        self._pipeline: openvino_genai.LLMPipeline | None = None
        self._request: openvino.InferRequest | None = None
        self._states: list[np.ndarray] = []
        self._length = 0

    def answer(self, prompt: Sequence[int], max_tokens: int, first: First) -> list[int]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = True
        config.do_sample = False
        if self._job.draft is not None:
            config.num_assistant_tokens = self._job.num_draft
        streamer = FirstToken(first)
        ids = np.asarray([prompt], np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        return list(self._opened().generate(inputs, config, streamer).tokens[0])

    def _opened(self) -> openvino_genai.LLMPipeline:
        if self._pipeline is None:
            extra = {}
            if self._job.draft is not None:
                draft = exported(self._job, self._job.draft)
                extra["draft_model"] = openvino_genai.draft_model(str(draft), "CPU", **self._settings)
            target = exported(self._job, self._job.model)
            self._pipeline = openvino_genai.LLMPipeline(str(target), "CPU", **self._settings, **extra)
        return self._pipeline

    def read(self, prompt: Sequence[int]) -> None:
        if self._request is None:
            path = exported(self._job, self._job.model) / "openvino_model.xml"
            self._request = openvino.Core().compile_model(path, "CPU", self._settings).create_infer_request()
        self._request.reset_state()
        self._length = 0
        self._infer(prompt)
        self._length = len(prompt)
        self._states = [np.array(state.state.data) for state in self._request.query_state()]

    def forward(self, tokens: Sequence[int]) -> None:
        self._infer(tokens)

    def _infer(self, tokens: Sequence[int]) -> None:
        assert self._request is not None
        end = self._length + len(tokens)
        inputs = {
            "input_ids": np.asarray([tokens], np.int64),
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(self._length, end, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        self._request.infer(inputs, share_inputs=True, share_outputs=True)

    def undo(self) -> None:
        assert self._request is not None
        for state, values in zip(self._request.query_state(), self._states, strict=True):
            state.state = openvino.Tensor(values)


class FirstToken(openvino_genai.StreamerBase):
    """Calls when the first token arrives; shows nothing."""

    def __init__(self, call: First) -> None:
        super().__init__()
        self._call: First | None = call

    def write(self, tokens: int | Sequence[int]) -> openvino_genai.StreamingStatus:
        if self._call is not None:
            self._call(1 if isinstance(tokens, int) else len(tokens))
            self._call = None
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None: ...


if __name__ == "__main__":
    serve(OpenVINO, ("openvino", "openvino-genai", "optimum-intel"))
