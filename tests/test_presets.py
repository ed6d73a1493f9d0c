"""Presets: pairs of hub ids with sources, none claimed to be verified, found by the target's name alone."""

from __future__ import annotations

import re

import pytest

from surefoot.presets import PRESETS, Preset, presets_for

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.target)
def test_every_preset_has_facts_and_sources_and_claims_no_more(preset: Preset) -> None:
    assert HUB_ID.fullmatch(preset.target)
    assert HUB_ID.fullmatch(preset.draft_model)
    assert preset.facts
    assert preset.sources
    assert all(source.startswith("https://") for source in preset.sources)
    assert not preset.verified, "only a pair that was run may say so"


def test_no_pair_is_listed_twice() -> None:
    pairs = [(preset.target, preset.draft_model) for preset in PRESETS]
    assert len(set(pairs)) == len(pairs)


@pytest.mark.parametrize(
    ("name", "raw", "found"),
    [
        ("Qwen/Qwen3-8B", {}, True),
        ("models/qwen3-8b/", {}, True),
        ("C:\\models\\Qwen3-8B", {}, True),
        ("hub/models--Qwen--Qwen3-8B/snapshots/abc", {}, True),
        ("mine", {"_name_or_path": "Qwen/Qwen3-8B"}, True),
        ("Qwen3-8B-mine", {}, False),
        ("Qwen/Qwen3-80B", {}, False),
        ("mine", {"_name_or_path": None}, False),
    ],
)
def test_a_preset_is_found_by_the_targets_name(name: str, raw: dict[str, object], found: bool) -> None:
    targets = [preset.target for preset in presets_for(name, raw)]
    assert targets == (["Qwen/Qwen3-8B"] if found else [])
