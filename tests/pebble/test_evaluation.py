"""The evaluation set that ships with pebble is the one the design fixes."""

from __future__ import annotations

import itertools
import json
from importlib.resources import files

EVALUATION = json.loads((files("surefoot") / "pebble" / "evaluation.json").read_text(encoding="utf-8"))


def test_it_has_forty_prompts_of_160_tokens_from_held_out_modules() -> None:
    prompts = EVALUATION["prompts"]
    assert len(prompts) == 40
    assert all(len(prompt["ids"]) == EVALUATION["prompt_tokens"] == 160 for prompt in prompts)
    assert {prompt["file"] for prompt in prompts} <= set(EVALUATION["held_out"])
    assert all(0 <= token < 4096 for prompt in prompts for token in prompt["ids"])
    assert len({(prompt["file"], prompt["offset"]) for prompt in prompts}) == 40


def test_no_two_prompts_overlap() -> None:
    by_file: dict[str, list[int]] = {}
    for prompt in EVALUATION["prompts"]:
        by_file.setdefault(prompt["file"], []).append(prompt["offset"])
    for offsets in by_file.values():
        ordered = sorted(offsets)
        assert all(after - before >= 160 for before, after in itertools.pairwise(ordered))
