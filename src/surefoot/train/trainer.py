"""The loop: lessons, losses, steps, states on the disk; the same numbers however often it is interrupted.

All randomness is keyed by the seed and by what it is for, so a state holds no generator: weights, the optimizer's
moments and the number of steps say it all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import Generic

import numpy as np
import torch
from torch import nn

from surefoot.errors import TrainingError
from surefoot.train.checkpoint import restore, save
from surefoot.train.data import Sequences, Split, chosen
from surefoot.train.evaluate import Acceptance, offline_acceptance
from surefoot.train.features import FeatureReader, Features, read_ahead
from surefoot.train.method import LessonT, Method
from surefoot.train.options import Pace, Precision, Schedule
from surefoot.train.watcher import Report

PLACES = 4
"""What a stream of randomness is for; see ``data``."""
BETAS = (0.9, 0.95)


class Trainer(Generic[LessonT]):
    """One run of one method.

    Args:
        method: what is trained.
        reader: shows the target's features of sequences.
        split: what is trained on, and what is kept aside.
        schedule: how long and how fast.
        pace: when it saves and evaluates.
        path: the file its state is kept in; where it exists the run goes on from there.

    Attributes:
        num_steps: steps of the whole run.
        progress: where it stands.
    """

    def __init__(
        self,
        method: Method[LessonT],
        reader: FeatureReader,
        split: Split,
        schedule: Schedule,
        pace: Pace,
        path: Path,
    ) -> None:
        self._method, self._reader, self._split = method, reader, split
        self._schedule, self._pace, self._path = schedule, pace, path
        self.num_steps = schedule.num_steps(len(split.train))
        device = next(method.network.parameters()).device
        self._optimizer = torch.optim.AdamW(
            method.network.parameters(),
            lr=schedule.learning_rate,
            betas=BETAS,
            weight_decay=schedule.weight_decay,
            fused=device.type in ("cpu", "cuda"),
        )
        self.progress = restore(path, method.network, self._optimizer)

    def run(
        self,
        watch: Callable[[Report], None],
        stopping: Callable[[], bool] = lambda: False,
        saved: Callable[[], None] = lambda: None,
    ) -> bool:
        """Trains to the last step, or until ``stopping``; whether the last step was reached.

        ``saved`` is called whenever the state was written; that is so at the end, too.

        Raises:
            TrainingError: the loss or its gradient is not finite, or the state cannot be saved. The last state on the
                disk is sound.
        """
        begun, before = monotonic(), self.progress.seconds
        with closing(self._features()) as features:
            while self.progress.step < self.num_steps:
                self.progress.losses.append(self._learn(self.progress.step, features))
                done = self.progress.step
                is_last = done == self.num_steps
                if is_last or done % self._pace.evaluate_every == 0:
                    self.progress.evaluations.append((done, self.acceptance().accepted))
                self.progress.seconds = before + monotonic() - begun
                watch(self._report())
                stop = stopping()
                if is_last or stop or done % self._pace.save_every == 0:
                    self.save()
                    saved()
                if stop:
                    break
        return self.progress.step == self.num_steps

    def save(self) -> None:
        """Writes the state."""
        save(self._path, self._method.network, self._optimizer, self.progress)

    def acceptance(self) -> Acceptance:
        """The offline acceptance of the network as it stands."""
        return offline_acceptance(self._method, self._reader, self._split.held_out, self._schedule.seed)

    def _report(self) -> Report:
        evaluations = self.progress.evaluations
        return Report(
            step=self.progress.step,
            num_steps=self.num_steps,
            loss=self.progress.losses[-1],
            accepted=evaluations[-1][1] if evaluations else None,
            evaluated=bool(evaluations) and evaluations[-1][0] == self.progress.step,
        )

    def _parts(self, step: int) -> list[tuple[Sequences, list[np.random.Generator]]]:
        """The sequences of a step, as they are computed side by side, and a stream for each."""
        schedule, train = self._schedule, self._split.train
        indices = chosen(len(train), step, schedule.batch, schedule.seed)
        streams = [np.random.default_rng([PLACES, schedule.seed, step, place]) for place in range(schedule.batch)]
        starts = range(0, schedule.batch, schedule.at_once)
        stops = (min(start + schedule.at_once, schedule.batch) for start in starts)
        return [
            (train.rows(indices[start:stop]), streams[start:stop]) for start, stop in zip(starts, stops, strict=True)
        ]

    def _features(self) -> Generator[Features, None, None]:
        """The features of all parts of all steps still to be taken."""
        steps = range(self.progress.step, self.num_steps)
        batches = (part.ids for step in steps for part, _ in self._parts(step))
        yield from read_ahead(self._reader, batches, self._pace.prefetch)

    def _learn(self, step: int, features: Iterator[Features]) -> float:
        """Takes one step; its loss."""
        network, schedule = self._method.network, self._schedule
        lessons = [self._method.lesson(part, streams) for part, streams in self._parts(step)]
        weight = sum(lesson.weight for lesson in lessons)
        self._optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for lesson in lessons:
            seen = next(features)
            if lesson.weight > 0:
                loss = self._method.loss(lesson, seen) / weight
                loss.backward()
                total += loss.item()
        norm = nn.utils.clip_grad_norm_(network.parameters(), schedule.clip).item()
        if not (math.isfinite(total) and math.isfinite(norm)):
            raise TrainingError(
                f"step {step + 1}: the loss is {total} and the norm of its gradient {norm}; expected numbers. The last "
                "state on the disk is sound: train anew with a lower --learning-rate, or in --precision float32"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = schedule.rate_at(step, self.num_steps)
        self._optimizer.step()
        return total


def products_in(precision: Precision, device: torch.device) -> torch.dtype:
    """The dtype of the matrix products: as said, or bf16 where the device computes it natively."""
    if precision != "auto":
        return torch.bfloat16 if precision == "bfloat16" else torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    native = device.type == "cpu" and torch.cpu.get_capabilities().get("avx512_bf16", False)
    return torch.bfloat16 if native else torch.float32
