"""Memory: what is needed, against bytes counted in a loaded model; what is free, read from made-up system files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.drafters.blockers import random_network, save_network
from tests.factories import make_checkpoint

from surefoot.cache.hybrid import HybridCache
from surefoot.doctor.dflash import check_drafter
from surefoot.doctor.files import examine_files, find
from surefoot.doctor.memory import Need, Room, check_memory, free_memory, longest_context
from surefoot.drafters.dflash.drafter import DFlash
from surefoot.loading import find_dflash, load_dflash, load_target
from surefoot.options import DTypeName, LoadOptions
from surefoot.types import Capture

LAW = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])

CPU = torch.device("cpu")
TARGET = Need(weights=1000, per_token=10, context_length=100)
DRAFT = Need(weights=100, per_token=2, context_length=50)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
def test_the_need_is_what_a_loaded_model_takes(tmp_path: Path, family: str, dtype: DTypeName) -> None:
    path = make_checkpoint(tmp_path / "model", family, tie_word_embeddings=family == "llama", dtype=torch.bfloat16)
    _, files = examine_files(find(str(path)), "target")
    need = Need.of(files, dtype, CPU)
    model = load_target(path, LoadOptions(dtype=dtype, device="cpu", trainable=True)).model
    assert need.weights == sum(parameter.nbytes for parameter in model.parameters())
    cache = model.new_cache(40)
    rows = [*cache.rows_to_write(0, 1)]
    assert need.per_token == sum(row.nbytes for row in rows)


def test_recurrent_states_are_counted_as_a_sequence_that_was_prefilled_in_chunks_has_them(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model", "qwen3_5")
    need = Need.of(examine_files(find(str(path)), "target")[1], "auto", CPU)
    model = load_target(path, LoadOptions(device="cpu", prefill_chunk=4)).model
    cache = model.new_cache(40)
    list(model.prefill(range(9), cache, Capture()))
    assert isinstance(cache, HybridCache)
    assert need.per_sequence == cache.states.num_bytes > 0
    assert need.per_token == sum(row.nbytes for row in cache.rows_to_write(0, 1))
    assert need.cache(7) - need.cache(6) == need.per_token
    assert need.cache(0) == need.per_sequence


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16", "float16"])
def test_a_dflash_drafter_is_counted_as_it_is_loaded_beside_its_target(tmp_path: Path, dtype: DTypeName) -> None:
    path = make_checkpoint(tmp_path / "target", "qwen3", dtype=torch.bfloat16)
    found = find_dflash(save_network(tmp_path / "drafter", random_network(4, torch.float32)))
    assert found is not None
    _, target = examine_files(find(str(path)), "target")
    need = check_drafter(found, target)[1].need(target, dtype, CPU)
    options = LoadOptions(dtype=dtype, device="cpu")
    network, _ = load_dflash(found, options, load_target(path, options))
    assert need.weights == sum(parameter.nbytes for parameter in network.parameters())
    context = DFlash(network).blocks.new_context()
    context.reserve(1)
    assert need.per_token == context.rows(0, 1).nbytes > 0
    assert (need.per_sequence, need.context_length) == (0, network.config.context_length)


@LAW
@given(available=st.integers(1100, 4000))
def test_the_longest_context_fits_and_one_more_token_does_not(available: int) -> None:
    needs = (TARGET, DRAFT)
    longest = longest_context(needs, available)

    def taken(tokens: int) -> int:
        return sum(need.weights + need.cache(tokens) for need in needs)

    assert 0 <= longest <= TARGET.context_length
    assert longest == 0 or taken(longest) <= available
    assert longest == TARGET.context_length or taken(longest + 1) > available


@pytest.mark.parametrize(
    ("available", "wanted", "level", "said"),
    [
        (1099, None, "FAIL", "Leave the draft model out"),
        (999, None, "FAIL", "smaller model"),
        (1100 + 50 * 12 + 50 * 10 - 1, None, "WARN", "within 99 tokens"),
        (1100 + 50 * 12 + 50 * 10, None, "PASS", ""),
        (1100 + 20 * 12, 20, "PASS", ""),
        (1100 + 20 * 12 - 1, 20, "WARN", "within 19 tokens"),
        (10**6, 10**9, "PASS", ""),
    ],
)
def test_weights_that_do_not_fit_fail_and_a_cache_that_does_not_warns(
    available: int, wanted: int | None, level: str, said: str
) -> None:
    check = check_memory((TARGET, DRAFT), Room(available=available, what="memory"), wanted)
    assert check.level == level
    assert said in check.mend


def test_the_drafter_is_in_the_budget() -> None:
    alone = 1000 + 100 * 10
    assert check_memory((TARGET,), Room(available=alone, what="memory"), None).level == "PASS"
    assert check_memory((TARGET, DRAFT), Room(available=alone, what="memory"), None).level == "WARN"


def test_unknown_free_memory_is_a_warning() -> None:
    assert check_memory((TARGET,), None, None).level == "WARN"


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_free_memory_is_what_linux_calls_available(tmp_path: Path) -> None:
    write(tmp_path, proc__meminfo="MemTotal: 900 kB\nMemFree: 1 kB\nMemAvailable:  500 kB\n")
    room = free_memory(CPU, tmp_path)
    assert room == Room(available=512000, what="memory")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("limit", "expected"), [(300000, 300000 - 200000 + 50000), (10**12, 512000)])
def test_a_control_groups_limit_counts_where_it_is_lower(
    tmp_path: Path, version: int, limit: int, expected: int
) -> None:
    write(tmp_path, proc__meminfo="MemAvailable: 500 kB\n")
    if version == 2:
        folder, names, page = "sys/fs/cgroup", ("memory.max", "memory.current", "memory.stat"), "inactive_file"
    else:
        folder, page = "sys/fs/cgroup/memory", "total_inactive_file"
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")
    (tmp_path / folder).mkdir(parents=True)
    for name, text in zip(names, (str(limit), "200000", f"anon 7\n{page} 50000\n"), strict=True):
        (tmp_path / folder / name).write_text(text)
    room = free_memory(CPU, tmp_path)
    assert room is not None
    assert room.available == expected


def test_a_control_group_without_a_limit_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, proc__meminfo="MemAvailable: 500 kB\n")
    folder = tmp_path / "sys/fs/cgroup"
    folder.mkdir(parents=True)
    for name, text in (("memory.max", "max"), ("memory.current", "1"), ("memory.stat", "inactive_file 0")):
        (folder / name).write_text(text)
    assert free_memory(CPU, tmp_path) == Room(available=512000, what="memory")


def test_where_the_free_part_is_unknown_all_of_it_is_named_so(tmp_path: Path) -> None:
    room = free_memory(CPU, tmp_path)
    assert room is None or "in all" in room.what
    assert free_memory(torch.device("meta"), tmp_path) is None
