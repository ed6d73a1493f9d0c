"""What is bundled of a drafter's run says whose it is, and nothing of the folders it was made in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recipes.pebble.dflash_export import COPIED, export

RUN = {
    "state": "finished",
    "target": {"config_sha256": "aa", "weights_sha256": "bb"},
    "target_name": "pebble",
    "parameters": 3,
    "data": {"sequences": 2, "sha256": "cc"},
    "num_steps": 5,
    "seconds": 1.0,
    "evaluations": [[5, 1.5]],
    "offline": {"accepted": 1.5},
    "loop": {"measured": 2.5},
    "losses": [1.0, 2.0],
    "provenance": {"command": ["surefoot", "train", "--out", "/tmp/somebody/run"]},
    "options": {"steps": 5, "init": "/tmp/somebody/first"},
}


def write_run(folder: Path, record: dict[str, object]) -> Path:
    folder.mkdir()
    for name in COPIED:
        (folder / name).write_text(name, encoding="utf-8")
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def test_the_record_names_the_target_and_no_folder(tmp_path: Path) -> None:
    export(write_run(tmp_path / "run", RUN), tmp_path / "out")
    text = (tmp_path / "out" / "run.json").read_text(encoding="utf-8")
    record = json.loads(text)
    assert record["target"] == RUN["target"]
    assert record["options"] == {"steps": 5, "init": "first"}
    assert "somebody" not in text
    assert "losses" not in record
    assert [(tmp_path / "out" / name).read_text(encoding="utf-8") for name in COPIED] == list(COPIED)


def test_a_run_that_goes_on_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", RUN | {"state": "training"})
    with pytest.raises(ValueError, match="'training'; expected a finished one"):
        export(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
