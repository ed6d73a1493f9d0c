"""A run's folder, and the run from its options to a drafter that was tried in the real loop.

The drafter lies in the folder in its public layout; ``run.json`` says what it was made of; ``training/`` holds what the
run needs to go on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from surefoot.drafters.dflash.config import to_json
from surefoot.engine import Engine
from surefoot.errors import OptionError, TrainingError
from surefoot.loading.loaded import LoadedTarget
from surefoot.loading.shards import stored_tensors
from surefoot.provenance import Provenance
from surefoot.train.answers import answered
from surefoot.train.checkpoint import aside_of, write_json
from surefoot.train.data import Split, digest_of, pack, pieces_to_answer
from surefoot.train.dflash import DFlashMethod
from surefoot.train.evaluate import check_loop
from surefoot.train.features import FeatureReader
from surefoot.train.options import DataOptions, DFlashOptions, Pace, Schedule
from surefoot.train.texts import read_documents
from surefoot.train.trainer import Report, Trainer, products_in

RECORD, TRAINING = "run.json", "training"
STATE, ANSWERS = "state.safetensors", "answers.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """All of what a run is asked.

    Attributes:
        data: files and folders to train on.
        out: the folder of the run.
    """

    data: tuple[Path, ...]
    out: Path
    texts: DataOptions
    schedule: Schedule
    shape: DFlashOptions
    pace: Pace

    def identity(self) -> dict[str, object]:
        """What decides the weights that come out, as plain JSON values."""
        options = asdict(self.texts) | asdict(self.schedule) | asdict(self.shape)
        plain: dict[str, object] = json.loads(json.dumps(options, default=str))
        return plain


class Watcher:
    """Sees a run go by; this one looks away. ``stopping`` is asked between steps and answers."""

    def answering(self, done: int, total: int) -> None:
        """So many answers were written."""

    def trained(self, report: Report) -> None:
        """A step was taken."""

    def stopping(self) -> bool:
        """Whether to save and stop."""
        return False


class RunFolder:
    """A folder that belongs to one run.

    Raises:
        OptionError: something else is in it, or a run of other options.
    """

    def __init__(self, path: Path, identity: Mapping[str, object]) -> None:
        self.path = path
        self.record: dict[str, object] = {}
        if path.exists() and not path.is_dir():
            raise OptionError(f"found a file at {path}; expected a new folder, or a run's. Give another --out")
        if (path / RECORD).exists():
            self.record = _read_record(path / RECORD)
            self._check("options", identity)
        elif path.exists() and (others := {file.name for file in path.iterdir()} - {aside_of(path / RECORD).name}):
            raise OptionError(
                f"found {min(others)} in {path} and no {RECORD}; expected a new folder, or a run's. Give another --out"
            )
        self._make(path)
        self.update(options=dict(identity))  # before anything else is in it, so that it is a run's whenever this ends
        self._make(path / TRAINING)
        self.state, self.answers = path / TRAINING / STATE, path / TRAINING / ANSWERS

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.record.get("state") == "finished"

    def update(self, **fields: object) -> None:
        """Adds to the record and writes it."""
        self.record |= fields
        write_json(self.path / RECORD, self.record)

    def hold(self, name: str, found: Mapping[str, object]) -> None:
        """Records a part of what the run is made of; on a later start it must be the same."""
        if name in self.record:
            self._check(name, found)
        else:
            self.update(**{name: dict(found)})

    def _make(self, path: Path) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            raise TrainingError(f"{path} cannot be made ({fault}); expected a place for a new folder") from fault

    def _check(self, name: str, found: Mapping[str, object]) -> None:
        recorded = self.record.get(name)
        recorded = recorded if isinstance(recorded, dict) else {}
        differing = [key for key in {**recorded, **found} if recorded.get(key) != found.get(key)]
        if differing:
            key = differing[0]
            raise OptionError(
                f"{self.path} holds a run with {key} {recorded.get(key)!r}, and now {key} is {found.get(key)!r}; "
                "expected the same to go on with it. Give the options it was begun with, or another --out"
            )


def _read_record(path: Path) -> dict[str, object]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(f"{path} cannot be read ({error}); expected a run's record. Give another --out") from error
    if not isinstance(record, dict):
        raise OptionError(f"{path} holds a {type(record).__name__}; expected a run's record. Give another --out")
    return record


def identity_of(target: LoadedTarget) -> dict[str, object]:
    """Which target it is, by content: sha256 of its config, and of its files of weights in the order of their names."""
    weights = hashlib.sha256()
    for file in sorted({tensor.path for tensor in stored_tensors(target.path).values()}):
        with file.open("rb") as opened:
            while block := opened.read(2**20):
                weights.update(block)
    config = hashlib.sha256((target.path / "config.json").read_bytes())
    return {"config_sha256": config.hexdigest(), "weights_sha256": weights.hexdigest()}


def train_dflash(target: LoadedTarget, asked: Asked, watcher: Watcher) -> RunFolder:
    """Trains a DFlash drafter for ``target``, from the beginning or from where the run in ``asked.out`` stands.

    Raises:
        OptionError: data, shape or folder do not fit; nothing has been computed then.
        TrainingError: the run cannot go on; what was saved is sound.
    """
    device = target.model.device
    longest = target.model.context_length
    if asked.texts.length > longest:
        raise OptionError(
            f"--length is {asked.texts.length}, and {target.name} reads {longest} tokens; expected at most {longest}"
        )
    documents = read_documents(asked.data, target)
    dtype = products_in(asked.schedule.precision, device)
    method = DFlashMethod(target, asked.shape, seed=asked.schedule.seed, dtype=dtype)
    folder = RunFolder(asked.out, asked.identity())
    folder.hold("target", identity_of(target))
    if folder.finished:
        return folder
    folder.update(state="training", target_name=target.name, provenance=Provenance.collect(str(device)).as_json())
    if asked.texts.answers == "target":
        questions = pieces_to_answer(documents, asked.texts)
        folder.hold("questions", {"questions": len(questions), "sha256": digest_of(questions)})
        written = answered(
            target,
            questions,
            asked.texts,
            seed=asked.schedule.seed,
            path=folder.answers,
            watch=watcher.answering,
            stopping=watcher.stopping,
        )
        if written is None:
            return folder
        documents = written
    split = pack(documents, asked.texts, asked.schedule.seed)
    method.check(split)
    folder.hold("data", _described(asked, split))
    folder.update(drafter=to_json(method.config), parameters=sum(p.numel() for p in method.network.parameters()))
    _train(target, asked, method, split, folder, watcher)
    return folder


def _described(asked: Asked, split: Split) -> dict[str, object]:
    return {
        "sequences": len(split.train),
        "held_out": len(split.held_out),
        "tokens": int(split.train.ids.size),
        "learnt": int(split.train.learnt.sum()),
        "sha256": split.digest,
    }


def _train(
    target: LoadedTarget, asked: Asked, method: DFlashMethod, split: Split, folder: RunFolder, watcher: Watcher
) -> None:
    reader = FeatureReader(target.model, method.capture)
    trainer = Trainer(method, reader, split, asked.schedule, asked.pace, folder.state)

    def saved() -> None:
        """Brings the drafter and the record up to the state."""
        progress = trainer.progress
        method.save(folder.path)
        folder.update(
            step=progress.step,
            num_steps=trainer.num_steps,
            seconds=round(progress.seconds, 1),
            losses=progress.losses,
            evaluations=progress.evaluations,
        )

    done = trainer.run(watcher.trained, watcher.stopping, saved)
    saved()  # a process that ended between two files left an older one
    if not done:
        return
    folder.update(offline=trainer.acceptance().as_json())
    if asked.pace.check_prompts:
        engine = Engine(target.model, method.load(folder.path), target.tokenizer, eos_token_ids=target.eos_token_ids)
        check = check_loop(engine, method, reader, split.held_out, asked.pace.check_prompts)
        folder.update(loop=check.as_json())
    folder.update(state="finished", provenance=Provenance.collect(str(target.model.device)).as_json())
