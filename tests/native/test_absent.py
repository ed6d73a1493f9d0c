"""Where the kernels were not built, or have no room for a model, torch computes, and whoever asks is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.factories import make_checkpoint, make_model, make_tokenizer

import surefoot
from surefoot import SamplingParams, native
from surefoot.doctor.check import Check
from surefoot.doctor.running import check_kernels
from surefoot.engine import Engine
from surefoot.errors import LoadError
from surefoot.models.decoder import DecoderModel
from surefoot.native import library
from surefoot.native.library import Absent, open_library
from surefoot.ops.rows import ExactRows, FastRows
from surefoot.options import Environment, LoadOptions

PROMPT = (5, 9, 5, 9, 11)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def _not_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An install that found no compiler: the package without its library."""
    absent = open_library(tmp_path / "libsurefoot.so", Environment())
    assert isinstance(absent, Absent)
    monkeypatch.setattr(library, "_opened", lambda: absent)


@pytest.fixture
def rows_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of torch whose bits depend on the number of rows, as on most processors."""
    product = FastRows.linear

    def linear(x_NK: torch.Tensor, weight_MK: torch.Tensor, bias_M: torch.Tensor | None) -> torch.Tensor:
        y = product(x_NK, weight_MK, bias_M)
        return y if len(x_NK) < 3 else y * (1 + 2**-20)

    monkeypatch.setattr(FastRows, "linear", staticmethod(linear))


def engine_of(path: Path, **options: object) -> Engine:
    make_tokenizer(make_checkpoint(path, "qwen3", vocab_size=300), 300)
    return surefoot.load(path, "lookup", **options)  # type: ignore[arg-type]


def asked(engine: Engine) -> tuple[bool, Check]:
    """What the statistics of an answer say, and what doctor does."""
    result = engine.generate(PROMPT, SamplingParams(max_tokens=12, ignore_eos=True))
    assert len(result.tokens) == 12
    return result.stats.strict, check_kernels(engine, LoadOptions())


@pytest.mark.usefixtures("_not_built", "rows_that_differ")
def test_without_kernels_answers_come_and_strict_and_doctor_say_what_they_are(tmp_path: Path) -> None:
    engine = engine_of(tmp_path / "model")
    assert isinstance(engine.target, DecoderModel)
    assert engine.target.kernels is None
    strict, check = asked(engine)
    assert not strict
    assert check.level == "WARN"
    assert check.found.startswith("not row-exact")
    assert any("libsurefoot.so was not built: install g++ or clang++" in line for line in check.details)


@pytest.mark.usefixtures("_not_built", "rows_that_differ")
def test_without_kernels_exact_rows_can_still_be_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(tmp_path / "model", exact="require")
    assert engine.generate(PROMPT, SamplingParams(max_tokens=4, ignore_eos=True)).stats.strict
    monkeypatch.setattr(ExactRows, "linear", staticmethod(FastRows.linear))
    with pytest.raises(LoadError, match="rows differ in"):
        engine_of(tmp_path / "other", exact="require")


@pytest.mark.skipif(native.available() is None, reason=f"there are no kernels: {native.why_not()}")
def test_with_kernels_nothing_of_that_is_said(tmp_path: Path) -> None:
    strict, check = asked(engine_of(tmp_path / "model"))
    assert strict
    assert check.level == "PASS"
    assert "native kernels" in check.found
    assert check.details == ()


@pytest.mark.skipif(native.available() is None, reason=f"there are no kernels: {native.why_not()}")
@pytest.mark.parametrize(
    ("options", "found"),
    [({"dtype": torch.float16}, "found float16 on cpu"), ({"head_dim": 258}, "heads of 258")],
    ids=["half", "large heads"],
)
def test_a_model_the_kernels_have_no_room_for_is_named(options: dict[str, object], found: str) -> None:
    model = make_model("qwen3", num_hidden_layers=1, **options)  # type: ignore[arg-type]
    assert model.kernels is None
    check = check_kernels(Engine(model), LoadOptions())
    assert any(line.startswith("no native kernels: they compute") and found in line for line in check.details)
