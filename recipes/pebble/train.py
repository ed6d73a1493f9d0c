"""Trains the target.

    python -m recipes.pebble.train --work /path/to/work

Resumes from the last checkpoint in the work folder. The learning rate decays linearly to zero over the last
`--decay-steps` of `--total-steps`; both may change on the way. SIGTERM ends the run after a step and saves.
"""

import argparse
import json
import math
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from recipes.pebble.batches import Mixture, held_out_batches
from recipes.pebble.checkpoint import resume_training, save_training
from recipes.pebble.losses import cross_entropy
from recipes.pebble.network import TARGET, Network, build_network
from recipes.pebble.optimizer import build_optimizers
from recipes.pebble.prepare import MAX_POSITIONS
from torch import Tensor

COMPARED_LENGTH = 512
ROWS = 32
MATRIX_LR, VECTOR_LR = 0.02, 0.004


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The schedule of a run; lengths are in steps unless they say otherwise, shares are of the windows."""

    total_steps: int
    decay_steps: int
    rows: int = ROWS
    length: int = MAX_POSITIONS
    warmup_steps: int = 100
    matrix_lr: float = MATRIX_LR
    vector_lr: float = VECTOR_LR
    weight_decay: float = 0.1
    shares: dict[str, float] = field(default_factory=lambda: {"packages": 0.87, "code": 0.06, "test": 0.07})
    decay_shares: dict[str, float] = field(default_factory=lambda: {"packages": 0.83, "code": 0.11, "test": 0.06})
    seed: int = 20

    def lr_factor(self, step: int) -> float:
        """Returns the share of the full learning rate: warm-up, plateau, linear decay to zero."""
        return max(0.0, min(1.0, (step + 1) / self.warmup_steps, (self.total_steps - step) / self.decay_steps))

    def mixed(self, step: int) -> dict[str, float]:
        """Returns the shares of the sources: more of the standard library once the learning rate decays."""
        return self.decay_shares if step >= self.total_steps - self.decay_steps else self.shares


class Run:
    """The target, its optimizers and the place in the data: everything that a checkpoint holds."""

    def __init__(self, work: Path, plan: Plan, device: torch.device) -> None:
        self.path, self.plan, self.device = work / "train.pt", plan, device
        self.network = build_network(TARGET, plan.seed).to(device)
        self.optimizers = build_optimizers(
            self.network, matrix_lr=plan.matrix_lr, vector_lr=plan.vector_lr, weight_decay=plan.weight_decay
        )
        self.loss = torch.compile(self._loss, dynamic=False)
        self.mixture = Mixture.read(work, tuple(plan.shares), plan.seed)
        self.step, self.tokens, self.seconds = 0, 0, 0.0

    def save(self) -> None:
        """Writes the checkpoint."""
        place: dict[str, object] = {"counters": (self.step, self.tokens, self.seconds)}
        save_training(self.path, self.network, self.optimizers, self.mixture, place)

    def resume(self) -> None:
        """Continues from the checkpoint when there is one."""
        state = resume_training(self.path, self.network, self.optimizers, self.mixture)
        if state is not None:
            self.step, self.tokens, self.seconds = state["counters"]

    def _loss(self, ids: Tensor) -> Tensor:
        with torch.autocast(ids.device.type, torch.bfloat16):
            return cross_entropy(self.network.logits(ids[:, :-1]), ids[:, 1:])

    def train_step(self) -> Tensor:
        """Takes one step; returns the loss in nats per token, still on the device."""
        plan, factor = self.plan, self.plan.lr_factor(self.step)
        for optimizer, lr in zip(self.optimizers, (plan.matrix_lr, plan.vector_lr), strict=True):
            optimizer.param_groups[0]["lr"] = lr * factor
        ids = self.mixture.batch(plan.rows, plan.length, plan.mixed(self.step)).to(self.device)
        loss = self.loss(ids)
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += plan.rows * plan.length
        return loss.detach()


@torch.no_grad()
def held_out_loss(network: Network, batches: list[Tensor], device: torch.device) -> float:
    """Returns the mean cross entropy in nats per token over `batches` of token ids [rows, length + 1]."""
    total, count = 0.0, 0
    for batch in batches:
        ids = batch.to(device)
        with torch.autocast(device.type, torch.bfloat16):
            loss = cross_entropy(network.logits(ids[:, :-1]), ids[:, 1:])
        size = ids[:, 1:].numel()
        total += loss.item() * size
        count += size
    return total / count


def train(run: Run, work: Path, *, log_every: int, evaluate_every: int, save_seconds: float) -> None:
    """Runs to the last step or to a SIGTERM, then saves; logs a JSON line every `log_every` steps to `train.jsonl`.

    Raises FloatingPointError when the loss is not finite.
    """
    held_out = held_out_batches(work / "held_out.npz", COMPARED_LENGTH, rows=8)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    started = saved = window = time.monotonic()
    before, losses = run.seconds, []
    with (work / "train.jsonl").open("a", encoding="utf-8") as log:
        while run.step < run.plan.total_steps and not stop.is_set():
            losses.append(run.train_step())
            last = run.step == run.plan.total_steps
            if run.step % log_every == 0 or last:
                loss = torch.stack(losses).mean().item()
                now = time.monotonic()
                if not math.isfinite(loss):
                    raise FloatingPointError(f"loss {loss} at step {run.step}; the last checkpoint is sound")
                run.seconds = before + now - started
                record = {
                    "step": run.step,
                    "tokens": run.tokens,
                    "lr": run.plan.matrix_lr * run.plan.lr_factor(run.step - 1),
                    "train_loss": round(loss, 4),
                    "tokens_per_second": round(len(losses) * run.plan.rows * run.plan.length / (now - window)),
                    "seconds": round(run.seconds),
                }
                if run.step % evaluate_every == 0 or last:
                    record["held_out_loss"] = round(held_out_loss(run.network, held_out, run.device), 4)
                print(json.dumps(record), file=log, flush=True)
                losses, window = [], time.monotonic()
            if time.monotonic() - saved > save_seconds:
                run.save()
                saved = time.monotonic()
        run.save()


def default_device() -> str:
    """Returns the accelerator's name when there is one, else cpu."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    """Parses the options and trains."""
    parser = argparse.ArgumentParser(description="Train pebble's target.")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--total-steps", type=int, default=15_000)
    parser.add_argument("--decay-steps", type=int, default=8_000)
    parser.add_argument("--rows", type=int, default=ROWS, help="windows of one update")
    parser.add_argument("--length", type=int, default=MAX_POSITIONS, help="tokens of one window")
    parser.add_argument("--matrix-lr", type=float, default=MATRIX_LR)
    parser.add_argument("--vector-lr", type=float, default=VECTOR_LR)
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--evaluate-every", type=int, default=500)
    parser.add_argument("--device", default=default_device())
    options = parser.parse_args()
    plan = Plan(
        total_steps=options.total_steps,
        decay_steps=options.decay_steps,
        rows=options.rows,
        length=options.length,
        matrix_lr=options.matrix_lr,
        vector_lr=options.vector_lr,
    )
    run = Run(options.work, plan, torch.device(options.device))
    run.resume()
    train(run, options.work, log_every=options.log_every, evaluate_every=options.evaluate_every, save_seconds=300.0)


if __name__ == "__main__":
    main()
