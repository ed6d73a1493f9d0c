"""What can be known of a model before a weight is read: its files, headers, config and tokenizer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from surefoot.doctor.check import Check
from surefoot.errors import CheckpointError
from surefoot.loading.checkpoint import check_tensors, shapes_of
from surefoot.loading.files import read_json_object, read_optional_object, regular_file
from surefoot.loading.formats import family_of, refuse_foreign
from surefoot.loading.generation import GENERATION, eos_ids, sampling_defaults
from surefoot.loading.header import StoredTensor
from surefoot.loading.load import checkpoint_dtype
from surefoot.loading.resolve import Place, resolve
from surefoot.loading.shards import stored_tensors
from surefoot.loading.tokenizer import load_tokenizer
from surefoot.models.config import DecoderConfig
from surefoot.models.family import Family, TensorSpec
from surefoot.options import Environment
from surefoot.text import Tokenizer


def size_in_words(size: int) -> str:
    """Bytes in the unit that suits them: ``20.1 MB``, ``16.1 GB``."""
    unit, name = (1e9, "GB") if size >= 1e9 else (1e6, "MB")
    return f"{size / unit:.3g} {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """A model whose files fit together.

    Attributes:
        name: what it was called.
        path: where it lies.
        raw: its ``config.json``.
        config: what that means.
        num_parameters: numbers in all its weights, a tied head counted once.
        dtype: the dtype it loads in unless another is asked for.
        tokenizer: None where there is no ``tokenizer.json``.
    """

    name: str
    path: Path
    raw: Mapping[str, object]
    config: DecoderConfig
    num_parameters: int
    dtype: str
    tokenizer: Tokenizer | None


def find(name: str) -> Place:
    """Where the model lies. Raises ``ModelNotFoundError`` or ``UnsupportedModelError``."""
    return resolve(name, Environment.read())


def examine_files(place: Place, side: str) -> tuple[Check, ModelFiles]:
    """The check of one model's files, ``side`` being ``target`` or ``draft model``, and what they hold.

    Raises:
        LoadError: the files are refused, damaged, incomplete or contradict each other.
    """
    refuse_foreign(place.path)
    path = regular_file(place.path, "config.json")
    if path is None:
        raise CheckpointError(f"{place.path}: found no config.json; expected one. Complete the download")
    raw = read_json_object(path)
    family = family_of(raw, str(path))
    raw = family.flatten(raw)
    config = family.parse(raw)
    stored = stored_tensors(place.path)
    specs = family.layout(config, shapes_of(stored))
    check_tensors(specs, family, stored)
    generation = read_optional_object(place.path, GENERATION)
    eos_ids(raw, generation, config.vocab_size)
    sampling_defaults(generation)
    tokenizer, notes = load_tokenizer(place.path)
    dtype = str(checkpoint_dtype(raw, stored)).removeprefix("torch.")
    files = ModelFiles(
        name=place.name,
        path=place.path,
        raw=raw,
        config=config,
        num_parameters=sum(math.prod(spec.shape) for spec in specs),
        dtype=dtype,
        tokenizer=tokenizer,
    )
    found = (
        f"{family.model_type}, {files.num_parameters / 1e6:.1f} M parameters, {_stored_as(stored)}, loads as {dtype}"
    )
    unknown = _left_out(family, specs, stored)
    details = (f"in {place.path}", *unknown, *notes)
    if notes:
        mend = "Save the tokenizer again with a current transformers to get a tokenizer.json"
        return Check(name=f"{side} files", level="WARN", found=found, mend=mend, details=details), files
    return Check(name=f"{side} files", level="PASS", found=found, details=details), files


def _stored_as(stored: Mapping[str, StoredTensor]) -> str:
    """How the weights lie on disk: files, bytes and dtypes."""
    shards = {tensor.path for tensor in stored.values()}
    size = sum(path.stat().st_size for path in shards)
    kinds = Counter(tensor.dtype for tensor in stored.values())
    dtypes = "/".join(kind for kind, _ in kinds.most_common())
    files = "1 file" if len(shards) == 1 else f"{len(shards)} shards, all there"
    return f"{len(stored)} tensors of {dtypes} in {files} of {size_in_words(size)}"


def _left_out(family: Family, specs: Sequence[TensorSpec], stored: Mapping[str, StoredTensor]) -> tuple[str, ...]:
    """Lines on tensors that are there and are not read; unknown ones would have been refused."""
    known = {spec.name for spec in specs}
    extra = [name for name in stored if name not in known]
    notes = family.notes(shapes_of(stored))
    return (f"{len(extra)} tensors are not read: {extra[0]} ...", *notes) if extra else ()
