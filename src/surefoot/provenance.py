"""What a measurement was made with: command, versions, hardware, time."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from surefoot import __version__

_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The circumstances of a run.

    Attributes:
        command: the command line, program name without its folder.
        surefoot: our version.
        python, packages: theirs; packages that are not installed are left out.
        processor, num_cores, num_threads, device: what it ran on.
        finished: UTC time, to the second.
    """

    command: tuple[str, ...]
    surefoot: str
    python: str
    packages: dict[str, str]
    processor: str
    num_cores: int
    num_threads: int
    device: str
    finished: str

    @classmethod
    def collect(cls, device: str = "cpu") -> Provenance:
        """Reads it off the running process."""
        return cls(
            command=(Path(sys.argv[0]).name, *sys.argv[1:]),
            surefoot=__version__,
            python=platform.python_version(),
            packages=_installed(),
            processor=_processor(),
            num_cores=os.cpu_count() or torch.get_num_threads(),
            num_threads=torch.get_num_threads(),
            device=device,
            finished=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )

    def as_json(self) -> dict[str, object]:
        """Itself as plain JSON values."""
        return asdict(self)


def _installed() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    """The processor's name and the vector instructions that matter to decoding."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = facts.get("flags", "").split()
    vectors = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return " ".join([facts.get("model name", platform.machine()), *vectors])
