"""Files that are whole or not there, and the state of a run in one of them.

A file is written aside, forced to disk and renamed over the old one, so that whatever ends the process leaves the old
file or the new one. The state is safetensors, its numbers as JSON in the header: nothing in it can be executed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from surefoot.errors import TrainingError

NETWORK, OPTIMIZER = "network.", "optimizer."
KEY, CHECKSUM = "state", "sha256"


@dataclass(slots=True, kw_only=True)
class Progress:
    """Where a run stands.

    Attributes:
        seconds: spent on its steps.
        losses: of each step taken, in nats.
        evaluations: the offline acceptance when it was looked at: after how many steps, and what it was.
    """

    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)

    @property
    def step(self) -> int:
        """Steps taken."""
        return len(self.losses)


def aside_of(path: Path) -> Path:
    """Where a file is written before it gets its name; what a killed process left there is no file of anybody."""
    return path.with_name(path.name + ".new")


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Has ``write`` make a file beside ``path``, forces it to disk and renames it over ``path``.

    Raises:
        TrainingError: the file cannot be written; the old one is as it was.
    """
    aside = aside_of(path)
    try:
        write(aside)
        _force(aside)
        os.replace(aside, path)
        _force(path.parent)
    except (OSError, SafetensorError) as fault:
        aside.unlink(missing_ok=True)
        raise TrainingError(
            f"{path} cannot be written ({fault}); expected a folder with room. What was saved there before is whole: "
            "make room, then run the same command again"
        ) from fault


def write_json(path: Path, value: object) -> None:
    """Writes ``value`` as indented JSON, atomically."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    write_atomically(path, lambda aside: _write_text(aside, text))


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _force(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save(path: Path, network: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """Writes all that a run needs to go on from here with the same bits.

    Raises:
        TrainingError: the file cannot be written.
    """
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    tensors = {NETWORK + name: parameter.detach() for name, parameter in network.named_parameters()}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            tensors[f"{OPTIMIZER}{key}.{names[id(parameter)]}"] = value
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    numbers = json.dumps(asdict(progress), allow_nan=False)
    metadata = {KEY: numbers, CHECKSUM: checksum(numbers, stored)}
    write_atomically(path, lambda aside: save_file(stored, aside, metadata=metadata))


def checksum(numbers: str, tensors: Mapping[str, Tensor]) -> str:
    """Sha256 of the numbers and of every tensor's name, dtype, shape and bytes, in hexadecimal digits."""
    sha = hashlib.sha256(numbers.encode())
    for name, tensor in sorted(tensors.items()):
        sha.update(repr((name, tensor.dtype, list(tensor.shape))).encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def restore(path: Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Fills network and optimizer from the file, and says where the run stood; the beginning where there is no file.

    Raises:
        TrainingError: the file is damaged or another run's.
    """
    if not path.exists():
        return Progress()
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
        if unknown := metadata.keys() - {KEY, CHECKSUM}:
            raise ValueError(f"its header has {min(unknown)!r}")
        if metadata.get(CHECKSUM, found := checksum(metadata[KEY], tensors)) != found:
            raise ValueError(f"its content has the checksum {found:.12}, and {metadata[CHECKSUM]:.12} was written")
        numbers = json.loads(metadata[KEY])
        _fill(network, optimizer, tensors)
        return Progress(
            seconds=float(numbers["seconds"]),
            losses=[float(loss) for loss in numbers["losses"]],
            evaluations=[(int(step), float(accepted)) for step, accepted in numbers["evaluations"]],
        )
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as fault:
        raise TrainingError(
            f"{path} is damaged or belongs to another run ({fault}); expected the state this program writes. Remove "
            "the file to begin again, or put a copy of it back"
        ) from fault


def _fill(network: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    parameters = dict(network.named_parameters())
    found = {name.removeprefix(NETWORK): value for name, value in tensors.items() if name.startswith(NETWORK)}
    if found.keys() != parameters.keys():
        raise ValueError(f"it has the weights {sorted(found.keys() ^ parameters.keys())[:3]} where the other has none")
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.shape != found[name].shape:
                raise ValueError(f"{name} has shape {list(found[name].shape)}, not {list(parameter.shape)}")
            parameter.copy_(found[name])
    order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    places = {id(parameter): place for place, parameter in enumerate(order)}
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith(OPTIMIZER):
            key, _, owner = name.removeprefix(OPTIMIZER).partition(".")
            parameter = parameters[owner]
            if value.ndim and value.shape != parameter.shape:
                raise ValueError(f"{name} has shape {list(value.shape)}, not {list(parameter.shape)}")
            state.setdefault(places[id(parameter)], {})[key] = value
    # The optimizer knows what it keeps on the device, and what on the host.
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
