"""Memory: what weights and caches of both models need, against what there is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from surefoot.doctor.check import Check
from surefoot.doctor.files import ModelFiles, size_in_words
from surefoot.loading.load import DTYPES
from surefoot.models.config import DecoderConfig
from surefoot.models.decoder import CPU_CACHE_DTYPE
from surefoot.options import DTypeName

NAME = "memory"
WORKING = "Working memory of a forward comes on top."
_SIDES = 3
"""Recurrent states are there three times: the committed ones, the tentative ones, and those before the last chunk of a
long prompt. The tape of a round is working memory."""
_GROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)
"""Where control groups of version 2 and 1 keep limit, use and pages, and what they call those easily taken back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Bytes of one model: its weights, each token in its cache, ``context_length`` tokens at most, and what a sequence
    of any length takes there (recurrent states)."""

    weights: int
    per_token: int
    context_length: int
    per_sequence: int = 0

    @classmethod
    def of(cls, files: ModelFiles, dtype: DTypeName, device: torch.device) -> Need:
        """What ``files`` need on ``device``, loaded in ``dtype``."""
        loaded = DTYPES[files.dtype if dtype == "auto" else dtype]
        cached = CPU_CACHE_DTYPE.get(loaded, loaded) if device.type == "cpu" else loaded
        return cls(
            weights=files.num_parameters * loaded.itemsize,
            per_token=cache_numbers(files.config) * cached.itemsize,
            context_length=files.config.context_length,
            per_sequence=_SIDES * state_bytes(files.config, loaded),
        )

    def cache(self, tokens: int) -> int:
        """Bytes of the cache of a sequence of ``tokens``, as far as the context reaches."""
        return self.per_sequence + self.per_token * min(tokens, self.context_length)


def cache_numbers(config: DecoderConfig) -> int:
    """Keys and values of one token in all attention layers."""
    return 2 * len(config.attention_layers) * config.kv_size


def state_bytes(config: DecoderConfig, dtype: torch.dtype) -> int:
    """The memory of all delta layers of a model of ``dtype``, of a sequence of any length."""
    if config.delta is None:
        return 0
    shape = config.delta
    state = shape.num_value_heads * shape.key_dim * shape.value_dim * torch.float32.itemsize
    return len(config.delta_layers) * (state + (shape.conv_size - 1) * shape.channels * dtype.itemsize)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Bytes that are free, and of what."""

    available: int
    what: str


def check_memory(needs: tuple[Need, ...], room: Room | None, wanted: int | None) -> Check:
    """Whether the weights of all models fit (else ``FAIL``), and one sequence of ``wanted`` tokens, or of the target's
    whole context (else ``WARN``, with the longest that does). ``needs`` begins with the target's."""
    context = min(needs[0].context_length, wanted or needs[0].context_length)
    weights = sum(need.weights for need in needs)
    caches = sum(need.cache(context) for need in needs)
    asked = f"weights {size_in_words(weights)}, one sequence of {context} tokens {size_in_words(caches)}"
    details = tuple(
        f"{side}: weights {size_in_words(need.weights)}, {need.per_token / 1e3:.4g} kB a token"
        + (f", {size_in_words(need.per_sequence)} a sequence" if need.per_sequence else "")
        for side, need in zip(("target", "draft model"), needs, strict=False)
    )
    if room is None:
        mend = "Compare with what your machine has free"
        return Check(name=NAME, level="WARN", found=f"{asked}; free memory unknown", mend=mend, details=details)
    found = f"{asked}; {size_in_words(room.available)} of {room.what} free"
    if weights > room.available:
        return Check(
            name=NAME,
            level="FAIL",
            found=found,
            expected="room for the weights",
            mend=_make_room(needs, room),
            details=details,
        )
    if weights + caches > room.available:
        longest = longest_context(needs, room.available)
        mend = f"Keep sequences within {longest} tokens: the longest that fit now. {WORKING}"
        return Check(name=NAME, level="WARN", found=found, mend=mend, details=details)
    return Check(name=NAME, level="PASS", found=found, details=(*details, WORKING))


def _make_room(needs: tuple[Need, ...], room: Room) -> str:
    if len(needs) > 1 and needs[0].weights <= room.available:
        return "Leave the draft model out (--method lookup needs none), or load in a narrower --dtype"
    return f"Free memory, load in a narrower --dtype, or choose a smaller model; {room.what} is too small for this one"


def longest_context(needs: tuple[Need, ...], available: int) -> int:
    """The most tokens of one sequence that fit beside the weights; 0 where not one does."""
    left = available - sum(need.weights for need in needs)
    low, high = 0, needs[0].context_length
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sum(need.cache(middle) for need in needs) <= left else (low, middle - 1)
    return low


def free_memory(device: torch.device, root: Path = Path("/")) -> Room | None:
    """What is free on ``device``: of an NVIDIA or AMD card its own memory; of a CPU what Linux calls available, within
    the limit of the control group; None where neither can be asked. ``root`` is where ``proc`` and ``sys`` are."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return Room(available=free, what=torch.cuda.get_device_name(device))
    if device.type != "cpu":
        return None
    available = _meminfo(root / "proc" / "meminfo")
    limit = _group_limit(root / "sys" / "fs" / "cgroup")
    if available is None:
        return _physical()
    if limit is not None and limit < available:
        return Room(available=limit, what="the control group's memory")
    return Room(available=available, what="memory")


def _meminfo(path: Path) -> int | None:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _group_limit(folder: Path) -> int | None:
    """What a control group (of version 2, or 1) leaves: its limit less its use, file pages that can be taken back not
    counted as use; None where there is no limit."""
    for limit, used, stat, reclaimable in _GROUP_FILES:
        try:
            most = (folder / limit).read_text(encoding="ascii").strip()
            use = int((folder / used).read_text(encoding="ascii"))
            pages = dict(line.split() for line in (folder / stat).read_text(encoding="ascii").splitlines())
        except (OSError, ValueError):
            continue
        return None if most == "max" else max(0, int(most) - use + int(pages.get(reclaimable, 0)))
    return None


def _physical() -> Room | None:
    """All the memory there is, where the free part cannot be asked for."""
    try:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
    return Room(available=pages * size, what="memory in all (the free part is unknown)")
