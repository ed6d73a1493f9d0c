"""Files of a model directory: reading JSON strictly, and never leaving the directory."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from pathlib import Path

from surefoot.errors import CheckpointError

MAX_JSON_BYTES = 64 * 2**20
"""A config or index larger than this is taken for a damaged or hostile one."""


def regular_file(directory: Path, name: str) -> Path | None:
    """The file ``name`` of ``directory``, or None where there is none.

    It must be a plain file name, and a link must lead to a file of the directory or, in a Hugging Face cache, to one
    of its blobs.
    """
    if not name or name != Path(name).name or "\\" in name or "\0" in name or name in (".", ".."):
        raise CheckpointError(
            f"{directory}: found the file name {name!r:.200}; expected a plain name of a file in this directory. "
            "Do not use this checkpoint if you do not trust it"
        )
    path = directory / name
    if not os.path.lexists(path):
        return None
    real = Path(os.path.realpath(path))
    if not any(real.is_relative_to(root) for root in _roots(directory)):
        raise CheckpointError(
            f"{path}: a link to {real}, which is outside the model's directory; expected a file inside it. "
            "Copy the file there if you trust it"
        )
    if not os.path.isfile(real):
        raise CheckpointError(f"{path}: missing or no regular file; expected a file. Download the checkpoint again")
    return path


def _roots(directory: Path) -> list[Path]:
    root = directory.resolve()
    blobs = root.parent.parent / "blobs"
    return [root, blobs] if root.parent.name == "snapshots" and blobs.is_dir() else [root]


def read_json_object(path: Path) -> dict[str, object]:
    """The JSON object in ``path``; duplicate names, NaN and infinities are damage."""
    size = path.stat().st_size
    if size > MAX_JSON_BYTES:
        raise CheckpointError(f"{path}: found {size} bytes; expected at most {MAX_JSON_BYTES}. Download it again")
    try:
        value = parse_json(path.read_bytes())
    except OSError as fault:
        raise CheckpointError(f"{path}: cannot be read: {fault}. Check its permissions") from fault
    except (ValueError, RecursionError) as fault:
        raise CheckpointError(f"{path}: not valid JSON: {fault}. Repair the file or download it again") from fault
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: found a JSON {type(value).__name__}; expected an object. Download it again")
    return value


def read_optional_object(directory: Path, name: str) -> dict[str, object]:
    """The JSON object in the file ``name``; empty where there is no such file."""
    path = regular_file(directory, name)
    return {} if path is None else read_json_object(path)


def parse_json(raw: bytes) -> object:
    """Strict JSON. Raises ``ValueError`` for what is not, ``RecursionError`` for nesting without end."""
    value: object = json.loads(
        raw.decode("utf-8"),
        object_pairs_hook=_unique_names,
        parse_constant=_refuse_constant,
        parse_float=_finite,
    )
    return value


def _unique_names(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the name {twice!r:.200} appears twice")
    return result


def _refuse_constant(name: str) -> object:
    raise ValueError(f"the number {name}")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits:.40}, which is too large")
    return value
