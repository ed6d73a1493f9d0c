"""First part of the hybrid's training: each delta mixer learns to give what the attention it replaces gives.

    python -m recipes.pebble_hybrid.mixers --work /path/to/work

All of them learn at once, each on the dense model's own residual stream, so that nothing runs backward but the mixers.
Before the first step their output matrices are fitted by least squares.
Resumes from its checkpoint in the work folder; SIGTERM ends the run after a step and saves.
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
from recipes.pebble.batches import Mixture
from recipes.pebble.checkpoint import resume_training, save_training
from recipes.pebble.export import load_exported
from recipes.pebble.network import Layer as DenseLayer
from recipes.pebble.network import Network, rotary_tables
from recipes.pebble.optimizer import Muon
from recipes.pebble.prepare import BUNDLE
from recipes.pebble_hybrid.convert import convert
from recipes.pebble_hybrid.network import HYBRID, GatedDelta, Hybrid, HybridConfig, Layer
from torch import Tensor, nn

CHECKPOINT = "mixers.pt"
RIDGE = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The schedule; learning rates fall linearly to zero, shares are of the windows."""

    total_steps: int
    rows: int = 8
    length: int = 256
    fitted_batches: int = 6
    warmup_steps: int = 5
    matrix_lr: float = 0.015
    vector_lr: float = 0.004
    shares: dict[str, float] = field(default_factory=lambda: {"packages": 0.75, "code": 0.2, "test": 0.05})
    seed: int = 40

    def lr_factor(self, step: int) -> float:
        """Returns the share of the full learning rate."""
        return max(0.0, min(1.0, (step + 1) / self.warmup_steps, (self.total_steps - step) / self.total_steps))


class Run:
    """The dense model, the hybrid, the optimizers of its mixers and the place in the data."""

    def __init__(self, work: Path, plan: Plan, config: HybridConfig) -> None:
        self.path, self.plan = work / CHECKPOINT, plan
        self.dense = load_exported(BUNDLE / "pebble").requires_grad_(False)
        self.hybrid = convert(self.dense, config, plan.seed)
        mixers = nn.ModuleList(layer.mixer for layer in self.hybrid.layers if isinstance(layer.mixer, GatedDelta))
        wanted = {id(weight) for weight in mixers.parameters()}
        matrices = [pair for pair in self.hybrid.mixer_matrices() if id(pair[0]) in wanted]
        taken = {id(weight) for weight, _ in matrices}
        vectors = [weight for weight in mixers.parameters() if id(weight) not in taken]
        self.optimizers = (
            Muon(matrices, lr=plan.matrix_lr, weight_decay=0.0),
            torch.optim.AdamW(vectors, lr=plan.vector_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
        )
        self.mixture = Mixture.read(work, tuple(plan.shares), plan.seed)
        self.step = 0

    def save(self) -> None:
        """Writes the checkpoint."""
        save_training(self.path, self.hybrid, self.optimizers, self.mixture, {"step": self.step})

    def resume(self) -> None:
        """Continues from the checkpoint when there is one, else fits the output matrices."""
        state = resume_training(self.path, self.hybrid, self.optimizers, self.mixture)
        if state is None:
            self.fit_outputs()
        else:
            self.step = state["step"]

    @torch.no_grad()
    def fit_outputs(self) -> None:
        """Sets the mixers' output matrices to the least squares solution over some batches."""
        grams: dict[int, tuple[Tensor, Tensor]] = {}
        for _ in range(self.plan.fitted_batches):
            ids = self.mixture.batch(self.plan.rows, self.plan.length, self.plan.shares)[:, :-1]
            with torch.autocast(ids.device.type, torch.bfloat16):
                passes = attention_passes(self.dense, self.hybrid, ids)
                mixed = {i: self.delta(i).mix(entered)[0].float().flatten(0, 1) for i, (entered, _) in passes.items()}
            for index, (_, given) in passes.items():
                found, wanted = mixed[index], given.float().flatten(0, 1)
                gram, cross = grams.get(index, (0.0, 0.0))
                grams[index] = (gram + found.mT @ found, cross + found.mT @ wanted)
        for index, (gram, cross) in grams.items():
            ridge = RIDGE * gram.diagonal().mean() * torch.eye(len(gram))
            self.delta(index).out.weight.copy_(torch.linalg.solve(gram + ridge, cross).mT)

    def delta(self, index: int) -> GatedDelta:
        """Returns a replaced layer's mixer."""
        layer = self.hybrid.layers[index]
        assert isinstance(layer, Layer)
        assert isinstance(layer.mixer, GatedDelta)
        return layer.mixer

    def train_step(self) -> dict[int, float]:
        """Takes one step; returns each replaced layer's share of the attention's output that is missed.

        Raises FloatingPointError when one is not finite.
        """
        plan, factor = self.plan, self.plan.lr_factor(self.step)
        for optimizer, lr in zip(self.optimizers, (plan.matrix_lr, plan.vector_lr), strict=True):
            optimizer.param_groups[0]["lr"] = lr * factor
        ids = self.mixture.batch(plan.rows, plan.length, plan.shares)[:, :-1]
        missed = {}
        with torch.autocast(ids.device.type, torch.bfloat16):
            for index, (entered, given) in attention_passes(self.dense, self.hybrid, ids).items():
                loss = missed_share(self.delta(index)(entered), given)
                loss.backward()
                missed[index] = loss.item()
        if not all(map(math.isfinite, missed.values())):
            raise FloatingPointError(f"{missed} at step {self.step}; the last checkpoint is sound")
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return missed


@torch.no_grad()
def attention_passes(dense: Network, hybrid: Hybrid, ids_BT: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
    """Returns, of each attention that the hybrid replaces, its normed input and its output [B, T, D]."""
    cos_TE, sin_TE = rotary_tables(ids_BT.shape[1], dense.config.head_size, ids_BT.device)
    x_BTD, passes = dense.embedding(ids_BT), {}
    last = max(index for index in range(len(dense.layers)) if hybrid.config.is_delta(index))
    for index, layer in enumerate(dense.layers):
        assert isinstance(layer, DenseLayer)
        entered = layer.attention_norm(x_BTD)
        given = layer.attention(entered, cos_TE, sin_TE)
        if hybrid.config.is_delta(index):
            passes[index] = (entered, given)
        if index == last:
            break
        x_BTD = x_BTD + given
        x_BTD = x_BTD + layer.feed_forward(layer.feed_forward_norm(x_BTD))
    return passes


def missed_share(found_BTD: Tensor, given_BTD: Tensor) -> Tensor:
    """Returns the squared error over the squared size of what was to be found."""
    given_BTD = given_BTD.float()
    return (found_BTD.float() - given_BTD).square().sum() / given_BTD.square().sum()


def train(run: Run, work: Path, *, log_every: int, save_seconds: float) -> None:
    """Runs to the last step or to a SIGTERM, then saves; logs JSON lines to `mixers.jsonl`."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    started = saved = time.monotonic()
    with (work / "mixers.jsonl").open("a", encoding="utf-8") as log:
        while run.step < run.plan.total_steps and not stop.is_set():
            missed = run.train_step()
            if run.step % log_every == 0 or run.step == run.plan.total_steps:
                layers = {str(index): round(share, 4) for index, share in missed.items()}
                record = {"step": run.step, "missed": layers, "seconds": round(time.monotonic() - started)}
                print(json.dumps(record), file=log, flush=True)
            if time.monotonic() - saved > save_seconds:
                run.save()
                saved = time.monotonic()
        run.save()


def main() -> None:
    """Parses the options and trains."""
    parser = argparse.ArgumentParser(description="Train the hybrid's delta mixers after the attention they replace.")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--total-steps", type=int, default=240)
    parser.add_argument("--rows", type=int, default=8, help="windows of one update")
    parser.add_argument("--length", type=int, default=256, help="tokens of one window")
    parser.add_argument("--log-every", type=int, default=5)
    options = parser.parse_args()
    plan = Plan(total_steps=options.total_steps, rows=options.rows, length=options.length)
    run = Run(options.work, plan, HYBRID)
    run.resume()
    train(run, options.work, log_every=options.log_every, save_seconds=120.0)


if __name__ == "__main__":
    main()
