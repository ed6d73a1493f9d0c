"""Finishes the draft on what it will meet: the target's own continuations, mixed with library text.

    python -m recipes.pebble.distill --work /path/to/work --sample
    python -m recipes.pebble.distill --work /path/to/work --steps 700

The first command samples the continuations, the second trains on them. The loss is the KL divergence from the target,
then, over the last part, the total variation distance: one minus it is the acceptance of an ideal coupling.
"""

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from recipes.pebble.batches import Source
from recipes.pebble.checkpoint import load_checkpoint, save_checkpoint
from recipes.pebble.generate import continue_prompts
from recipes.pebble.losses import tied_distance
from recipes.pebble.network import DRAFT, TARGET, Network
from recipes.pebble.optimizer import Muon
from torch import Tensor

PROMPT_LENGTHS = (32, 96, 160)
WINDOW = 288
SAMPLE_ROWS = 256
GREEDY_SHARE = 0.25
TEMPERATURE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The schedule; the learning rate falls linearly to zero."""

    steps: int
    rows: int = 20
    library_rows: int = 8
    variation_share: float = 0.3
    warmup_steps: int = 10
    matrix_lr: float = 0.004
    vector_lr: float = 0.001
    weight_decay: float = 0.0
    seed: int = 21

    def lr_factor(self, step: int) -> float:
        """Returns the share of the full learning rate."""
        return min(1.0, (step + 1) / self.warmup_steps) * (self.steps - step) / self.steps

    def uses_variation(self, step: int) -> bool:
        """Returns whether this step's loss is the total variation distance instead of KL."""
        return step >= self.steps * (1 - self.variation_share)


def load_network(state: dict[str, object], name: str) -> Network:
    """Returns one network of a training checkpoint."""
    network = Network({"target": TARGET, "draft": DRAFT}[name])
    network.load_state_dict(state["networks"][name])  # type: ignore[index]  # written by `train`
    return network


def sample(target: Network, source: Source, seconds: float, seed: int) -> np.ndarray:
    """Returns windows [N, WINDOW] of library prompts continued by the target, as many as fit in `seconds`.

    A quarter of the batches is greedy; the others are sampled at temperature 0.8.
    """
    random = torch.Generator().manual_seed(seed)
    batches, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        prompt = PROMPT_LENGTHS[len(batches) % len(PROMPT_LENGTHS)]
        greedy = len(batches) % round(1 / GREEDY_SHARE) == 0
        windows = np.stack([source.take(WINDOW)[:prompt] for _ in range(SAMPLE_ROWS)])
        prompts = torch.from_numpy(windows.astype(np.int64))
        continued = continue_prompts(target, prompts, WINDOW - prompt, 0.0 if greedy else TEMPERATURE, random)
        batches.append(continued.numpy().astype(np.uint16))
    return np.concatenate(batches)


class Run:
    """The frozen target, the draft, its optimizers and the position in the sampled windows."""

    def __init__(self, work: Path, plan: Plan) -> None:
        self.path, self.plan = work / "distill.pt", plan
        state = load_checkpoint(work / "train.pt")
        if state is None:
            raise FileNotFoundError(f"no train.pt in {work}; run recipes.pebble.train first")
        self.target, self.draft = load_network(state, "target"), load_network(state, "draft")
        matrices = list(self.draft.matrices())
        taken = {id(weight) for weight, _ in matrices}
        vectors = [weight for weight in self.draft.parameters() if id(weight) not in taken]
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            "matrices": Muon(matrices, lr=plan.matrix_lr, weight_decay=plan.weight_decay),
            "vectors": torch.optim.AdamW(vectors, lr=plan.vector_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
        }
        self.sampled = np.load(work / "sampled.npy")
        self.library = Source(work / "code.npz", plan.seed, "library")
        self.compiled = {
            "target": torch.compile(self.target, dynamic=False),
            "draft": torch.compile(self.draft, dynamic=False),
        }
        self.step = 0

    def save(self) -> None:
        """Writes the checkpoint; it holds both networks, so that it exports like one of `train`."""
        networks = {"target": self.target.state_dict(), "draft": self.draft.state_dict()}
        optimizers = {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
        library = self.library.position()
        save_checkpoint(
            self.path, {"networks": networks, "optimizers": optimizers, "library": library, "step": self.step}
        )

    def resume(self) -> None:
        """Continues from the checkpoint when there is one."""
        state = load_checkpoint(self.path)
        if state is None:
            return
        self.draft.load_state_dict(state["networks"]["draft"])  # type: ignore[index]  # written by `save`
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])  # type: ignore[index]  # written by `save`
        self.library.seek(state["library"])  # type: ignore[arg-type]  # written by `save`
        self.step = int(state["step"])  # type: ignore[call-overload]  # written by `save`

    def batch(self) -> Tensor:
        """Returns token ids [rows + library rows, WINDOW]; the sampled windows are shuffled anew in each epoch."""
        first = self.step * self.plan.rows
        indices = []
        for position in range(first, first + self.plan.rows):
            epoch, index = divmod(position, len(self.sampled))
            indices.append(np.random.default_rng([self.plan.seed, epoch]).permutation(len(self.sampled))[index])
        library = [self.library.take(WINDOW)[:WINDOW] for _ in range(self.plan.library_rows)]
        return torch.from_numpy(np.concatenate([self.sampled[indices], np.stack(library)]).astype(np.int64))

    def train_step(self) -> float:
        """Takes one step and returns its loss.

        Raises FloatingPointError when the loss is not finite.
        """
        ids, plan = self.batch(), self.plan
        for optimizer, lr in zip(self.optimizers.values(), (plan.matrix_lr, plan.vector_lr), strict=True):
            optimizer.param_groups[0]["lr"] = lr * plan.lr_factor(self.step)
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                target_BTD = self.compiled["target"](ids)
            draft_BTS = self.compiled["draft"](ids)
        variation = plan.uses_variation(self.step)
        loss = tied_distance(
            draft_BTS.flatten(0, 1),
            self.draft.embedding.weight,
            target_BTD.flatten(0, 1),
            self.target.embedding.weight.detach(),
            TEMPERATURE if variation else 1.0,
            variation,
        )
        loss.backward()
        if not math.isfinite(loss.item()):
            raise FloatingPointError(f"loss {loss.item()} at step {self.step}; the last checkpoint is sound")
        for optimizer in self.optimizers.values():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.item()


def train(run: Run, work: Path, log_every: int = 10, save_every: int = 50) -> None:
    """Runs to the last step, logging one JSON line every `log_every` steps to `distill.jsonl`."""
    started, losses = time.monotonic(), []
    with (work / "distill.jsonl").open("a", encoding="utf-8") as log:
        while run.step < run.plan.steps:
            losses.append(run.train_step())
            if run.step % log_every == 0:
                name = "variation" if run.plan.uses_variation(run.step - 1) else "kl"
                seconds = round(time.monotonic() - started)
                log.write(json.dumps({"step": run.step, name: round(np.mean(losses), 4), "seconds": seconds}) + "\n")
                log.flush()
                losses = []
            if run.step % save_every == 0:
                run.save()
    run.save()


def main() -> None:
    """Samples or trains."""
    parser = argparse.ArgumentParser(description="Distil pebble-draft on the target's own text.")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--sample", action="store_true", help="sample the continuations, do not train")
    parser.add_argument("--sample-seconds", type=float, default=190.0)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    plan = Plan(steps=options.steps)
    if options.sample:
        state = load_checkpoint(options.work / "train.pt")
        if state is None:
            raise FileNotFoundError(f"no train.pt in {options.work}; run recipes.pebble.train first")
        prompts = Source(options.work / "code.npz", plan.seed, "prompts")
        windows = sample(load_network(state, "target"), prompts, options.sample_seconds, plan.seed)
        np.save(options.work / "sampled.npy", windows)
        print(f"{len(windows)} windows of {WINDOW} tokens")
        return
    run = Run(options.work, plan)
    run.resume()
    train(run, options.work)


if __name__ == "__main__":
    main()
