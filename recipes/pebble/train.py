"""Trains the target and, in the same steps, the draft that is distilled from it.

    python -m recipes.pebble.train --work /path/to/work --total-steps 1920

Resumes from the last checkpoint in the work folder. `--total-steps` may change on the way: the learning rate decays
linearly to zero over the last `--decay-steps` of them. SIGTERM ends the run after a step and saves.
"""

import argparse
import json
import math
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from recipes.pebble.batches import Mixture, Source, held_out_batches
from recipes.pebble.checkpoint import load_checkpoint, save_checkpoint
from recipes.pebble.losses import tied_losses
from recipes.pebble.network import DRAFT, TARGET, Network, build_network
from recipes.pebble.optimizer import Muon
from recipes.pebble.prepare import MAX_POSITIONS
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The schedule of a run; lengths are in steps unless they say otherwise."""

    total_steps: int
    decay_steps: int
    warmup_steps: int = 30
    first_batch_tokens: int = 4096
    batch_tokens: int = 8192
    first_steps: int = 380
    length: int = MAX_POSITIONS
    test_share: float = 0.2
    decay_test_share: float = 0.2
    matrix_lr: float = 0.006
    vector_lr: float = 0.001
    weight_decay: float = 0.3
    seed: int = 20

    def lr_factor(self, step: int) -> float:
        """Returns the share of the full learning rate: warm-up, plateau, linear decay to zero.

        The first, smaller batches take a rate lower by the root of their size.
        """
        ramp = min(1.0, (step + 1) / self.warmup_steps, (self.total_steps - step) / self.decay_steps)
        return max(0.0, ramp) * math.sqrt(self.tokens(step) / self.batch_tokens)

    def tokens(self, step: int) -> int:
        """Returns the tokens of one update: few at first, when progress is bound by updates rather than noise."""
        return self.first_batch_tokens if step < self.first_steps else self.batch_tokens

    def tests(self, step: int) -> float:
        """Returns the share of test code, low once the learning rate decays."""
        return self.decay_test_share if step >= self.total_steps - self.decay_steps else self.test_share


class Run:
    """The networks, their optimizers and the place in the data: everything that a checkpoint holds."""

    def __init__(self, work: Path, plan: Plan) -> None:
        self.path = work / "train.pt"
        self.plan = plan
        self.networks = {"target": build_network(TARGET, plan.seed), "draft": build_network(DRAFT, plan.seed + 1)}
        self.compiled = {name: torch.compile(net, dynamic=False) for name, net in self.networks.items()}
        networks = self.networks.values()
        matrices = [pair for network in networks for pair in network.matrices()]
        taken = {id(weight) for weight, _ in matrices}
        vectors = [weight for network in networks for weight in network.parameters() if id(weight) not in taken]
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            "matrices": Muon(matrices, lr=plan.matrix_lr, weight_decay=plan.weight_decay),
            "vectors": torch.optim.AdamW(vectors, lr=plan.vector_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
        }
        self.mixture = Mixture(
            code=Source(work / "code.npz", plan.seed, "code"), test=Source(work / "test.npz", plan.seed, "test")
        )
        self.step, self.tokens, self.seconds = 0, 0, 0.0

    def save(self) -> None:
        """Writes the checkpoint."""
        state: dict[str, object] = {
            "networks": {name: network.state_dict() for name, network in self.networks.items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "mixture": self.mixture.state(),
            "counters": (self.step, self.tokens, self.seconds),
        }
        save_checkpoint(self.path, state)

    def resume(self) -> None:
        """Continues from the checkpoint when there is one."""
        state = load_checkpoint(self.path)
        if state is None:
            return
        for name, network in self.networks.items():
            network.load_state_dict(state["networks"][name])  # type: ignore[index]  # written by `save`
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])  # type: ignore[index]  # written by `save`
        self.optimizers["matrices"].param_groups[0]["weight_decay"] = self.plan.weight_decay
        self.mixture.restore(state["mixture"])  # type: ignore[arg-type]  # written by `save`
        self.step, self.tokens, self.seconds = state["counters"]  # type: ignore[misc]  # written by `save`

    def train_step(self) -> tuple[float, float]:
        """Takes one step; returns (the target's cross entropy, the draft's KL), in nats per token.

        Raises FloatingPointError when the loss is not finite.
        """
        plan, tokens = self.plan, self.plan.tokens(self.step)
        for optimizer, lr in zip(self.optimizers.values(), (plan.matrix_lr, plan.vector_lr), strict=True):
            optimizer.param_groups[0]["lr"] = lr * plan.lr_factor(self.step)
        rows = tokens // plan.length
        cross_entropy, divergence = self._losses(self.mixture.batch(rows, plan.length, plan.tests(self.step)))
        (cross_entropy + divergence).backward()
        values = cross_entropy.item(), divergence.item()
        if not all(map(math.isfinite, values)):
            raise FloatingPointError(f"loss {values} at step {self.step}; the last checkpoint is sound")
        for optimizer in self.optimizers.values():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += tokens
        return values

    def _losses(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            target = self.compiled["target"](ids[:, :-1])
            draft = self.compiled["draft"](ids[:, :-1])
        outputs = [network.embedding.weight for network in self.networks.values()]
        labels = ids[:, 1:].flatten()
        return tied_losses(target.flatten(0, 1), outputs[0], draft.flatten(0, 1), outputs[1], labels)


@torch.no_grad()
def held_out_loss(network: Network, batches: list[Tensor]) -> float:
    """Returns the mean cross entropy in nats per token over `batches` of token ids [rows, length + 1]."""
    total, count = 0.0, 0
    for ids in batches:
        with torch.autocast("cpu", torch.bfloat16):
            logits = network.logits(ids[:, :-1])
        labels = ids[:, 1:].flatten()
        total += nn.functional.cross_entropy(logits.float().flatten(0, 1), labels, reduction="sum").item()
        count += labels.numel()
    return total / count


def train(run: Run, work: Path, *, log_every: int, evaluate_every: int, save_seconds: float) -> None:
    """Runs to the last step or to a SIGTERM, then saves; logs a JSON line every `log_every` steps to `train.jsonl`."""
    curve = held_out_batches(work / "held_out.npz", run.plan.length, rows=8)[::4]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    started = saved = window = time.monotonic()
    before, sums, tokens, steps = run.seconds, [0.0, 0.0], run.tokens, run.step
    with (work / "train.jsonl").open("a", encoding="utf-8") as log:
        while run.step < run.plan.total_steps and not stop.is_set():
            losses = run.train_step()
            sums = [total + value for total, value in zip(sums, losses, strict=True)]
            now = time.monotonic()
            run.seconds = before + now - started
            if run.step % log_every == 0:
                record = {
                    "step": run.step,
                    "tokens": run.tokens,
                    "lr": run.plan.matrix_lr * run.plan.lr_factor(run.step - 1),
                    "train_loss": round(sums[0] / (run.step - steps), 4),
                    "draft_kl": round(sums[1] / (run.step - steps), 4),
                    "tokens_per_second": round((run.tokens - tokens) / (now - window)),
                    "seconds": round(run.seconds),
                }
                if run.step % evaluate_every == 0:
                    record["held_out_loss"] = round(held_out_loss(run.networks["target"], curve), 4)
                    record["draft_held_out_loss"] = round(held_out_loss(run.networks["draft"], curve), 4)
                log.write(json.dumps(record) + "\n")
                log.flush()
                sums, tokens, steps, window = [0.0, 0.0], run.tokens, run.step, time.monotonic()
            if now - saved > save_seconds:
                run.save()
                saved = time.monotonic()
        run.save()


def main() -> None:
    """Parses the options and trains."""
    parser = argparse.ArgumentParser(description="Train pebble's target and draft.")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--total-steps", type=int, default=1920)
    parser.add_argument("--decay-steps", type=int, default=960)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    plan = Plan(total_steps=options.total_steps, decay_steps=options.decay_steps)
    run = Run(options.work, plan)
    run.resume()
    train(run, options.work, log_every=10, evaluate_every=200, save_seconds=300.0)


if __name__ == "__main__":
    main()
