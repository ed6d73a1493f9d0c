"""Recognises flags that other engines use and names ours."""

from __future__ import annotations

from collections.abc import Sequence

_DRAFT_MODEL = "--draft-model"
_NUM_DRAFT = "--num-draft"
_LOOKUP = "--method lookup"

FOREIGN_FLAGS = {
    "-md": _DRAFT_MODEL,
    "--model-draft": _DRAFT_MODEL,
    "--spec-draft-model": _DRAFT_MODEL,
    "--speculative-model": _DRAFT_MODEL,
    "--speculative-draft-model-path": _DRAFT_MODEL,
    "--assistant-model": _DRAFT_MODEL,
    "--draft": _NUM_DRAFT,
    "--draft-max": _NUM_DRAFT,
    "--draft-n": _NUM_DRAFT,
    "--spec-draft-n-max": _NUM_DRAFT,
    "--num-speculative-tokens": _NUM_DRAFT,
    "--num-assistant-tokens": _NUM_DRAFT,
    "--speculative-num-draft-tokens": _NUM_DRAFT,
    "--speculative-num-steps": _NUM_DRAFT,
    "--prompt-lookup-num-tokens": f"{_LOOKUP} {_NUM_DRAFT}",
    "--spec-type": "--method",
    "--speculative-algorithm": "--method",
    "--temp": "--temperature",
    "--n-predict": "--max-tokens",
    "--predict": "--max-tokens",
    "--max-new-tokens": "--max-tokens",
    "--max-length": "--max-tokens",
    "--repeat-penalty": "--repetition-penalty",
    "--system-prompt": "--system",
    "--file": "--prompt-file",
}
"""Flags of llama.cpp, vLLM, SGLang, transformers and mlx-lm, and the flag of ours that means the same."""


def foreign_flags(arguments: Sequence[str]) -> list[str]:
    """A hint for each argument that is another engine's flag, up to a bare ``--``."""
    hints = []
    for argument in arguments:
        if argument == "--":
            break
        name = argument.partition("=")[0]
        if name in FOREIGN_FLAGS:
            hints.append(f"found {name}, a flag of another engine; here it is {FOREIGN_FLAGS[name]}")
    return hints
