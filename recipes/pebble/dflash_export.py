"""Puts a trained DFlash drafter among the bundled models: its config, its weights, and what its run says of itself.

    python -m recipes.pebble.dflash_export --run /path/to/run --out src/surefoot/pebble/pebble-dflash

The record keeps what names the target, the options and the results; folders and the loss of every step stay out.
"""

import argparse
import json
import shutil
from pathlib import Path

from recipes.pebble.export import write_json

COPIED = ("config.json", "model.safetensors")
RECORDED = ("target", "target_name", "parameters", "data", "num_steps", "seconds", "evaluations", "offline", "loop")


def record_of(run: dict[str, object]) -> dict[str, object]:
    """Returns what is bundled of a run's record.

    Raises:
        ValueError: the run has not ended.
    """
    if run.get("state") != "finished":
        raise ValueError(f"the run is {run.get('state')!r}; expected a finished one")
    options = run["options"]
    assert isinstance(options, dict)
    kept = {name: value for name, value in options.items() if name != "init"}
    begun = options["init"] and Path(str(options["init"])).name
    return {name: run[name] for name in RECORDED} | {"options": kept | {"init": begun}}


def export(run: Path, folder: Path) -> None:
    """Writes config, weights and record to the drafter's folder; its README stays."""
    record = record_of(json.loads((run / "run.json").read_text(encoding="utf-8")))
    folder.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        shutil.copyfile(run / name, folder / name)
        (folder / name).chmod(0o644)
    write_json(folder / "run.json", record)


def main() -> None:
    """Writes the bundled folder."""
    parser = argparse.ArgumentParser(description="Bundle a trained DFlash drafter.")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    export(options.run, options.out)


if __name__ == "__main__":
    main()
