"""The loop: the same numbers however often it is interrupted, and a drafter that has learnt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.factories import make_checkpoint
from tests.train.teaching import VOCABULARY, cycles, lessons, loaded, method_for, trainer_of

from surefoot.errors import SurefootError, TrainingError
from surefoot.loading.loaded import LoadedTarget
from surefoot.protocols import Target
from surefoot.train.data import Split
from surefoot.train.features import FeatureReader, Features, read_ahead
from surefoot.train.options import Pace, Schedule
from surefoot.train.trainer import products_in
from surefoot.train.watcher import Report
from surefoot.types import Capture

SCHEDULE = Schedule(steps=8, batch=4, at_once=2, learning_rate=3e-3, precision="float32")


def losses_of(target: LoadedTarget, path: Path, stops: tuple[int, ...] = (), pace: Pace | None = None) -> list[float]:
    """The losses of a whole run that is stopped after some steps, and begun again by a new process each time."""
    for stop in (*stops, None):
        trainer = trainer_of(target, path, SCHEDULE, pace or Pace(save_every=3, evaluate_every=4))
        finished = trainer.run(lambda report: None, lambda: trainer.progress.step == stop)  # noqa: B023  (called at once)
        assert finished is (stop is None)
    return trainer.progress.losses


def test_a_run_that_was_stopped_and_resumed_has_the_bits_of_one_that_was_not(
    target: LoadedTarget, tmp_path: Path
) -> None:
    whole = losses_of(target, tmp_path / "whole")
    resumed = losses_of(target, tmp_path / "resumed", stops=(1, 2, 6))
    assert len(whole) == SCHEDULE.steps
    assert resumed == whole
    states = [load_file(tmp_path / name) for name in ("whole", "resumed")]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_another_seed_has_other_losses(target: LoadedTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the test above: a place in the data that is not resumed is seen in the losses."""
    whole = losses_of(target, tmp_path / "whole")
    trainer = trainer_of(target, tmp_path / "other", Schedule(steps=8, batch=4, at_once=2, seed=1, learning_rate=3e-3))
    trainer.run(lambda report: None)
    assert trainer.progress.losses[1:] != whole[1:]


def test_prefetching_changes_no_bit(target: LoadedTarget, tmp_path: Path) -> None:
    ahead = losses_of(target, tmp_path / "ahead", stops=(3,), pace=Pace(prefetch=3))
    assert ahead == losses_of(target, tmp_path / "plain", pace=Pace())


def test_what_is_computed_side_by_side_is_what_is_computed_alone(target: LoadedTarget, tmp_path: Path) -> None:
    found = []
    for at_once in (1, 3, 4):
        schedule = Schedule(steps=2, batch=4, at_once=at_once, precision="float32")
        trainer = trainer_of(target, tmp_path / str(at_once), schedule)
        trainer.run(lambda report: None)
        found.append(trainer.progress.losses)
    np.testing.assert_allclose(found[1:], [found[0], found[0]], rtol=1e-5)


def test_a_tiny_drafter_learns_sequences_by_heart(target: LoadedTarget, tmp_path: Path) -> None:
    """32 sequences that go round in circles: what follows is in the context, and a block of 3 drafts is all right."""
    train = cycles(32)
    split = Split(train=train, held_out=train.part(0, 8), digest="")
    schedule = Schedule(steps=200, batch=8, at_once=8, learning_rate=0.02, warmup=0.1, precision="float32")
    trainer = trainer_of(target, tmp_path / "state", schedule, Pace(save_every=1000, evaluate_every=1000), split, 24)
    before = trainer.acceptance().accepted
    reports: list[Report] = []
    assert trainer.run(reports.append)
    assert before < 0.2
    assert trainer.acceptance().accepted > 2.4
    assert reports[-1].accepted == pytest.approx(trainer.acceptance().accepted)
    assert reports[-1].loss < reports[0].loss / 4


def test_a_loss_that_is_not_finite_stops_the_run_with_its_step(
    target: LoadedTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(target, tmp_path / "state", SCHEDULE, Pace(save_every=2))
    honest = trainer._method.loss

    def breaking(lesson: object, features: Features) -> torch.Tensor:
        loss: torch.Tensor = honest(lesson, features)
        return loss * float("nan") if trainer.progress.step == 5 else loss

    monkeypatch.setattr(trainer._method, "loss", breaking)
    with pytest.raises(TrainingError, match="step 6: the loss is nan"):
        trainer.run(lambda report: None)
    sound = trainer_of(target, tmp_path / "state", SCHEDULE)
    assert sound.progress.step == 4
    assert all(parameter.isfinite().all() for parameter in sound._method.network.parameters())


def test_a_gradient_that_is_not_finite_stops_the_run_too(
    target: LoadedTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(target, tmp_path / "state", SCHEDULE)
    weight = next(iter(trainer._method.network.parameters()))
    weight.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(TrainingError, match=r"step 1: .* its gradient (nan|inf)"):
        trainer.run(lambda report: None)
    assert not (tmp_path / "state").exists()


def test_gradients_are_clipped(target: LoadedTarget, tmp_path: Path) -> None:
    norms = []
    for clip in (1e-3, 1e6):
        trainer = trainer_of(target, tmp_path / str(clip), Schedule(steps=1, batch=2, clip=clip))
        trainer.run(lambda report: None)
        norms.append(torch.stack([p.grad.norm() for p in trainer._method.network.parameters()]).norm().item())  # type: ignore[union-attr]
    assert norms[0] == pytest.approx(1e-3, rel=1e-3)
    assert norms[1] > 2e-3


def test_the_rate_rises_then_falls_along_a_cosine_to_nothing() -> None:
    schedule = Schedule(steps=100, warmup=0.1, learning_rate=2.0)
    rates = [schedule.rate_at(step, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([0.2 * (step + 1) for step in range(10)])
    assert rates[10] == pytest.approx(2.0)
    assert rates[55] == pytest.approx(1.0)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0 < rates[-1] < 0.01


def test_epochs_become_steps() -> None:
    assert Schedule(epochs=3, batch=8).num_steps(20) == 8
    assert Schedule(epochs=3, batch=8, steps=5).num_steps(20) == 5


def test_features_are_the_targets_and_may_be_learnt_from(target: LoadedTarget) -> None:
    ids = cycles(3).ids
    capture = Capture(layers=(2, 0), final=True)
    features = FeatureReader(target.model, capture).read(ids)
    for row, tokens in enumerate(ids.tolist()):
        ((_, out),) = target.model.prefill(tokens, target.model.new_cache(len(tokens)), capture)
        assert torch.equal(features.layers[row], torch.cat(out.layers, -1))
        assert features.final is not None
        assert torch.equal(features.final[row], out.final)  # type: ignore[arg-type]  # it was asked for
    weight = torch.ones(64, 1, requires_grad=True)
    (features.layers @ weight).sum().backward()  # keeps the features; inference tensors would refuse
    assert weight.grad is not None


def test_each_sequence_of_a_hybrid_begins_from_an_empty_state(tmp_path: Path) -> None:
    """Its cache serves one sequence after the other, and its recurrent state must not reach the next."""
    target = loaded(make_checkpoint(tmp_path / "hybrid", "qwen3_5", vocab_size=VOCABULARY)).model
    ids, capture = cycles(3).ids, Capture(layers=(0, 1))
    reader = FeatureReader(target, capture)
    for rows in (ids, ids[::-1].copy(), ids[:, :20].copy()):
        for row, tokens in enumerate(rows.tolist()):
            ((_, out),) = target.prefill(tokens, target.new_cache(len(tokens)), capture)
            assert torch.equal(reader.read(rows).layers[row], torch.cat(out.layers, -1))


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_an_error_while_reading_ahead_comes_to_its_batch(target: LoadedTarget, ahead: int) -> None:
    good = cycles(1).ids
    bad = good + 10**6
    found: list[Features] = []
    reader = FeatureReader(target.model, Capture(layers=(0,)))
    with pytest.raises(SurefootError, match="token"):
        found.extend(read_ahead(reader, iter((good, good, bad)), ahead))
    assert len(found) == 2


def test_precision_is_as_said_or_what_the_device_computes() -> None:
    cpu = torch.device("cpu")
    assert products_in("float32", cpu) == torch.float32
    assert products_in("bfloat16", cpu) == torch.bfloat16
    assert products_in("auto", torch.device("meta")) == torch.float32


def test_half_width_products_train_alike(target: LoadedTarget) -> None:
    split = lessons()
    losses = []
    for dtype in (torch.float32, torch.bfloat16):
        method = method_for(target)
        method._dtype, method._head = dtype, method._head.to(dtype)
        lesson = method.lesson(split.train.part(0, 2), [np.random.default_rng(i) for i in range(2)])
        loss = method.loss(lesson, FeatureReader(target.model, method.capture).read(split.train.ids[:2]))
        loss.backward()
        losses.append(loss.item())
        assert method.network.fc.weight.dtype == torch.float32
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


class SlowTarget:
    """A target that takes its time, and notices who else is using it."""

    def __init__(self, target: Target) -> None:
        self._target, self.inside, self.most = target, 0, 0

    def prefill(self, *given: Any) -> Iterator[Any]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        sleep(0.01)
        yield from self._target.prefill(*given)
        self.inside -= 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


def test_reading_ahead_and_looking_at_what_is_kept_aside_take_turns(target: LoadedTarget) -> None:
    slow = SlowTarget(target.model)
    reader = FeatureReader(slow, Capture(layers=(0,)))  # type: ignore[arg-type]  # the rest is the target's
    rows = cycles(6).ids
    for _ in read_ahead(reader, (rows[index : index + 1] for index in range(6)), 3):
        reader.read(rows[:1])
    assert slow.most == 1
