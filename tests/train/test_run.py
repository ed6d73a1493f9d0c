"""A run's folder: what it is made of is recorded, and nothing else may go on in it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from tests.factories import TRAINING_LINES
from tests.train.teaching import LENGTH, SHAPE, VOCABULARY, cycles, loaded, make_target

import surefoot
from surefoot.errors import OptionError, SurefootError, TrainingError
from surefoot.loading.loaded import LoadedTarget
from surefoot.train import answers
from surefoot.train.data import pieces_to_answer
from surefoot.train.folder import opened
from surefoot.train.options import DataOptions, DFlashOptions, Pace, Schedule
from surefoot.train.run import Asked, train_dflash
from surefoot.train.texts import read_documents
from surefoot.train.watcher import Report, Watcher

TEXTS = DataOptions(length=LENGTH, held_out=2, prompt_tokens=24, answer_tokens=12)
SCHEDULE = Schedule(steps=4, batch=2, precision="float32")
MASK = VOCABULARY
PACE = Pace(save_every=2, evaluate_every=2, check_prompts=1)


@dataclass
class Stopping(Watcher):
    """Stops a run after so many steps, or answers."""

    steps: int = 10**6
    answers: int = 10**6
    seen: int = 0
    written: int = 0

    def answering(self, done: int, total: int) -> None:
        self.written = done

    def trained(self, report: Report) -> None:
        self.seen = report.step

    def stopping(self) -> bool:
        return self.seen >= self.steps or self.written >= self.answers


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    np.save(tmp_path / "ids.npy", cycles(8).ids)
    out = tmp_path / "out"
    return Asked(data=(tmp_path / "ids.npy",), out=out, texts=TEXTS, schedule=SCHEDULE, shape=SHAPE, pace=PACE)


def test_the_record_says_what_the_drafter_is_made_of(target: LoadedTarget, asked: Asked) -> None:
    folder = train_dflash(target, asked, Watcher())
    record = json.loads((asked.out / "run.json").read_text())
    assert folder.finished
    assert record["options"]["batch"] == 2
    assert record["options"]["anchors"] == SHAPE.anchors
    assert record["target"] == {
        "config_sha256": hashlib.sha256((target.path / "config.json").read_bytes()).hexdigest(),
        "weights_sha256": hashlib.sha256((target.path / "model.safetensors").read_bytes()).hexdigest(),
    }
    assert record["data"]["sequences"] == 6
    assert len(record["data"]["sha256"]) == 64
    assert len(record["losses"]) == record["step"] == record["num_steps"] == 4
    assert [step for step, _ in record["evaluations"]] == [2, 4]
    assert len(record["offline"]["by_position"]) == SHAPE.block_size - 1
    assert record["loop"]["agrees"]
    assert record["provenance"]["packages"]["torch"]
    assert record["parameters"] > 0


def test_the_drafter_in_the_folder_serves_its_target(target: LoadedTarget, asked: Asked) -> None:
    train_dflash(target, asked, Watcher())
    engine = surefoot.load(target.path, asked.out)
    plain = surefoot.load(target.path)
    prompt = cycles(1).ids[0, :12].tolist()
    params = surefoot.SamplingParams(max_tokens=16, ignore_eos=True)
    result = engine.generate(prompt, params)
    assert engine.drafter.method == "dflash"
    assert (result.stats.fallbacks, result.stats.drafted > 0) == (0, True)
    assert result.tokens == plain.generate(prompt, params).tokens


def test_a_run_goes_on_where_it_was_stopped(target: LoadedTarget, asked: Asked) -> None:
    whole = train_dflash(target, replace(asked, out=asked.out.with_name("whole")), Watcher())
    stopped = train_dflash(target, asked, Stopping(steps=1))
    assert not stopped.finished
    assert stopped.record["step"] == 1
    resumed = train_dflash(target, asked, Watcher())
    assert resumed.record["losses"] == whole.record["losses"]
    first, second = (folder.path / "model.safetensors" for folder in (whole, resumed))
    assert first.read_bytes() == second.read_bytes()
    watched = Stopping()
    assert train_dflash(target, asked, watched).finished  # a finished one is not trained again
    assert watched.seen == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda asked: replace(asked, schedule=replace(SCHEDULE, batch=3)), "batch 2, and now batch is 3"),
        (lambda asked: replace(asked, shape=replace(SHAPE, anchors=5)), "anchors 8, and now anchors is 5"),
        (lambda asked: replace(asked, texts=replace(TEXTS, held_out=1)), "held_out 2, and now held_out is 1"),
    ],
)
def test_other_options_do_not_go_on_with_a_run(
    target: LoadedTarget, asked: Asked, change: Callable[[Asked], Asked], message: str
) -> None:
    train_dflash(target, asked, Stopping(steps=1))
    with pytest.raises(OptionError, match=message):
        train_dflash(target, change(asked), Watcher())


def test_neither_do_another_target_or_other_data(target: LoadedTarget, asked: Asked, tmp_path: Path) -> None:
    train_dflash(target, asked, Stopping(steps=1))
    other = loaded(make_other(tmp_path))
    with pytest.raises(OptionError, match="weights_sha256"):
        train_dflash(other, asked, Watcher())
    np.save(asked.data[0], cycles(8, seed=5).ids)
    with pytest.raises(OptionError, match="sha256"):
        train_dflash(target, asked, Watcher())


def make_other(tmp_path: Path) -> Path:
    """The same target but for one weight."""
    path = make_target(tmp_path / "other")
    raw = bytearray((path / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (path / "model.safetensors").write_bytes(raw)
    return path


def test_pace_may_change_on_the_way(target: LoadedTarget, asked: Asked) -> None:
    train_dflash(target, asked, Stopping(steps=1))
    pace = Pace(save_every=1, evaluate_every=1, prefetch=2, check_prompts=0)
    assert train_dflash(target, replace(asked, pace=pace), Watcher()).finished


def test_a_folder_of_something_else_is_left_alone(target: LoadedTarget, asked: Asked) -> None:
    asked.out.mkdir()
    (asked.out / "thesis.txt").write_text("mine")
    with pytest.raises(OptionError, match=r"found thesis.txt in .* and no run.json"):
        train_dflash(target, asked, Watcher())
    assert [file.name for file in asked.out.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_record_that_is_none_is_refused(asked: Asked, content: str) -> None:
    asked.out.mkdir()
    (asked.out / "run.json").write_text(content)
    with pytest.raises(OptionError, match="expected a run's record"):
        opened(asked.out, {}).__enter__()


def test_a_file_or_a_place_without_rights_is_no_folder(target: LoadedTarget, asked: Asked) -> None:
    asked.out.write_text("x")
    with pytest.raises(OptionError, match="found a file"):
        train_dflash(target, asked, Watcher())
    with pytest.raises((TrainingError, OptionError)):
        train_dflash(target, replace(asked, out=asked.out / "below"), Watcher())


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (replace(SHAPE, taps=5), "expected different ones"),
        (replace(SHAPE, tap_layer=(4,)), "from 0 to 3"),
        (replace(SHAPE, tap_layer=(1, 1)), "expected different ones"),
        (replace(SHAPE, mask_token_id=308), "mask_token_id is 308"),
        (replace(SHAPE, mask_token_id=int(cycles(8).ids[0, 0])), "stands for tokens not yet known"),
        (
            replace(SHAPE, heads=3, kv_heads=2),
            r"num_attention_heads is 3 .* equal groups.* Give other",
        ),
        (replace(SHAPE, head_dim=7), "the drafter's head_dim is 7; expected an even number"),
        (replace(SHAPE, init=Path("nowhere")), "nowhere"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_before_the_first_step(
    target: LoadedTarget, asked: Asked, shape: DFlashOptions, message: str
) -> None:
    watcher = Stopping()
    with pytest.raises(SurefootError, match=message):
        train_dflash(target, replace(asked, shape=shape), watcher)
    assert watcher.seen == 0


def test_a_drafter_may_begin_with_another_ones_weights(target: LoadedTarget, asked: Asked) -> None:
    first = train_dflash(target, asked, Watcher())
    begun = replace(asked, out=asked.out.with_name("begun"), shape=replace(SHAPE, init=asked.out))
    slow = replace(begun, schedule=replace(SCHEDULE, steps=1, learning_rate=1e-9))
    second = train_dflash(target, slow, Watcher())
    assert second.record["offline"] == first.record["offline"]
    other = replace(begun, out=asked.out.with_name("other"), shape=replace(SHAPE, init=asked.out, layers=2))
    with pytest.raises(OptionError, match="num_layers is 1, and the drafter to train has 2"):
        train_dflash(target, other, Watcher())


def test_the_mask_is_a_row_beyond_the_tokenizer_else_padding_else_asked_for(
    target: LoadedTarget, asked: Asked, tmp_path: Path
) -> None:
    from surefoot.train.dflash import find_mask_id

    assert find_mask_id(target) == target.tokenizer.vocab_size  # type: ignore[union-attr]  # it has one
    padded = loaded(make_target(tmp_path / "padded", vocab_size=300))
    assert find_mask_id(padded) == 0
    for name, fields in (
        ("none", {"pad_token_id": None}),
        ("end", {"pad_token_id": 2}),
        ("begin", {"pad_token_id": 1}),
    ):
        without = loaded(make_target(tmp_path / name, vocab_size=300, **fields))
        with pytest.raises(OptionError, match="--mask-token-id"):
            find_mask_id(without)


def documents(target: LoadedTarget, tmp_path: Path) -> list[answers.Document]:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": line}) for line in TRAINING_LINES * 6))
    return pieces_to_answer(read_documents([file], target), TEXTS)


def written(target: LoadedTarget, tmp_path: Path, name: str, stop: int = 10**6) -> list[list[int]] | None:
    watcher = Stopping(answers=stop)
    found = answers.answered(
        target,
        documents(target, tmp_path),
        replace(TEXTS, answers="target", greedy_share=0.5),
        seed=3,
        path=tmp_path / name,
        end=MASK,
        watcher=watcher,
    )
    return None if found is None else [document.answer.tolist() for document in found if document.answer is not None]


def test_answers_are_the_targets_own_and_do_not_depend_on_those_beside_them(
    target: LoadedTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = written(target, tmp_path, "whole")
    assert whole is not None
    assert len({tuple(answer) for answer in whole}) > 8
    monkeypatch.setattr(answers, "ROWS", 3)
    assert written(target, tmp_path, "three") == whole
    engine = surefoot.load(target.path)
    greedy = [
        engine.generate(document.prompt.tolist(), surefoot.SamplingParams(max_tokens=12)).tokens
        for document in documents(target, tmp_path)
    ]
    alike = sum(list(tokens) == answer for tokens, answer in zip(greedy, whole, strict=True))
    assert 4 <= alike <= 20  # half of them, give or take; the others are drawn


def test_answers_that_were_written_stand_even_where_the_last_was_cut_off(target: LoadedTarget, tmp_path: Path) -> None:
    whole = written(target, tmp_path, "whole")
    assert written(target, tmp_path, "part", stop=7) is None
    path = tmp_path / "part"
    lines = path.read_bytes().splitlines(keepends=True)
    assert 7 <= len(lines) < 24
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:-3])
    assert written(target, tmp_path, "part") == whole
    assert len(path.read_bytes().splitlines()) == 24


def test_answers_end_before_the_masks_id(target: LoadedTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written before it stands, and the draws of other answers do not change."""
    whole = written(target, tmp_path, "whole")
    assert whole is not None
    said = next(answer[4] for answer in whole if len(answer) > 4)
    monkeypatch.setattr("tests.train.test_run.MASK", said)
    cut = written(target, tmp_path, "cut")
    assert cut == [answer[: answer.index(said)] if said in answer else answer for answer in whole]
    assert cut != whole


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"mask_token_id": 2}, "ends an answer"),
        ({"mask_token_id": 5}, r"npy, row \d+ holds id 5, which stands"),
    ],
)
def test_a_mask_that_cannot_be_one_is_refused_before_the_target_writes(
    target: LoadedTarget, asked: Asked, shape: dict[str, int], message: str
) -> None:
    np.save(asked.data[0], np.resize(np.arange(3, 30), (8, LENGTH)))
    run = replace(asked, texts=replace(TEXTS, answers="target"), shape=replace(SHAPE, **shape))
    with pytest.raises(OptionError, match=message):
        train_dflash(target, run, Watcher())
    assert not (asked.out / "training" / "answers.jsonl").exists()


@pytest.mark.parametrize("line", ["[0, [308]]", "[0, [-1]]", "nonsense", "[99, [1]]", '[0, "x"]', "[0]"])
def test_a_damaged_answer_is_named(target: LoadedTarget, tmp_path: Path, line: str) -> None:
    (tmp_path / "answers").write_text(line + "\n")
    with pytest.raises(TrainingError, match=r"answers:1 "):
        written(target, tmp_path, "answers")


def test_a_run_on_the_targets_own_answers(target: LoadedTarget, asked: Asked) -> None:
    texts = replace(TEXTS, answers="target", held_out=1)
    run = replace(asked, texts=texts, schedule=replace(SCHEDULE, steps=2), pace=replace(PACE, check_prompts=0))
    stopped = train_dflash(target, run, Stopping(answers=2))
    assert "data" not in stopped.record
    assert not stopped.finished
    folder = train_dflash(target, run, Watcher())
    assert folder.finished
    assert folder.record["data"]["learnt"] < folder.record["data"]["tokens"] / 2 + LENGTH  # type: ignore[index]  # a dict


@pytest.mark.parametrize("last", range(6))
def test_a_process_that_ends_while_the_folder_is_made_leaves_one_to_go_on_with(
    last: int, target: LoadedTarget, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter(range(10**6))

    def ending(honest: Callable[..., object]) -> Callable[..., object]:
        def step(*given: object, **named: object) -> object:
            if next(steps) == last:
                raise Killed
            return honest(*given, **named)

        return step

    for name in ("mkdir", "open", "replace", "fsync"):
        monkeypatch.setattr(os, name, ending(getattr(os, name)))
    with pytest.raises(Killed):
        train_dflash(target, asked, Watcher())
    monkeypatch.undo()
    assert train_dflash(target, asked, Watcher()).finished


class Killed(BaseException):
    """Stands for the end of the process."""


def test_answers_do_not_stand_for_other_prompts(target: LoadedTarget, asked: Asked) -> None:
    run = replace(asked, texts=replace(TEXTS, answers="target", held_out=1))
    assert not train_dflash(target, run, Stopping(answers=2)).finished
    np.save(asked.data[0], cycles(8, seed=5).ids)
    with pytest.raises(OptionError, match="now sha256 is"):
        train_dflash(target, run, Watcher())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"texts": replace(TEXTS, length=600)}, "--length is 600, and .* reads 512 tokens"),
        ({"shape": replace(SHAPE, block_size=LENGTH + 1)}, f"no {LENGTH + 1} tokens of an answer in a row"),
    ],
)
def test_sequences_that_cannot_be_read_or_judged_by_are_refused(
    target: LoadedTarget, asked: Asked, change: dict[str, object], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        train_dflash(target, replace(asked, **change), Watcher())  # type: ignore[arg-type]  # fields of its own
