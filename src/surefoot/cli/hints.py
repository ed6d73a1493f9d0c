"""Recognises flags that other engines use and names ours."""

from __future__ import annotations

from collections.abc import Sequence

_DRAFT_MODEL = "--draft-model"
_NUM_DRAFT = "--num-draft"
_LOOKUP = "--method lookup"
_LOOKUP_MIN = "--lookup-min"
_MODEL = "the first argument, without a flag"

FOREIGN_FLAGS = {
    # llama.cpp
    "-m": _MODEL,
    "-p": "--prompt",
    "-f": "--prompt-file",
    "-n": "--max-tokens",
    "-s": "--seed",
    "-t": "--threads",
    "-r": "--stop",
    "-ngl": "--device",
    "--gpu-layers": "--device",
    "--n-gpu-layers": "--device",
    "-md": _DRAFT_MODEL,
    "--model-draft": _DRAFT_MODEL,
    "--spec-draft-model": _DRAFT_MODEL,
    "--draft": f"{_NUM_DRAFT}, or {_DRAFT_MODEL}",
    "--draft-max": _NUM_DRAFT,
    "--draft-n": _NUM_DRAFT,
    "--spec-draft-n-max": _NUM_DRAFT,
    "--spec-draft-device": "--device",
    "--spec-ngram-mod-n-match": _LOOKUP_MIN,
    "--spec-type": "--method",
    "--spec-default": _LOOKUP,
    "--temp": "--temperature",
    "--n-predict": "--max-tokens",
    "--predict": "--max-tokens",
    "--repeat-penalty": "--repetition-penalty",
    "--reverse-prompt": "--stop",
    "--file": "--prompt-file",
    # vLLM
    "--model": _MODEL,
    "--speculative-model": _DRAFT_MODEL,
    "--spec-model": _DRAFT_MODEL,
    "--num-speculative-tokens": _NUM_DRAFT,
    "--spec-tokens": _NUM_DRAFT,
    "--spec-method": "--method",
    "--ngram-prompt-lookup-min": _LOOKUP_MIN,
    "--stop-token-ids": "--stop-token-id",
    # SGLang
    "--speculative-algorithm": "--method",
    "--speculative-draft-model-path": _DRAFT_MODEL,
    "--speculative-num-draft-tokens": _NUM_DRAFT,
    "--speculative-num-steps": _NUM_DRAFT,
    # transformers
    "--assistant-model": _DRAFT_MODEL,
    "--num-assistant-tokens": _NUM_DRAFT,
    "--prompt-lookup-num-tokens": f"{_LOOKUP} {_NUM_DRAFT}",
    "--max-new-tokens": "--max-tokens",
    "--max-length": "--max-tokens",
    "--do-sample": "--temperature",
    # mlx-lm
    "--system-prompt": "--system",
    "--prefill-step-size": "--prefill-chunk",
    # Ollama
    "--draft-num-predict": _NUM_DRAFT,
    "--num-predict": "--max-tokens",
    # TensorRT-LLM
    "--decoding-type": "--method",
    "--spec-decode-algo": "--method",
    "--max-draft-len": _NUM_DRAFT,
    "--spec-decode-max-draft-len": _NUM_DRAFT,
    "--draft-model-dir": _DRAFT_MODEL,
    # openvino-genai
    "--prompt-lookup": _LOOKUP,
    # TabbyAPI
    "--draft-mode": "--method",
    "--draft-model-name": _DRAFT_MODEL,
    "--draft-num-tokens": _NUM_DRAFT,
    "--ngram-match-min": _LOOKUP_MIN,
    # higgs and abyo-speculate
    "--pld": _LOOKUP,
    "--pld-min-ngram": _LOOKUP_MIN,
    "--draft-lookahead": _NUM_DRAFT,
}
"""Flags of other engines, and the flag of ours that means the same."""

_EVERY_DRAFT = "the draft length is fixed, and a draft that is wrong only costs its time"
_LONGEST = "lookup always takes the longest match"
_AS_STORED = "a draft model is loaded as it lies in its directory"
_ONE_CHAIN = "a draft model drafts one chain"
_OWN_CONTEXT = "a sequence may be as long as the model's context, and its cache is as long as the request"

UNMATCHED_FLAGS = {
    "--draft-min": _EVERY_DRAFT,
    "--spec-draft-n-min": _EVERY_DRAFT,
    "--draft-p-min": _EVERY_DRAFT,
    "--spec-draft-p-min": _EVERY_DRAFT,
    "--assistant-confidence-threshold": _EVERY_DRAFT,
    "--num-assistant-tokens-schedule": _EVERY_DRAFT,
    "--ngram-prompt-lookup-max": _LONGEST,
    "--max-matching-ngram-size": _LONGEST,
    "--max-ngram-size": _LONGEST,
    "--pld-max-ngram": _LONGEST,
    "-c": _OWN_CONTEXT,
    "--ctx-size": _OWN_CONTEXT,
    "--max-model-len": _OWN_CONTEXT,
    "--draft-quantize": _AS_STORED,
    "--spec-draft-ngl": _AS_STORED,
    "--speculative-draft-tensor-parallel-size": _AS_STORED,
    "--speculative-eagle-topk": _ONE_CHAIN,
    "--speculative-token-map": "a draft model has the target's whole vocabulary",
}
"""Flags of other engines that nothing here means, and why."""

TAKE_TEXT = ("--prompt", "--system", "--stop")
"""Flags whose value may look like anything."""


def foreign_flags(arguments: Sequence[str]) -> list[str]:
    """A hint for each argument that is another engine's flag, up to a bare ``--``."""
    hints = []
    for before, argument in zip(("", *arguments), arguments, strict=False):
        if argument == "--":
            break
        if before in TAKE_TEXT:
            continue
        given = argument.partition("=")[0]
        name = given.replace("_", "-")
        if name in FOREIGN_FLAGS:
            hints.append(f"found {given}, a flag of another engine; here it is {FOREIGN_FLAGS[name]}")
        elif name in UNMATCHED_FLAGS:
            hints.append(f"found {given}, a flag of another engine; leave it out: {UNMATCHED_FLAGS[name]}")
    return hints
