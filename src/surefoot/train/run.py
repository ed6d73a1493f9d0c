"""The run, from its options to a drafter that was tried in the real loop."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from surefoot.drafters.dflash.config import to_json
from surefoot.engine import Engine
from surefoot.errors import OptionError
from surefoot.loading.dflash import config_digest, find_dflash
from surefoot.loading.loaded import LoadedTarget
from surefoot.loading.shards import stored_tensors
from surefoot.native import available
from surefoot.provenance import Provenance
from surefoot.train.answers import answered
from surefoot.train.data import Split, digest_of, pack, pieces_to_answer
from surefoot.train.dflash import WEIGHTS, DFlashMethod
from surefoot.train.evaluate import check_loop
from surefoot.train.features import FeatureReader
from surefoot.train.folder import RunFolder, opened
from surefoot.train.options import DataOptions, DFlashOptions, Pace, Schedule
from surefoot.train.texts import Document, read_documents
from surefoot.train.trainer import Trainer, products_in
from surefoot.train.watcher import Watcher


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


def identity_of(path: Path) -> dict[str, object]:
    """Which checkpoint it is, by content: sha256 of its config, and of its weights' files in the order of their
    names."""
    weights = hashlib.sha256()
    for file in sorted({tensor.path for tensor in stored_tensors(path).values()}):
        with file.open("rb") as opened_file:
            while block := opened_file.read(2**20):
                weights.update(block)
    return {"config_sha256": config_digest(path), "weights_sha256": weights.hexdigest()}


def train_dflash(target: LoadedTarget, asked: Asked, watcher: Watcher) -> RunFolder:
    """Trains a DFlash drafter for ``target``, from the beginning or from where the run in ``asked.out`` stands.

    Raises:
        OptionError: data, shape or folder do not fit; nothing has been learnt then.
        TrainingError: the run cannot go on, or another process is at it; what was saved is sound.
    """
    longest = target.model.context_length
    if asked.texts.length > longest:
        raise OptionError(
            f"--length is {asked.texts.length}, and {target.name} reads {longest} tokens; expected at most {longest}"
        )
    for path in asked.data:
        if path.is_dir() and asked.out.resolve().is_relative_to(path.resolve()):
            raise OptionError(
                f"--out {asked.out} lies in {path}, which is trained on; expected a folder elsewhere, as what is "
                "written there would be read as data when the run goes on. Give another --out"
            )
    documents = read_documents(asked.data, target)
    dtype = products_in(asked.schedule.precision, target.model.device)
    method = DFlashMethod(target, asked.shape, seed=asked.schedule.seed, dtype=dtype)
    with opened(asked.out, asked.identity()) as folder:
        _hold_sources(target, asked, dtype, folder)
        if folder.finished and (asked.out / WEIGHTS).exists():
            return folder
        _prepare(target, folder, watcher)
        split = _split(target, asked, documents, method, folder, watcher)
        if split is not None:
            _train(target, asked, method, split, folder, watcher)
        return folder


def _hold_sources(target: LoadedTarget, asked: Asked, dtype: torch.dtype, folder: RunFolder) -> None:
    """Records which checkpoints the run reads and what it computes in, or compares them."""
    folder.hold("target", identity_of(target.path))
    begun_with = None if asked.shape.init is None else find_dflash(asked.shape.init)
    if begun_with is not None:
        folder.hold("init", identity_of(begun_with.place.path))
    found = {"dtype": target.model.dtype, "products": dtype, "device": target.model.device.type}
    folder.hold("arithmetic", {name: str(value).removeprefix("torch.") for name, value in found.items()})


def _prepare(target: LoadedTarget, folder: RunFolder, watcher: Watcher) -> None:
    """Brings the record up to this start."""
    provenance = Provenance.collect(str(target.model.device)).as_json()
    library = available()
    note = folder.note_machine(provenance, "none" if library is None else library.instructions)
    if note is not None:
        watcher.noticed(note)
    folder.update(state="training", target_name=target.name, provenance=provenance)


def _split(
    target: LoadedTarget,
    asked: Asked,
    documents: list[Document],
    method: DFlashMethod,
    folder: RunFolder,
    watcher: Watcher,
) -> Split | None:
    """What is trained on, after the target's answers where it gives them; None where it was stopped meanwhile."""
    if asked.texts.answers == "target":
        documents = pieces_to_answer(documents, asked.texts)
        method.check_questions(documents)
        folder.hold("questions", {"questions": len(documents), "sha256": digest_of(documents)})
        written = answered(
            target,
            documents,
            asked.texts,
            seed=asked.schedule.seed,
            path=folder.answers,
            end=method.config.mask_token_id,
            watcher=watcher,
        )
        if written is None:
            return None
        documents = written
    split = pack(documents, asked.texts, asked.schedule.seed)
    method.check(split)
    folder.hold("data", _described(split))
    folder.update(drafter=to_json(method.config), parameters=sum(p.numel() for p in method.network.parameters()))
    return split


def _described(split: Split) -> dict[str, object]:
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
