"""What is accepted without decoding is what the loop accepts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.train.teaching import SHAPE, cycles, method_for, trainer_of

from surefoot.engine import Engine
from surefoot.loading.loaded import LoadedTarget
from surefoot.train import evaluate
from surefoot.train.data import Split
from surefoot.train.dflash import DFlashMethod
from surefoot.train.evaluate import LoopCheck, acceptance_of, check_loop
from surefoot.train.features import FeatureReader, Features
from surefoot.train.options import Pace, Schedule


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=20))
def test_a_block_counts_its_guesses_before_the_first_wrong_one(rows: list[list[bool]]) -> None:
    runs = [next((place for place, right in enumerate(row) if not right), 4) for row in rows]
    found = acceptance_of(torch.tensor(rows))
    assert found.blocks == len(rows)
    assert found.accepted == pytest.approx(sum(runs) / len(rows))
    assert found.by_position == pytest.approx([sum(run >= k for run in runs) / len(rows) for k in (1, 2, 3, 4)])


def test_no_blocks_accept_nothing() -> None:
    assert acceptance_of(torch.zeros(0, 3, dtype=torch.bool)).as_json() == {
        "blocks": 0,
        "accepted": 0.0,
        "by_position": (0.0, 0.0, 0.0),
    }


def test_rounds_follow_what_is_accepted() -> None:
    correct = torch.tensor([[0, 0], [1, 1], [1, 0], [0, 1], [1, 0], [0, 0], [0, 0]], dtype=torch.bool)
    # Blocks begin at 2 (accepts 2), 5 (accepts 1), 7: the last place has nothing after it.
    assert list(evaluate._rounds(correct, 2, 8)) == [2, 5]
    assert list(evaluate._rounds(correct, 1, 8)) == [1, 2, 5]


@pytest.fixture(scope="module")
def taught(target: LoadedTarget, tmp_path_factory: pytest.TempPathFactory) -> DFlashMethod:
    """A drafter of the answers the target gives: often right, not always."""
    prompts = cycles(24).ids[:, :24]
    engine = Engine(target.model)
    rows = []
    for prompt in prompts.tolist():
        from_target = engine.generate(prompt, evaluate.SamplingParams(max_tokens=24, ignore_eos=True)).tokens
        rows.append([*prompt, *from_target])
    whole = cycles(24)
    train = type(whole)(ids=np.array(rows, dtype=np.int32), learnt=whole.learnt)
    split = Split(train=train, held_out=train.part(0, 4), digest="")
    path = tmp_path_factory.mktemp("taught")
    schedule = Schedule(steps=170, batch=8, at_once=8, learning_rate=0.02, warmup=0.1, precision="float32")
    trainer = trainer_of(target, path / "state", schedule, Pace(evaluate_every=1000), split, 24)
    trainer.run(lambda report: None)
    method = trainer._method
    assert isinstance(method, DFlashMethod)
    method.save(path)
    method.saved = path  # type: ignore[attr-defined]  # for the tests below
    return method


def checked(target: LoadedTarget, method: DFlashMethod) -> LoopCheck:
    engine = Engine(target.model, method.load(method.saved))  # type: ignore[attr-defined]  # see above
    return check_loop(engine, method, FeatureReader(target.model, method.capture), cycles(24), 6)


def test_the_real_loop_takes_the_rounds_that_were_predicted(target: LoadedTarget, taught: DFlashMethod) -> None:
    check = checked(target, taught)
    assert check.prompts == 6
    assert check.tokens == 6 * 23
    assert check.measured > 1.3  # something is accepted, or there would be nothing to compare
    assert check.measured == pytest.approx(check.predicted, abs=0.05)
    assert check.agrees


def shifted(method: DFlashMethod, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions of the context one too high while training."""
    honest = method.network.forward

    def forward(noise: torch.Tensor, own: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        context, places, visible = rest
        return honest(noise, own, context, places + 1, visible)

    monkeypatch.setattr(method.network, "forward", forward)


def other_layers(method: DFlashMethod, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers in the other order while training."""
    honest = method._hidden

    def hidden(blocks: object, features: Features) -> torch.Tensor:
        swapped = torch.cat(features.layers.chunk(2, -1)[::-1], -1)
        return honest(blocks, Features(layers=swapped, final=None))  # type: ignore[arg-type]  # as it came

    monkeypatch.setattr(method, "_hidden", hidden)


@pytest.mark.parametrize("wrong", [shifted, other_layers])
def test_a_drafter_that_sees_otherwise_than_in_training_is_noticed(
    target: LoadedTarget, taught: DFlashMethod, wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong(taught, monkeypatch)  # type: ignore[operator]  # one of the two above
    assert not checked(target, taught).agrees


def test_the_prediction_reads_blocks_at_every_place(target: LoadedTarget) -> None:
    method, row = method_for(target), cycles(1)
    features = FeatureReader(target.model, method.capture).read(row.ids)
    everywhere = method.correct_everywhere(row, features)
    assert everywhere.shape == (row.length - 1, SHAPE.block_size - 1)
    for place in (1, 17, row.length - 2):
        blocks = method._blocks(row, [np.array([place])])
        assert torch.equal(method._right(blocks, features)[0, 0], everywhere[place - 1])


def test_the_folder_is_read_by_transformers(target: LoadedTarget, taught: DFlashMethod, tmp_path: Path) -> None:
    """Its blocks there are those of the network that was trained."""
    from tests.drafters.test_dflash_network import MuseBlocks

    network = method_for(target).network
    network.load_state_dict(taught.network.state_dict())
    theirs = MuseBlocks(network)
    sequence = cycles(1)
    features = FeatureReader(target.model, taught.capture).read(sequence.ids)
    blocks = taught._blocks(sequence, [np.array([20])])
    tokens = torch.tensor([int(sequence.ids[0, 20]), *[taught.config.mask_token_id] * 3])
    with torch.no_grad():
        ours = taught._hidden(blocks, features)[0, 0]
        found = theirs.denoise(features.layers[0, :20].float(), target.model.embed(tokens).float())
    torch.testing.assert_close(ours, found, rtol=0, atol=1e-5)
