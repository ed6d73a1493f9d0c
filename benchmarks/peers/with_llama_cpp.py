"""``llama-cpp-python``, from a GGUF file written here with the same weights."""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import gguf
import llama_cpp
import numpy as np
from numpy.typing import NDArray
from worker import First, Job, serve

Array = NDArray[np.generic]

_ARCHITECTURES = {"qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}


def bf16_tensors(path: Path) -> Iterator[tuple[str, NDArray[np.uint16]]]:
    """The tensors of a ``model.safetensors`` in bf16, as their bits."""
    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if entry["dtype"] != "BF16":
            raise ValueError(f"{path}: {name} is {entry['dtype']}; expected BF16")
        start, end = (8 + size + offset for offset in entry["data_offsets"])
        yield name, np.frombuffer(content[start:end], np.uint16).reshape(entry["shape"])


def widened(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bf16 bits as fp32 numbers."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def write_gguf(model: Path, path: Path, dtype: str) -> None:
    """Writes the checkpoint as GGUF: matrices in ``dtype``, vectors in fp32, no vocabulary (ids are all we use)."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    arch = _ARCHITECTURES[config["model_type"]]
    heads = config["num_attention_heads"]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for name, bits in bf16_tensors(model / "model.safetensors"):
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if theirs is None:
            raise ValueError(f"{model}: GGUF has no name for {name}")
        if bits.ndim == 1 or dtype == "float32":
            writer.add_tensor(theirs, widened(bits))
        else:
            writer.add_tensor(theirs, bits.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp:
    """A model with a context as long as it allows up to ``_CONTEXT``."""

    _CONTEXT = 4096
    remarks: ClassVar[Mapping[str, str]] = {}

    def __init__(self, job: Job) -> None:
        if job.draft is not None:
            raise ValueError("llama-cpp-python drafts by prompt lookup only; expected no draft model")
        path = job.converted(".gguf")
        if not path.exists():
            part = path.with_suffix(".part")
            write_gguf(job.model, part, job.dtype)
            part.rename(path)
        self._llm = llama_cpp.Llama(
            str(path),
            n_ctx=self._CONTEXT,
            n_batch=512,
            n_threads=job.threads,
            n_threads_batch=job.threads,
            logits_all=False,
            verbose=False,
        )
        self._length = 0

    def answer(self, prompt: Sequence[int], max_tokens: int, first: First) -> list[int]:
        tokens: list[int] = []
        for token in self._llm.generate(prompt, temp=0.0, repeat_penalty=1.0, reset=True):
            tokens.append(token)
            if len(tokens) == 1:
                first(1)
            if len(tokens) == max_tokens:
                break
        return tokens

    def read(self, prompt: Sequence[int]) -> None:
        self._llm.reset()
        self._llm.eval(prompt)
        self._length = len(prompt)

    def forward(self, tokens: Sequence[int]) -> None:
        batch = self._llm._batch
        batch.set_batch(batch=tokens, n_past=self._length, logits_all=True)
        self._llm._ctx.decode(batch)
        llama_cpp.llama_get_logits(self._llm._ctx.ctx)  # waits until they are there

    def undo(self) -> None:
        self._llm._ctx.kv_cache_seq_rm(-1, self._length, -1)


if __name__ == "__main__":
    serve(LlamaCpp, ("llama-cpp-python", "gguf"))
