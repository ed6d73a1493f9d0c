"""Public pairs of target and draft model, with what is recorded of them and where.

None of them could be run where this was written: each fact is its source's, and every preset is unverified. ``doctor``
examines a pair for real.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A pair of hub ids.

    Attributes:
        target, draft_model: hub ids.
        facts: what is recorded of the two.
        sources: pages the facts are from.
        verified: whether the pair has been run with this program.
    """

    target: str
    draft_model: str
    facts: tuple[str, ...]
    sources: tuple[str, ...]
    verified: bool = False

    def fits(self, name: str, raw: Mapping[str, object]) -> bool:
        """Whether a model called ``name``, with this ``config.json``, goes by the target's name."""
        repository = self.target.partition("/")[2].lower()
        cached = "models--" + self.target.replace("/", "--").lower()
        parts = name.replace("\\", "/").rstrip("/").lower().split("/")
        return parts[-1] == repository or cached in parts or raw.get("_name_or_path") == self.target

    def as_json(self) -> dict[str, object]:
        """Itself as plain JSON values."""
        return asdict(self)


_VLLM_DRAFT = "https://docs.vllm.ai/en/v0.25.0/features/speculative_decoding/draft_model/"
_VLLM_VOCABULARIES = "https://github.com/vllm-project/vllm/pull/13849"
_QWEN3_CONFIG = "https://huggingface.co/thejaminator/qwen-hook-layer-9/commit/478fb720f1f3ced834fce0275b55b2732d438edc"
_SMOL = "https://huggingface.co/HuggingFaceTB/SmolLM2-"

PRESETS = (
    Preset(
        target="Qwen/Qwen3-8B",
        draft_model="Qwen/Qwen3-0.6B",
        facts=(
            "the pair of vLLM's example for draft models, there with 5 drafts a round",
            "target: qwen3, 36 layers, hidden size 4096, vocabulary of 151936 rows, context of 40960",
        ),
        sources=(_VLLM_DRAFT, _QWEN3_CONFIG),
    ),
    Preset(
        target="Qwen/Qwen3-4B-Thinking-2507",
        draft_model="Qwen/Qwen3-0.6B",
        facts=("the pair of vLLM's example for a server with a draft model, there with 5 drafts a round",),
        sources=(_VLLM_DRAFT,),
    ),
    Preset(
        target="Qwen/Qwen3-4B",
        draft_model="Qwen/Qwen3-0.6B",
        facts=(
            "the pair a user asked vLLM for, whose version then had no draft models: nobody reports a run",
            "draft model: 0.6 B parameters, 28 layers, context of 32768",
        ),
        sources=(
            "https://github.com/vllm-project/vllm/issues/31883",
            "https://docs.m5stack.com/en/stackflow/models/qwen3-0.6b",
        ),
    ),
    Preset(
        target="Qwen/Qwen2.5-Coder-7B",
        draft_model="Qwen/Qwen2.5-Coder-0.5B",
        facts=(
            "identical tokenizers; the embedding is padded to a multiple of 128 rows in the smaller models of the "
            "series and of 256 in the larger ones",
            "vLLM measured 15.73 ms a token plainly and 9.15 ms with 4 drafts a round (batch 1, RTX 4090)",
            "draft model: Apache-2.0",
        ),
        sources=(_VLLM_VOCABULARIES, "https://huggingface.co/Qwen/Qwen2.5-Coder-0.5B/blame/main/README.md"),
    ),
    Preset(
        target="meta-llama/Llama-3.1-8B-Instruct",
        draft_model="meta-llama/Llama-3.2-1B-Instruct",
        facts=(
            "Llama 3.2 1B and 3B are named as draft models for Llama 3.1 8B and 70B",
            "draft model: llama, 16 layers, hidden size 2048, vocabulary of 128256 rows, context of 131072, tied head",
        ),
        sources=(
            "https://kaitchup.substack.com/p/fast-speculative-decoding-with-llama",
            "https://huggingface.co/task-aware/Llama_3.2_1B_Instruct/blob/main/config.json",
        ),
    ),
    Preset(
        target="HuggingFaceTB/SmolLM2-1.7B",
        draft_model="HuggingFaceTB/SmolLM2-135M",
        facts=(
            "target: 3.42 GB of weights; draft model: 269 MB; both llama, Apache-2.0",
            "the files of the two tokenizers are listed with the same sizes",
        ),
        sources=(f"{_SMOL}1.7B/tree/main", f"{_SMOL}135M/tree/main"),
    ),
)


def presets_for(name: str, raw: Mapping[str, object]) -> tuple[Preset, ...]:
    """The presets whose target goes by this name."""
    return tuple(preset for preset in PRESETS if preset.fits(name, raw))
