"""The tables of drafters say what the results say: aims that are missed, texts that differ, what was not measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.dflash import AIM, WAYS, Way
from benchmarks.dflash_report import ARMS, acceptance, speed_table, speeds

PROVENANCE = {
    "command": ["x.py"],
    "packages": {},
    "processor": "p",
    "num_cores": 2,
    "num_threads": 2,
    "finished": "2026-11-20T00:00:00",
}


def write(folder: Path, name: str, body: dict[str, object]) -> None:
    (folder / f"{name}.json").write_text(json.dumps({"provenance": PROVENANCE, **body}))


def measured(length: float) -> dict[str, object]:
    row = {"target": "pebble", "drafter": "pebble-dflash", "way": str(Way()), "temperature": 0.0, "aim": AIM}
    counts = {"mean_acceptance_length": length, "accepted_by_position_per_round": [0.8, 0.4, 0.0]}
    return {"rows": [row | counts | {"repeated_8_grams": 0.25}]}


@pytest.mark.parametrize(("length", "verdict"), [(3.0, "at least 3: met"), (2.99, "at least 3: **missed**")])
def test_tokens_per_round_stand_beside_their_aim(tmp_path: Path, length: float, verdict: str) -> None:
    write(tmp_path, "dflash", measured(length))
    text = acceptance(tmp_path)
    assert verdict in text
    assert "0.80 0.40 |" in text, "positions that never stood are left out"
    assert ("the reason is not known yet" in text) == (length < AIM)
    (tmp_path / "reasons.json").write_text(json.dumps({"dflash.pebble": "too small."}))
    assert ("too small." in acceptance(tmp_path)) == (length < AIM)


def test_ways_are_told_apart_and_one_of_them_has_the_aim() -> None:
    assert len({(way.temperature, str(way)) for way in WAYS}) == len(WAYS)
    assert [way.num_draft for way in WAYS if way.is_aimed] == [7]


@pytest.mark.parametrize("identical", [2, 1])
def test_speeds_are_a_row_for_each_drafter_and_a_column_for_each_kind(tmp_path: Path, identical: int) -> None:
    cells = [
        {
            "kind": kind,
            "arm": arm,
            "answers": 2,
            "identical": identical,
            "mean_acceptance_length": 2.5,
            "times_plain": {"median": 1.234},
        }
        for kind in ("copy", "free")
        for arm in reversed(ARMS)
    ]
    write(tmp_path, "pairs", {"runs": [{"model": "pebble", "dtype": "bfloat16", "cells": cells}]})
    lines = speed_table(tmp_path).splitlines()
    assert lines[0] == "| target | drafter | copy | free |"
    assert [line.split(" | ")[1] for line in lines[2:]] == list(ARMS.values())
    assert all(line.count("1.23 (2.50)") == 2 for line in lines[2:])
    assert ("some texts differ" in speeds(tmp_path)) == (identical < 2)


def test_what_was_not_measured_is_left_out(tmp_path: Path) -> None:
    assert acceptance(tmp_path) == speeds(tmp_path) == speed_table(tmp_path) == ""
