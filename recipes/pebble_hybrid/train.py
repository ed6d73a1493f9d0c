"""Second part of the hybrid's training: end to end, after the dense model's laws and the text.

    python -m recipes.pebble_hybrid.train --work /path/to/work

Starts from the mixers' checkpoint and resumes from its own; both are in the work folder. The learning rate decays
linearly to zero over `--total-steps`, the last of which take longer windows. SIGTERM ends the run after a step and
saves.
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
from recipes.pebble.checkpoint import load_checkpoint, resume_training, save_training
from recipes.pebble.export import load_exported
from recipes.pebble.optimizer import Muon
from recipes.pebble.prepare import BUNDLE
from recipes.pebble_hybrid.losses import distillation
from recipes.pebble_hybrid.mixers import CHECKPOINT as MIXERS
from recipes.pebble_hybrid.network import HYBRID, Hybrid
from torch import Tensor

CHECKPOINT = "hybrid.pt"
COMPARED_LENGTH = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The schedule: steps of `rows` windows of `length`, the last `long_steps` of the same tokens in longer windows."""

    total_steps: int
    rows: int = 8
    length: int = 256
    long_steps: int = 0
    long_length: int = 1024
    warmup_steps: int = 20
    mixer_lr: float = 0.003
    feed_forward_lr: float = 0.0001
    vector_lr: float = 0.0005
    teacher_share: float = 0.8
    shares: dict[str, float] = field(default_factory=lambda: {"packages": 0.70, "code": 0.25, "test": 0.05})
    seed: int = 41

    def lr_factor(self, step: int) -> float:
        """Returns the share of the full learning rate."""
        return max(0.0, min(1.0, (step + 1) / self.warmup_steps, (self.total_steps - step) / self.total_steps))

    def shape(self, step: int) -> tuple[int, int]:
        """Returns the rows and the length of this step's windows."""
        if step < self.total_steps - self.long_steps:
            return self.rows, self.length
        return max(1, self.rows * self.length // self.long_length), self.long_length


class Run:
    """The dense teacher, the hybrid, its optimizers and the place in the data."""

    def __init__(self, work: Path, plan: Plan) -> None:
        self.path, self.plan = work / CHECKPOINT, plan
        self.teacher = load_exported(BUNDLE / "pebble").requires_grad_(False)
        self.network = Hybrid(HYBRID)
        mixers = load_checkpoint(work / MIXERS)
        if mixers is None:
            raise FileNotFoundError(f"no {MIXERS} in {work}; run recipes.pebble_hybrid.mixers first")
        self.network.load_state_dict(mixers["network"])  # type: ignore[arg-type]  # written by `mixers`
        self.network.embedding.requires_grad_(False)
        matrices = list(self.network.mixer_matrices())
        copied = [weight for layer in self.network.layers for weight in layer.feed_forward.parameters()]
        taken = {id(weight) for weight in (*copied, *(weight for weight, _ in matrices))}
        vectors = [weight for weight in self.network.parameters() if weight.requires_grad and id(weight) not in taken]
        self.optimizers = (
            Muon(matrices, lr=plan.mixer_lr, weight_decay=0.0),
            *(
                torch.optim.AdamW(weights, lr=lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
                for weights, lr in ((copied, plan.feed_forward_lr), (vectors, plan.vector_lr))
            ),
        )
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

    def loss(self, batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the loss, the KL divergence and the cross entropy of token ids [rows, length + 1]."""
        ids, labels = batch[:, :-1], batch[:, 1:].flatten()
        with torch.autocast(ids.device.type, torch.bfloat16):
            with torch.no_grad():
                taught = self.teacher(ids).bfloat16().flatten(0, 1)
            found = self.network(ids).bfloat16().flatten(0, 1)
            embedding = self.network.embedding.weight.bfloat16()
            return distillation(found, taught, embedding, labels, self.plan.teacher_share)

    def train_step(self) -> tuple[float, float]:
        """Takes one step; returns the KL divergence and the cross entropy in nats per token."""
        plan, factor = self.plan, self.plan.lr_factor(self.step)
        rates = (plan.mixer_lr, plan.feed_forward_lr, plan.vector_lr)
        for optimizer, lr in zip(self.optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = lr * factor
        rows, length = plan.shape(self.step)
        loss, kl, entropy = self.loss(self.mixture.batch(rows, length, plan.shares))
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += rows * length
        return kl.item(), entropy.item()


@torch.no_grad()
def held_out_loss(network: Hybrid, batches: list[Tensor]) -> float:
    """Returns the mean cross entropy in nats per token over batches of token ids [rows, length + 1]."""
    total, count = 0.0, 0
    for batch in batches:
        with torch.autocast(batch.device.type, torch.bfloat16):
            logits = network.logits(batch[:, :-1])
        total += torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten()).item() * len(
            batch
        )
        count += len(batch)
    return total / count


def train(run: Run, work: Path, *, log_every: int, evaluate_every: int, save_seconds: float) -> None:
    """Runs to the last step or to a SIGTERM, then saves; logs JSON lines to `hybrid.jsonl`.

    On the way the held-out loss is that of the first windows only, at the end that of all. Raises FloatingPointError
    when the loss is not finite.
    """
    held_out = held_out_batches(work / "held_out.npz", COMPARED_LENGTH, rows=4)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    started = saved = time.monotonic()
    before, recent = run.seconds, []
    with (work / "hybrid.jsonl").open("a", encoding="utf-8") as log:
        while run.step < run.plan.total_steps and not stop.is_set():
            recent.append(run.train_step())
            last = run.step == run.plan.total_steps
            if run.step % log_every == 0 or last:
                kl, entropy = (sum(column) / len(recent) for column in zip(*recent, strict=True))
                if not math.isfinite(kl + entropy):
                    raise FloatingPointError(f"KL {kl}, loss {entropy} at step {run.step}; the checkpoint is sound")
                run.seconds = before + time.monotonic() - started
                record = {
                    "step": run.step,
                    "tokens": run.tokens,
                    "kl": round(kl, 4),
                    "train_loss": round(entropy, 4),
                    "seconds": round(run.seconds),
                }
                if run.step % evaluate_every == 0 or last:
                    record["held_out_loss"] = round(held_out_loss(run.network, held_out if last else held_out[:10]), 4)
                print(json.dumps(record), file=log, flush=True)
                recent = []
            if time.monotonic() - saved > save_seconds:
                run.save()
                saved = time.monotonic()
        run.save()


def main() -> None:
    """Parses the options and trains."""
    parser = argparse.ArgumentParser(description="Train the hybrid end to end.")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--total-steps", type=int, default=500)
    parser.add_argument("--rows", type=int, default=8, help="windows of one update")
    parser.add_argument("--length", type=int, default=256, help="tokens of one window")
    parser.add_argument("--long-steps", type=int, default=60, help="steps of longer windows at the end")
    parser.add_argument("--long-length", type=int, default=1024)
    parser.add_argument("--log-every", type=int, default=5)
    parser.add_argument("--evaluate-every", type=int, default=50)
    options = parser.parse_args()
    plan = Plan(
        total_steps=options.total_steps,
        rows=options.rows,
        length=options.length,
        long_steps=options.long_steps,
        long_length=options.long_length,
    )
    run = Run(options.work, plan)
    run.resume()
    train(run, options.work, log_every=options.log_every, evaluate_every=options.evaluate_every, save_seconds=120.0)


if __name__ == "__main__":
    main()
