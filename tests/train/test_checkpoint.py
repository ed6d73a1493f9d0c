"""A state is whole or not there, and holds all that a run needs."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from surefoot.errors import TrainingError
from surefoot.train.checkpoint import NETWORK, OPTIMIZER, Progress, restore, save, write_atomically, write_json


def parts() -> tuple[nn.Module, torch.optim.AdamW]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    return network, torch.optim.AdamW(network.parameters(), lr=0.1)


def learn(network: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        network(torch.full((1, 3), float(step + 1))).square().sum().backward()
        optimizer.step()


def test_a_restored_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    network, optimizer = parts()
    learn(network, optimizer, 3)
    progress = Progress(seconds=2.5, losses=[1.5, 0.1, 1 / 3], evaluations=[(2, 0.7)])
    save(tmp_path / "state", network, optimizer, progress)
    other, other_optimizer = parts()
    assert restore(tmp_path / "state", other, other_optimizer) == progress
    for pair in ((network, optimizer), (other, other_optimizer)):
        learn(*pair, 2)
    for ours, theirs in zip(network.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_without_the_moments_it_would_not(tmp_path: Path) -> None:
    """The negative control of the test above."""
    network, optimizer = parts()
    learn(network, optimizer, 3)
    save(tmp_path / "state", network, optimizer, Progress())
    other, other_optimizer = parts()
    restore(tmp_path / "state", other, other_optimizer)
    other_optimizer.state.clear()
    for pair in ((network, optimizer), (other, other_optimizer)):
        learn(*pair, 1)
    assert not torch.equal(next(network.parameters()), next(other.parameters()))


def test_where_there_is_no_state_a_run_begins(tmp_path: Path) -> None:
    assert restore(tmp_path / "state", *parts()) == Progress()


def test_a_state_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    save(path, *parts(), Progress(losses=[1.0]))
    whole = path.read_bytes()
    for size in (0, 1, 7, 8, 20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(TrainingError, match="damaged"):
            restore(path, *parts())


def test_a_state_of_another_network_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "state", *parts(), Progress())
    other = nn.Sequential(nn.Linear(3, 5))
    with pytest.raises(TrainingError, match="another run"):
        restore(tmp_path / "state", other, torch.optim.AdamW(other.parameters()))


def test_a_write_that_fails_leaves_the_file_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "file", {"kept": True})
    before = (tmp_path / "file").read_bytes()

    def full(path: Path) -> None:
        path.write_bytes(b"half of")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(TrainingError, match="expected a folder with room"):
        write_atomically(tmp_path / "file", full)
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == before


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it, nothing is cleaned up."""


@pytest.mark.parametrize("seed", range(10))
def test_a_process_that_ends_anywhere_in_a_save_leaves_a_whole_state(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, draws = tmp_path / "state", random.Random(seed)
    network, optimizer = parts()
    save(path, network, optimizer, Progress(losses=[1.0]))
    last = draws.randrange(5)
    steps = iter(range(5))

    def ending(honest: object) -> object:
        def step(*given: object) -> object:
            if next(steps) == last:
                raise Killed
            return honest(*given)  # type: ignore[operator]

        return step

    for name in ("fsync", "replace", "open"):
        monkeypatch.setattr(os, name, ending(getattr(os, name)))
    with pytest.raises(Killed):
        save(path, network, optimizer, Progress(losses=[1.0, 2.0]))
    monkeypatch.undo()
    assert restore(path, *parts()).losses in ([1.0], [1.0, 2.0])
    save(path, network, optimizer, Progress(losses=[3.0]))
    assert restore(path, *parts()).losses == [3.0]


def test_a_state_is_forced_to_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda number: (done.append("force"), fsync(number))[1])
    monkeypatch.setattr(os, "replace", lambda *names: (done.append("rename"), replace(*names))[1])
    write_json(tmp_path / "file", 1)
    assert done == ["force", "rename", "force"]


def test_moments_of_another_shape_are_refused(tmp_path: Path) -> None:
    network, optimizer = parts()
    learn(network, optimizer, 1)
    next(iter(optimizer.state.values()))["exp_avg"] = torch.zeros(7)
    save(tmp_path / "state", network, optimizer, Progress())
    with pytest.raises(TrainingError, match=r"exp_avg\..* has shape \[7\]"):
        restore(tmp_path / "state", *parts())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_a_restored_run_goes_on_on_an_accelerator(tmp_path: Path) -> None:
    """The fused optimizer counts its steps on the device, and reads them from there."""
    network = nn.Linear(4, 4, device="cuda")
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    network(torch.ones(1, 4, device="cuda")).sum().backward()
    optimizer.step()
    save(tmp_path / "state", network, optimizer, Progress(losses=[1.0]))
    restore(tmp_path / "state", network, optimizer)
    assert all(state["step"].is_cuda for state in optimizer.state.values())
    optimizer.step()
    assert all(state["step"] == 2 for state in optimizer.state.values())


def rewritten(path: Path, change: Callable[[dict[str, torch.Tensor], dict[str, str]], None]) -> None:
    """A state that was opened, changed and written again: it is whole, and not what a run left."""
    with safe_open(path, "pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(tensors, metadata)
    save_file(tensors, path, metadata=metadata)


def state_of(path: Path) -> Path:
    network, optimizer = parts()
    learn(network, optimizer, 2)
    save(path, network, optimizer, Progress(losses=[1.0, 0.5]))
    return path


ALTERED: dict[str, Callable[[dict[str, torch.Tensor], dict[str, str]], None]] = {
    "a weight": lambda tensors, _: tensors[f"{NETWORK}0.weight"].view(-1)[3:4].add_(1e-6),
    "a moment": lambda tensors, _: tensors[f"{OPTIMIZER}exp_avg.0.weight"].mul_(2),
    "a moment that is gone": lambda tensors, _: tensors.pop(f"{OPTIMIZER}exp_avg.0.weight"),
    "another dtype": lambda tensors, _: tensors.update({f"{NETWORK}0.bias": tensors[f"{NETWORK}0.bias"].double()}),
    "a loss": lambda _, metadata: metadata.update(state=metadata["state"].replace("0.5", "0.4")),
    "steps": lambda _, metadata: metadata.update(state=metadata["state"].replace("[1.0, 0.5]", "[1.0]")),
}


@pytest.mark.parametrize("what", ALTERED)
def test_a_state_that_is_not_what_was_written_is_refused(what: str, tmp_path: Path) -> None:
    path = state_of(tmp_path / "state")
    rewritten(path, ALTERED[what])
    with pytest.raises(TrainingError, match=r"damaged .*checksum [0-9a-f]{12}, .*Remove the file to begin again"):
        restore(path, *parts())


def test_a_state_of_a_version_without_checksums_goes_on(tmp_path: Path) -> None:
    path = state_of(tmp_path / "state")
    rewritten(path, lambda _, metadata: metadata.pop("sha256"))
    assert restore(path, *parts()).losses == [1.0, 0.5]


def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    path = state_of(tmp_path / "state")
    whole, (network, optimizer) = path.read_bytes(), parts()
    accepted = []
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        try:
            restore(path, network, optimizer)
        except TrainingError:
            continue
        accepted.append(place)
    assert accepted == []


def test_a_checksum_of_another_name_is_no_older_version(tmp_path: Path) -> None:
    path = state_of(tmp_path / "state")
    rewritten(path, lambda _, metadata: metadata.update(sha257=metadata.pop("sha256")))
    with pytest.raises(TrainingError, match="its header has 'sha257'"):
        restore(path, *parts())
