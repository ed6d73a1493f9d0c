"""Has the target write the answers that are trained on; what was written is kept, however the process ends.

Answers are drawn with the target's own position noise, keyed by the seed and the prompt's number, so on a target with
exact rows they do not depend on what is decoded beside them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np

from surefoot.decode import advance, prefill
from surefoot.engine import Engine
from surefoot.errors import PromptError, TrainingError
from surefoot.loading.loaded import LoadedTarget
from surefoot.opening import Opener
from surefoot.options import SamplingParams, SpeculativeOptions
from surefoot.request import Request
from surefoot.train.options import DataOptions
from surefoot.train.texts import Document, Ids
from surefoot.train.watcher import Watcher

ROWS = 16
"""Answers written side by side."""
SYNCED = 64
"""Answers after which the file is forced to disk."""
GREEDY = 5
"""What a stream of randomness is for; see ``data``."""


def answered(
    target: LoadedTarget,
    asked: Sequence[Document],
    options: DataOptions,
    *,
    seed: int,
    path: Path,
    end: int,
    watcher: Watcher,
) -> list[Document] | None:
    """The documents with the target's own answers; None where it was stopped before the last.

    Answers already in the file ``path`` stand; new ones are added to it. An answer ends before the id ``end``, which no
    text may have.

    Raises:
        TrainingError: the file is damaged, or cannot be written.
        PromptError: a prompt the target cannot read.
    """
    known = _read(path, len(asked), target.model.vocab_size)
    watcher.answering(len(known), len(asked))
    missing = [index for index in range(len(asked)) if index not in known]
    if missing:
        try:
            with path.open("ab") as file:
                for index, ids in _write_answers(target, asked, options, seed, iter(missing), end):
                    known[index] = ids
                    _append(file, index, ids, force=len(known) % SYNCED == 0)
                    watcher.answering(len(known), len(asked))
                    if watcher.stopping():
                        break
                os.fsync(file.fileno())
        except OSError as fault:
            raise TrainingError(f"{path} cannot be written ({fault}); expected a folder with room") from fault
    if len(known) < len(asked):
        return None
    return [
        Document(prompt=document.prompt, answer=known[index], place=document.place)
        for index, document in enumerate(asked)
    ]


def _append(file: BinaryIO, index: int, ids: Ids, *, force: bool) -> None:
    file.write(json.dumps([index, ids.tolist()]).encode() + b"\n")
    file.flush()
    if force:
        os.fsync(file.fileno())


def _read(path: Path, count: int, vocab_size: int) -> dict[int, Ids]:
    """The answers in the file; a last line that was cut off is removed from it."""
    if not path.exists():
        return {}
    whole = path.read_bytes()
    end = whole.rfind(b"\n") + 1
    if end < len(whole):
        os.truncate(path, end)
    known = {}
    for number, line in enumerate(whole[:end].splitlines(), start=1):
        try:
            index, ids = json.loads(line)
            answer = np.array(ids, dtype=np.int32)
        except (ValueError, TypeError, OverflowError) as error:
            raise TrainingError(f"{path}:{number} is damaged ({error}); expected an answer. Remove the line") from error
        if not isinstance(index, int) or not 0 <= index < count or answer.ndim != 1:
            raise TrainingError(f"{path}:{number} answers prompt {index!r}; expected one of {count}. Remove the file")
        if ((answer < 0) | (answer >= vocab_size)).any():
            raise TrainingError(
                f"{path}:{number} holds ids outside 0 to {vocab_size - 1}; expected an answer. Remove it"
            )
        known[index] = answer
    return known


def _write_answers(
    target: LoadedTarget,
    asked: Sequence[Document],
    options: DataOptions,
    seed: int,
    missing: Iterator[int],
    end: int,
) -> Iterator[tuple[int, Ids]]:
    """The answers as they are finished, several decoded side by side."""
    engine = Engine(target.model, eos_token_ids=target.eos_token_ids)
    opener = Opener(target=target.model, tokenizer=None)
    running: dict[int, Request] = {}
    try:
        while True:
            for index in islice(missing, ROWS - len(running)):
                params = _params(asked[index], options, seed, index, end)
                running[index] = _opened(engine, opener, asked[index], params)
            if not running:
                return
            advance(target.model, [request.decoding for request in running.values()])
            for index in [index for index, request in running.items() if request.decoding.finish_reason is not None]:
                request = running.pop(index)
                ids = np.array([event.token for event in request.stops.events if event.token != end], dtype=np.int32)
                request.decoding.close()
                yield index, ids
    finally:
        for request in running.values():
            request.decoding.close()


def _params(document: Document, options: DataOptions, seed: int, index: int, end: int) -> SamplingParams:
    """How one answer is drawn."""
    greedy = np.random.default_rng([GREEDY, seed, index]).random() < options.greedy_share
    return SamplingParams(
        temperature=0.0 if greedy else options.temperature,
        max_tokens=max(2, options.answer_tokens if document.is_prompt else options.length - len(document.prompt)),
        stop_token_ids=(end,),
        seed=seed,
        sample_index=index,
    )


def _opened(engine: Engine, opener: Opener, document: Document, params: SamplingParams) -> Request:
    """A request that has read its prompt."""
    try:
        prompt = document.prompt.tolist()
        request = opener.open(engine.ask(prompt, params, SpeculativeOptions(num_draft=0), None))
    except PromptError as error:
        raise PromptError(f"{document.place}: {error}") from error
    prefill(engine.target, request.prompt, [request.decoding])
    return request
