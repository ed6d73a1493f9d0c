"""The test at loading: quick, repeated where threads change, and not fooled; and what loading keeps and lets go of."""

from __future__ import annotations

import gc
from collections.abc import Callable
from ctypes import addressof, c_float, c_int64, c_uint8
from pathlib import Path
from time import perf_counter

import pytest
import torch
from tests.factories import make_checkpoint, make_model
from tests.models.routes import NOTHING
from torch import Tensor

import surefoot
from surefoot import native
from surefoot.errors import LoadError
from surefoot.models import native_forward
from surefoot.models.decoder import DecoderModel
from surefoot.native.library import Library
from surefoot.native.records import KIND_ATTENTION, KIND_MLP, Call, Step
from surefoot.tree import chain

FP32, BF16 = torch.float32, torch.bfloat16
Tamper = Callable[[Library, pytest.MonkeyPatch, Callable[[int], bool]], None]

pytestmark = [
    pytest.mark.skipif(native.available() is None, reason=f"there are no kernels: {native.why_not()}"),
    pytest.mark.usefixtures("one_thread"),
]


def flip(address: int, size: int) -> None:
    """Changes the lowest bit of the last number of ``size`` bytes at an address."""
    last = c_uint8.from_address(address + size - (2 if size % 4 else 4))
    last.value ^= 1


def tamper_head(kernels: Library, patch: pytest.MonkeyPatch, wrong: Callable[[int], bool]) -> None:
    run = kernels.forward

    def forward(address: int) -> int:
        failed = run(address)
        call = Call.from_address(address)
        if call.logits and wrong(call.num_rows):
            outputs = native.records.Ends.from_address(call.ends).head.outputs
            last = c_float.from_address(call.logits + 4 * (call.num_rows * outputs - 1))
            last.value = last.value * (1 + 2**-20)
        return failed

    patch.setattr(kernels, "forward", forward)


def tamper_block(kind: int) -> Tamper:
    """One step after the other, and another last bit after those of a kind."""

    def tamper(kernels: Library, patch: pytest.MonkeyPatch, wrong: Callable[[int], bool]) -> None:
        run = kernels.forward

        def forward(address: int) -> int:
            call = Call.from_address(address)
            if not call.num_steps:
                return run(address)
            steps = (Step * call.num_steps).from_address(call.steps)
            for step in steps:
                fields = {name: getattr(call, name) for name, _ in Call._fields_}
                one = Call(**{**fields, "steps": addressof(step), "num_steps": 1})
                if run(one.address):
                    return 1
                if step.kind == kind and wrong(call.num_rows):
                    flip(call.stream, call.num_rows * call.hidden * (2 if call.type else 4))
            return 0

        patch.setattr(kernels, "forward", forward)

    return tamper


def tamper_norm(kernels: Library, patch: pytest.MonkeyPatch, wrong: Callable[[int], bool]) -> None:
    run = kernels.forward

    def forward(address: int) -> int:
        failed = run(address)
        call = Call.from_address(address)
        if call.final and wrong(call.num_rows):
            flip(call.final, call.num_rows * call.hidden * (2 if call.type else 4))
        return failed

    patch.setattr(kernels, "forward", forward)


TAMPERS: dict[str, Tamper] = {
    "the head": tamper_head,
    "attention": tamper_block(KIND_ATTENTION),
    "the feed-forward": tamper_block(KIND_MLP),
    "the norm": tamper_norm,
}
WRONG: dict[str, Callable[[int], bool]] = {
    "from 2 rows on": lambda rows: rows > 1,
    "at 4 rows": lambda rows: rows == 4,
    "at one row": lambda rows: rows == 1,
    "from 9 rows on": lambda rows: rows > 8,
}


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_models_on_the_kernels_are_strict_by_default(each_set: str, dtype: torch.dtype) -> None:
    model = make_model("qwen3", dtype, exact="auto")
    assert model.kernels == each_set
    assert model.strict


@pytest.mark.parametrize("when", WRONG)
@pytest.mark.parametrize("part", TAMPERS)
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_one_wrong_bit_of_one_kernel_at_some_number_of_rows_is_found(
    kernels: Library, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, part: str, when: str
) -> None:
    with monkeypatch.context() as patch:
        TAMPERS[part](kernels, patch, WRONG[when])
        assert not make_model("qwen3", dtype, num_hidden_layers=1).strict
        expected = "the output head" if part in ("the head", "the norm") else "a layer"
        with pytest.raises(LoadError, match=f"rows differ in {expected};"):
            make_model("qwen3", dtype, num_hidden_layers=1, exact="require")
    assert make_model("qwen3", dtype, num_hidden_layers=1, exact="require").strict


def test_passing_every_call_on_is_not_taken_for_a_defect(kernels: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    for tamper in TAMPERS.values():
        tamper(kernels, monkeypatch, lambda rows: False)
    assert make_model("qwen3", BF16, exact="require").strict


def test_a_tree_that_differs_from_its_paths_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_forward, "path_to", lambda parents, node: list(range(node + 1)))
    assert not make_model("qwen3", FP32).strict


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_one_wrong_bit_of_a_row_that_a_commit_moves_is_found(
    kernels: Library, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    move, moved = kernels.move_rows, []

    def moving(wrong: bool) -> Callable[..., None]:
        def move_rows(rows: int, planes: int, capacity: int, size: int, places: int, count: int, start: int) -> None:
            move(rows, planes, capacity, size, places, count, start)
            moved.append(count)
            if wrong:
                flip(rows + (planes - 1) * capacity * size + (start + count - 1) * size, size)

        return move_rows

    monkeypatch.setattr(kernels, "move_rows", moving(False))
    assert make_model("qwen3", dtype, num_hidden_layers=1, exact="require").strict
    assert moved, "the self-test moves rows"
    monkeypatch.setattr(kernels, "move_rows", moving(True))
    assert not make_model("qwen3", dtype, num_hidden_layers=1).strict
    with pytest.raises(LoadError, match="rows differ in a layer;"):
        make_model("qwen3", dtype, num_hidden_layers=1, exact="require")


@pytest.mark.parametrize("wrong_at", [1, 4, 16])
def test_another_choice_among_equals_at_some_number_of_rows_is_found(
    kernels: Library, monkeypatch: pytest.MonkeyPatch, wrong_at: int
) -> None:
    best = kernels.best

    def highest(logits: int, num_rows: int, stride: int, width: int, tokens: int) -> None:
        """The last of equals instead of the first, at one number of rows."""
        best(logits, num_rows, stride, width, tokens)
        found = (c_int64 * num_rows).from_address(tokens)
        for index in range(num_rows if num_rows == wrong_at else 0):
            row = (c_float * width).from_address(logits + 4 * index * stride)
            found[index] = max(at for at in range(width) if row[at] == row[found[index]])

    assert make_model("qwen3", FP32, num_hidden_layers=1, exact="require").strict
    monkeypatch.setattr(kernels, "best", highest)
    assert not make_model("qwen3", FP32, num_hidden_layers=1).strict
    with pytest.raises(LoadError, match="rows differ in the choice of the likeliest tokens;"):
        make_model("qwen3", FP32, num_hidden_layers=1, exact="require")


def test_a_defect_in_a_window_alone_is_named(kernels: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    run = kernels.forward

    def forward(address: int) -> int:
        failed = run(address)
        call = Call.from_address(address)
        if not call.num_steps:
            return run(address)
        step = Step.from_address(call.steps)
        if call.num_rows > 1 and native.records.Attention.from_address(step.block).window:
            flip(call.stream, call.num_rows * call.hidden * 4)
        return failed

    monkeypatch.setattr(kernels, "forward", forward)
    options = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1, "exact": "require"}
    with pytest.raises(LoadError, match="rows differ in a layer of window 6;"):
        make_model("qwen2", FP32, **options)  # type: ignore[arg-type]


def test_another_number_of_threads_is_tested_when_it_is_first_asked_about(
    kernels: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model("qwen3", FP32, num_hidden_layers=1)
    assert model.strict
    tamper_head(kernels, monkeypatch, lambda rows: rows > 1 and torch.get_num_threads() == 2)
    assert model.strict
    torch.set_num_threads(2)
    assert not model.strict
    torch.set_num_threads(1)
    assert model.strict


def test_other_threads_or_instructions_of_the_kernels_alone_are_tested_too(
    kernels: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = kernels.instructions
    model = make_model("qwen3", FP32, num_hidden_layers=1)
    tamper_head(kernels, monkeypatch, lambda rows: rows > 1 and (kernels.threads == 3 or kernels.instructions != best))
    assert model.strict
    kernels.use_threads(3)
    assert not model.strict
    kernels.use_threads(None)
    assert model.strict
    assert kernels.choose("portable")
    assert model.strict is (best == "portable")
    assert kernels.choose(best)
    assert model.strict


def test_the_test_takes_milliseconds() -> None:
    model = make_model("qwen3", BF16, hidden_size=384, intermediate_size=1024, vocab_size=4096, head_dim=64)
    seconds = []
    for _ in range(5):
        started = perf_counter()
        assert model._forward is not None
        assert model._forward.differing_rows(stop_early=True) == []
        seconds.append(perf_counter() - started)
    assert min(seconds) < 0.25  # about 0.01 s on an idle machine


@pytest.mark.parametrize("context", [1, 8, 16, 20])
def test_a_context_shorter_than_the_tests_rows_is_tested_all_the_same(context: int) -> None:
    model = make_model("qwen3", FP32, num_hidden_layers=1, max_position_embeddings=context, exact="require")
    assert model.strict
    assert logits(model, range(1, 1 + context)).shape == (context, model.vocab_size)


def logits(model: DecoderModel, tokens: range) -> Tensor:
    (out,) = model.score([(chain(list(tokens)), model.new_cache(len(tokens)))], NOTHING)
    assert out.logits is not None
    return out.logits


@pytest.mark.parametrize("vocab_size", [97, 112], ids=["packed elsewhere", "packed in place"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_trainable_model_keeps_its_parameters_and_torch_computes(tmp_path: Path, tied: bool, vocab_size: int) -> None:
    for dtype, tolerance in ((FP32, 1e-4), (BF16, 0.1)):
        sizes = {"tie_word_embeddings": tied, "vocab_size": vocab_size}
        path = make_checkpoint(tmp_path / str(dtype), "qwen3", dtype=dtype, **sizes)
        before = (path / "model.safetensors").read_bytes()
        trainable = surefoot.load(path, trainable=True).target
        packed = surefoot.load(path).target
        assert isinstance(trainable, DecoderModel)
        assert isinstance(packed, DecoderModel)
        assert (trainable.kernels, packed.kernels is None) == (None, False)
        assert all(parameter.numel() for parameter in trainable.parameters())
        kept = [name for name, parameter in packed.named_parameters() if parameter.numel()]
        assert kept == ([] if tied else ["embedding"])
        torch.testing.assert_close(logits(packed, range(20)), logits(trainable, range(20)), rtol=0, atol=tolerance)
        every = torch.arange(vocab_size)
        assert torch.equal(packed.embed(every), trainable.embed(every))
        assert (path / "model.safetensors").read_bytes() == before
        trainable.prepare(exact="auto", prefill_chunk=64)
        with pytest.raises(LoadError, match=r"packed and let go of.*Load the model again"):
            packed.prepare(exact="auto", prefill_chunk=64)
        assert packed.strict
        assert (packed.dtype, packed.device.type) == (dtype, "cpu")


def test_a_trainable_model_learns(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "qwen3")
    model = surefoot.load(path, trainable=True).target
    assert isinstance(model, DecoderModel)
    before = logits(model, range(5))
    with torch.no_grad():
        model.norm.mul_(2)
    assert torch.allclose(logits(model, range(5)), 2 * before)


def test_two_models_of_one_process_do_not_disturb_each_other() -> None:
    sizes = ({"hidden_size": 48}, {"hidden_size": 130, "vocab_size": 300})
    first, second = (make_model("qwen3", FP32, seed=seed, **size) for seed, size in enumerate(sizes))
    expected = logits(first, range(12)), logits(second, range(7))
    for _ in range(3):
        assert torch.equal(logits(first, range(12)), expected[0])
        assert torch.equal(logits(second, range(7)), expected[1])


def test_a_model_that_is_dropped_frees_every_packed_weight(kernels: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    held: set[int] = set()
    allocate, free = kernels.allocate, kernels.free

    def counted(code: int, outputs: int, inputs: int) -> int:
        address = allocate(code, outputs, inputs)
        held.add(address)
        return address

    def freed(address: int) -> None:
        held.remove(address)
        free(address)

    monkeypatch.setattr(kernels, "allocate", counted)
    monkeypatch.setattr(kernels, "free", freed)
    for _ in range(2):
        model = make_model("qwen3", BF16, num_hidden_layers=3)
        logits(model, range(3))
        assert len(held) == 3 * 4 + 1
        model.prepare(exact="auto", prefill_chunk=8)
        assert len(held) == 3 * 4 + 1, "a second preparation drops the weights of the first"
        del model
        gc.collect()
        assert held == set()
