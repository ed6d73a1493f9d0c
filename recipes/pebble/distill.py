"""Trains the draft on what it will meet: the target's own continuations, mixed with real text.

    python -m recipes.pebble.distill --work /path/to/work --sample
    python -m recipes.pebble.distill --work /path/to/work

The first command samples the continuations, the second trains on them. The loss is the KL divergence from the target,
then, over the last part, the total variation distance: one minus it is the acceptance of an ideal coupling.
"""

import argparse
import json
import math
import time
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from recipes.pebble.batches import Mixture, held_out_batches
from recipes.pebble.checkpoint import load_checkpoint, resume_training, save_training
from recipes.pebble.generate import continue_prompts
from recipes.pebble.losses import divergence, variation
from recipes.pebble.network import DRAFT, TARGET, Network, build_network
from recipes.pebble.optimizer import build_optimizers
from recipes.pebble.prepare import MAX_POSITIONS
from recipes.pebble.train import COMPARED_LENGTH, default_device, held_out_loss
from torch import Tensor

PROMPT_LENGTHS = (32, 96, 160, 256)
TEMPERATURES = (0.0, 0.8, 0.8, 0.8, 1.0)
WINDOW = 512
VARIATION_TEMPERATURE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The schedule: learning rates fall linearly to zero; shares are of the windows of real text."""

    steps: int
    sampled_windows: int = 96
    real_rows: int = 8
    variation_share: float = 0.4
    warmup_steps: int = 50
    matrix_lr: float = 0.02
    vector_lr: float = 0.003
    weight_decay: float = 0.01
    shares: dict[str, float] = field(default_factory=lambda: {"packages": 0.65, "code": 0.30, "test": 0.05})
    seed: int = 21

    def lr_factor(self, step: int) -> float:
        """Returns the share of the full learning rate."""
        return min(1.0, (step + 1) / self.warmup_steps) * (self.steps - step) / self.steps

    def uses_variation(self, step: int) -> bool:
        """Returns whether this step's loss is the total variation distance instead of KL."""
        return step >= self.steps * (1 - self.variation_share)


def load_target(work: Path, device: torch.device) -> Network:
    """Returns the trained target of the work folder.

    Raises FileNotFoundError when it was not trained yet.
    """
    state = load_checkpoint(work / "train.pt")
    if state is None:
        raise FileNotFoundError(f"no train.pt in {work}; run recipes.pebble.train first")
    network = Network(TARGET).to(device)
    network.load_state_dict(state["network"])  # type: ignore[arg-type]  # written by `train`
    return network.requires_grad_(False)


def sample(
    target: Network, prompts: Mixture, plan: Plan, *, windows: int, rows: int, device: torch.device
) -> np.ndarray:
    """Returns at least `windows` windows [N, WINDOW] of real prompts continued by the target, `rows` at once."""
    random = torch.Generator(device).manual_seed(plan.seed)
    batches = []
    for index in range(math.ceil(windows / rows)):
        length = PROMPT_LENGTHS[index % len(PROMPT_LENGTHS)]
        temperature = TEMPERATURES[index % len(TEMPERATURES)]
        start = prompts.batch(rows, WINDOW, plan.shares)[:, :length].to(device)
        continued = continue_prompts(target, start, WINDOW - length, temperature, random)
        batches.append(continued.cpu().numpy().astype(np.uint16))
    return np.concatenate(batches)


@lru_cache(maxsize=2)
def shuffled(count: int, seed: int, epoch: int) -> np.ndarray:
    """Returns an order of `count` things, another one in each epoch."""
    return np.random.default_rng([seed, epoch]).permutation(count)


class Run:
    """The frozen target, the draft, its optimizers and the position in the sampled windows."""

    def __init__(self, work: Path, plan: Plan, device: torch.device) -> None:
        self.path, self.plan, self.device = work / "distill.pt", plan, device
        self.target = load_target(work, device)
        self.network = build_network(DRAFT, plan.seed).to(device)
        self.optimizers = build_optimizers(
            self.network, matrix_lr=plan.matrix_lr, vector_lr=plan.vector_lr, weight_decay=plan.weight_decay
        )
        self.sampled = np.load(work / "sampled.npy")
        self.mixture = Mixture.read(work, tuple(plan.shares), plan.seed)
        self.losses = {
            "kl": torch.compile(self._divergence, dynamic=False),
            "variation": torch.compile(self._variation, dynamic=False),
        }
        self.step = 0

    def save(self) -> None:
        """Writes the checkpoint."""
        save_training(self.path, self.network, self.optimizers, self.mixture, {"step": self.step})

    def resume(self) -> None:
        """Continues from the checkpoint when there is one."""
        state = resume_training(self.path, self.network, self.optimizers, self.mixture)
        if state is not None:
            self.step = state["step"]

    def batch(self) -> Tensor:
        """Returns token ids [rows, MAX_POSITIONS]: sampled windows, packed in each epoch's order, and real text."""
        plan, count = self.plan, len(self.sampled)
        first = self.step * plan.sampled_windows
        places = (divmod(position, count) for position in range(first, first + plan.sampled_windows))
        chosen = self.sampled[[shuffled(count, plan.seed, epoch)[index] for epoch, index in places]]
        sampled = torch.from_numpy(chosen.astype(np.int64)).view(-1, MAX_POSITIONS)
        real = self.mixture.batch(plan.real_rows, MAX_POSITIONS, plan.shares)[:, :MAX_POSITIONS]
        return torch.cat([sampled, real])

    def _logits(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(ids.device.type, torch.bfloat16):
            with torch.no_grad():
                target = self.target.logits(ids)
            return target, self.network.logits(ids)

    def _divergence(self, ids: Tensor) -> Tensor:
        return divergence(*self._logits(ids))

    def _variation(self, ids: Tensor) -> Tensor:
        return variation(*self._logits(ids), VARIATION_TEMPERATURE)

    def train_step(self) -> tuple[str, Tensor]:
        """Takes one step; returns its loss's name and the loss, still on the device."""
        plan, factor = self.plan, self.plan.lr_factor(self.step)
        for optimizer, lr in zip(self.optimizers, (plan.matrix_lr, plan.vector_lr), strict=True):
            optimizer.param_groups[0]["lr"] = lr * factor
        name = "variation" if plan.uses_variation(self.step) else "kl"
        loss = self.losses[name](self.batch().to(self.device))
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return name, loss.detach()


def train(run: Run, work: Path, *, log_every: int, save_every: int) -> None:
    """Runs to the last step, logging the last loss every `log_every` steps as a JSON line in `distill.jsonl`.

    Raises FloatingPointError when the loss is not finite.
    """
    started = time.monotonic()
    held_out = held_out_batches(work / "held_out.npz", COMPARED_LENGTH, rows=8)
    with (work / "distill.jsonl").open("a", encoding="utf-8") as log:
        while run.step < run.plan.steps:
            name, loss = run.train_step()
            last = run.step == run.plan.steps
            if run.step % log_every == 0 or last:
                value = loss.item()
                if not math.isfinite(value):
                    raise FloatingPointError(f"loss {value} at step {run.step}; the last checkpoint is sound")
                record = {"step": run.step, name: round(value, 4), "seconds": round(time.monotonic() - started)}
                if last:
                    record["held_out_loss"] = round(held_out_loss(run.network, held_out, run.device), 4)
                print(json.dumps(record), file=log, flush=True)
            if run.step % save_every == 0 or last:
                run.save()


def main() -> None:
    """Samples or trains."""
    parser = argparse.ArgumentParser(description="Distil pebble-draft from pebble.")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--sample", action="store_true", help="sample the continuations, do not train")
    parser.add_argument("--windows", type=int, default=98_304, help="how many to sample")
    parser.add_argument("--rows", type=int, default=8192, help="windows to sample at once")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--device", default=default_device())
    options = parser.parse_args()
    plan, device = Plan(steps=options.steps), torch.device(options.device)
    if options.sample:
        prompts = Mixture.read(options.work, tuple(plan.shares), plan.seed + 1)
        target = load_target(options.work, device)
        sampled = sample(target, prompts, plan, windows=options.windows, rows=options.rows, device=device)
        np.save(options.work / "sampled.npy", sampled)
        print(f"{len(sampled)} windows of {WINDOW} tokens")
        return
    run = Run(options.work, plan, device)
    run.resume()
    train(run, options.work, log_every=options.log_every, save_every=500)


if __name__ == "__main__":
    main()
