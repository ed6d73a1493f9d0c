"""The kernels from Python: opened only when they are right, exact row by row, and called from anywhere."""

from __future__ import annotations

import ctypes
import gc
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from surefoot import native
from surefoot.errors import OptionError, TargetError
from surefoot.native import library, records
from surefoot.native.library import Absent, Library, open_library
from surefoot.native.tensors import (
    Packed,
    best,
    best_reference,
    likeliest,
    likeliest_reference,
    normalise,
    pack,
    pack_in_place,
    pack_pairs,
    product,
    product_reference,
    unpack_rows,
)
from surefoot.options import Environment

BUILT = Path(library.__file__).with_name("libsurefoot.so")
MODEL = BUILT.parent / "source" / "model.hpp"
SIZES = [(inputs, outputs) for inputs in (33, 47, 130) for outputs in (17, 300, 897)]
DTYPES = [torch.float32, torch.bfloat16]

pytestmark = pytest.mark.skipif(not BUILT.exists(), reason="the kernels were not built: there is no C++ compiler")


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 5) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def bits(x: Tensor) -> bytes:
    return x.contiguous().view(torch.uint8).numpy().tobytes()


def worst_error(x: Tensor, weight: Tensor, bias: Tensor | None, packed: Packed) -> float:
    """The largest error of a product, as a share of what fp32 sums in any order may err by.

    A sum of K products, each rounded, errs by at most K + 1 half units of the sum of magnitudes; the products of bf16
    are exact, so the bound is the same for both formats.
    """
    magnitudes = product_reference(x.abs(), weight.abs(), None if bias is None else bias.abs(), None, 0.0)
    bound = (x.shape[1] + 2) * 2.0**-24 * magnitudes
    return float(((product(x, packed) - product_reference(x, weight, bias, None, 0.0)).abs() / bound).max())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_product_errs_by_the_roundings_of_its_sum_at_most(each_set: str, dtype: torch.dtype) -> None:
    for inputs, outputs in SIZES:
        x, weight = draw(9, inputs, dtype=dtype), draw(outputs, inputs, dtype=dtype)
        for bias in (None, draw(outputs)):
            packed = pack(weight, bias)
            assert worst_error(x, weight, bias, packed) <= 1
            reference = product_reference(x, weight, bias, None, 0.0)
            assert float((product(x, packed) - reference).abs().max() / reference.abs().max()) < 1e-5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_wrong_element_of_a_packed_weight_is_seen_in_its_output_alone(kernels: Library, dtype: torch.dtype) -> None:
    x, weight = draw(9, 130, dtype=dtype), draw(300, 130, dtype=dtype)
    packed = pack(weight)
    before = product(x, packed)
    size = weight.element_size()
    ctypes.memset(packed.record.packed + 16 * 130 * size + size, 0, size)  # of the second block
    after = product(x, packed)
    assert worst_error(x, weight, None, packed) > 1
    wrong = (before != after).any(0).nonzero().flatten().tolist()
    assert len(wrong) == 1
    assert 16 <= wrong[0] < 32


def differing_counts(multiply: Callable[[Tensor], Tensor], x: Tensor) -> list[tuple[int, int]]:
    """Which slices of rows are not, bit for bit, the same rows alone."""
    alone = torch.cat([multiply(row[None]) for row in x])
    total = len(x)
    slices = [(0, count) for count in range(1, total + 1)] + [(total - count, total) for count in (2, 3, 5, 8, 13, 31)]
    return [(a, b) for a, b in slices if bits(multiply(x[a:b])) != bits(alone[a:b])]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_are_the_same_bits_in_any_number_on_any_threads(
    kernels: Library, each_set: str, dtype: torch.dtype
) -> None:
    for inputs, outputs in ((33, 17), (47, 300), (130, 897)):
        packed, norm = pack(draw(outputs, inputs, dtype=dtype), draw(outputs)), draw(inputs)
        x = draw(64, inputs, dtype=dtype)
        results = set()
        for threads in (1, 2, 3):
            kernels.use_threads(threads)
            results.add(bits(product(x, packed)))
            assert differing_counts(lambda rows, p=packed: product(rows, p), x[: 64 // threads]) == []
            assert differing_counts(lambda rows, p=packed, n=norm: product(rows, p, n, 1e-6), x[:32]) == []
        assert len(results) == 1


def test_a_product_that_sums_in_another_order_beside_other_rows_is_seen() -> None:
    packed = pack(draw(300, 130))
    halves = pack(draw(300, 130)[:, :65].contiguous()), pack(draw(300, 130)[:, 65:].contiguous())

    def multiply(x: Tensor) -> Tensor:
        if len(x) < 4:
            return product(x, packed)
        return product(x[:, :65].contiguous(), halves[0]) + product(x[:, 65:].contiguous(), halves[1])

    assert min(b - a for a, b in differing_counts(multiply, draw(64, 130))) == 4


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_does_not_depend_on_where_it_lies_in_memory(each_set: str, dtype: torch.dtype) -> None:
    packed, x = pack(draw(300, 47, dtype=dtype)), draw(1, 47, dtype=dtype)
    room = torch.zeros(47 + 40, dtype=dtype)
    results = set()
    for start in range(33):
        room[start : start + 47] = x[0]
        results.add(bits(product(room[start : start + 47][None], packed)))
    assert len(results) == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_unpacked_rows_are_the_weight_bit_for_bit(each_set: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    for inputs, outputs in SIZES:
        whole = torch.randint(-(2**15), 2**15, (outputs, inputs * dtype.itemsize // 2), generator=generator)
        weight = whole.to(torch.int16).view(dtype)  # any bits: NaN, infinities and denormal numbers among them
        packed = pack(weight)
        rows = torch.randint(outputs, (40,), generator=generator)
        assert bits(unpack_rows(packed, torch.arange(outputs))) == bits(weight)
        assert bits(unpack_rows(packed, rows)) == bits(weight[rows])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_last_outputs_of_a_weight_are_those_of_the_whole(kernels: Library, dtype: torch.dtype) -> None:
    x = draw(3, 47, dtype=dtype)
    for outputs in (17, 300, 897):
        whole = pack(draw(outputs, 47, dtype=dtype), draw(outputs))
        for count in (1, 16, 17, 200, 10_000):
            part = whole.last(count)
            assert part.outputs <= count + 15
            assert part.outputs > min(count, outputs) - 16
            assert torch.equal(product(x, part), product(x, whole)[:, -part.outputs :])
    part = pack(draw(64, 47, dtype=dtype)).last(16)  # the whole lives as long as its part
    gc.collect()
    assert torch.equal(product(x, part), product(x, pack(draw(64, 47, dtype=dtype)))[:, -16:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_a_pair_holds_gates_and_ups_in_blocks_by_turns(each_set: str, dtype: torch.dtype, biased: bool) -> None:
    for inner in (16, 17, 300):
        gate, up = draw(inner, 47, dtype=dtype), draw(inner, 47, dtype=dtype, seed=8)
        biases = (draw(inner), draw(inner, seed=9)) if biased else (None, None)
        x = draw(5, 47, dtype=dtype)
        blocks = product(x, pack_pairs(gate, up, biases)).view(5, -1, 2, 16)
        for half, (weight, bias) in enumerate(zip((gate, up), biases, strict=True)):
            columns = blocks[:, :, half].reshape(5, -1)
            assert torch.equal(columns[:, :inner], product(x, pack(weight, bias)))
            assert columns[:, inner:].count_nonzero() == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_norm_is_rounded_like_its_format_and_rows_do_not_know_of_each_other(
    each_set: str, dtype: torch.dtype
) -> None:
    for width in (16, 33, 130, 897):
        x, weight = draw(7, width, dtype=dtype), draw(width)
        found = normalise(x, weight, 1e-5)
        wide = x.double()
        expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
        unit = 2.0**-22 if dtype == torch.float32 else 2.0**-8
        assert bool(((found.double() - expected).abs() <= unit * expected.abs()).all())
        assert bits(found) == bits(torch.cat([normalise(row[None], weight, 1e-5) for row in x]))
        packed = pack(draw(40, width, dtype=dtype))
        assert bits(product(x, packed, weight, 1e-5)) == bits(product(found, packed))


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (torch.zeros(2, 48), "[any, 47]"),
        (torch.zeros(2, 94)[:, ::2], "contiguous"),
        (torch.zeros(2, 47, dtype=torch.bfloat16), "torch.float32"),
        (torch.zeros(47), "[any, 47]"),
        (torch.zeros(2, 47, device="meta"), "on cpu"),
    ],
    ids=["width", "stride", "format", "shape", "device"],
)
def test_what_the_kernels_cannot_read_is_refused(x: Tensor, expected: str) -> None:
    packed = pack(draw(17, 47))
    with pytest.raises(TargetError, match=re.escape(expected)):
        product(x, packed)


def test_weights_of_other_formats_and_rows_outside_a_weight_are_refused() -> None:
    with pytest.raises(TargetError, match=r"torch\.float64"):
        pack(torch.zeros(4, 4, dtype=torch.float64))
    with pytest.raises(TargetError, match="a bias is"):
        pack(torch.zeros(4, 4), torch.zeros(5))
    for rows in ([4], [-1]):
        with pytest.raises(TargetError, match=r"ids in \[0, 4\)"):
            unpack_rows(pack(torch.zeros(4, 4)), torch.tensor(rows))


def test_no_rows_are_no_work() -> None:
    assert product(torch.zeros(0, 47), pack(draw(17, 47))).shape == (0, 17)


def test_a_packed_weight_gives_its_memory_back() -> None:
    resource = pytest.importorskip("resource")
    weight = torch.zeros(1024, 4096)
    pack(weight)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(20):
        pack(weight)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 5 * 16 * 1024  # KiB; 20 would be 320 MiB


def reason(opened: Library | Absent) -> str:
    assert isinstance(opened, Absent)
    return opened.reason


def test_the_environment_switches_the_kernels_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, used in (("0", False), ("off", False), ("1", True), ("", True)):
        monkeypatch.setenv("SUREFOOT_NATIVE", value)
        opened = open_library(BUILT, Environment.read())
        assert isinstance(opened, Library) is used
        if not used:
            assert "SUREFOOT_NATIVE=0" in reason(opened)


def test_without_kernels_calls_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_opened", lambda: Absent("they are elsewhere"))
    assert native.available() is None
    assert native.why_not() == "they are elsewhere"
    with pytest.raises(TargetError, match="they are elsewhere"):
        pack(torch.zeros(4, 4))


def test_the_environment_names_the_instructions(kernels: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUREFOOT_INSTRUCTIONS", "portable")
    opened = open_library(BUILT, Environment.read())
    assert isinstance(opened, Library)
    assert opened.instructions == "portable"
    monkeypatch.setenv("SUREFOOT_INSTRUCTIONS", "abacus")
    with pytest.raises(OptionError, match="'abacus'; expected one of avx512_bf16"):
        open_library(BUILT, Environment.read())


def test_a_library_that_is_missing_or_damaged_is_not_used(tmp_path: Path) -> None:
    assert "was not built" in reason(open_library(tmp_path / "absent.so", Environment()))
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(b"text in place of machine code")
    assert "does not open" in reason(open_library(damaged, Environment()))


def test_a_library_of_another_interface_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "ABI", library.ABI + 1)
    assert f"interface {library.ABI - 1}, expected {library.ABI}" in reason(open_library(BUILT, Environment()))


def test_a_record_of_another_size_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Row(records.Record):
        _fields_ = records.Row._fields_[:-1]

    monkeypatch.setattr(library, "RECORDS", (records.Matrix, Row))
    assert "Row of 48 bytes, expected 40" in reason(open_library(BUILT, Environment()))


def fields_of(struct: str) -> list[tuple[str, type]]:
    """The fields of a struct of model.hpp, as ctypes calls them."""
    kinds = {"int64_t": ctypes.c_int64, "double": ctypes.c_double, "Matrix": records.Matrix}
    body = re.search(rf"struct {struct} {{\n(.*?)^}};", MODEL.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert body, f"{MODEL.name} has a struct {struct}"
    found = re.findall(r"^ *(?:const )?(\w+)(\*?) (\w+);", body.group(1), re.MULTILINE)
    return [(name, ctypes.c_void_p if star else kinds[kind]) for kind, star, name in found]


@pytest.mark.parametrize("record", records.RECORDS, ids=lambda record: record.__name__)
def test_a_record_mirrors_its_struct_field_by_field(record: type[records.Record]) -> None:
    assert list(record._fields_) == fields_of(record.__name__)


def test_swapped_fields_are_noticed() -> None:
    first, second, *others = records.Row._fields_
    assert [second, first, *others] != fields_of("Row")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "inputs"), [(32, 48), (48, 33), (17, 48)])
def test_a_weight_packed_in_place_is_the_one_packed_elsewhere(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0)).to(dtype)
    x = torch.randn(3, inputs, generator=torch.Generator().manual_seed(1)).to(dtype)
    elsewhere = pack(weight)
    mine = weight.clone()
    place = mine.data_ptr()
    packed = pack_in_place(mine)
    del mine
    fits = outputs % 16 == 0 and (dtype == torch.float32 or inputs % 2 == 0)
    assert (packed.record.packed == place) is fits
    assert torch.equal(product(x, packed), product(x, elsewhere))
    assert torch.equal(unpack_rows(packed, torch.arange(outputs)), weight)


@pytest.mark.parametrize("width", [1, 15, 16, 17, 4095, 4096, 4097, 9000])
def test_the_best_token_is_the_lowest_of_the_largest_whatever_the_width(each_set: str, width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    for places in ([0], [width - 1], [width // 2, width - 1], [0, width // 3, width - 1], [width - 1, 0]):
        logits = torch.randint(-99, 9, (3, width + 5), generator=generator).float()
        logits[0, places] = 50.0
        logits[1, places] = -math.inf
        logits[:, width:] = 99.0  # of no token
        assert best(logits, width) == best_reference(logits, width)
        assert best(logits, width)[0] == min(places)
        for value in (math.nan, math.inf):
            damaged = logits.clone()
            damaged[1, places[0]] = value
            assert best(damaged, width)[1] == -1
            assert best(damaged, width)[0] == min(places)
    assert best(torch.full((2, width), -math.inf), width) == [-1, -1]


@pytest.mark.parametrize("width", [1, 15, 16, 255, 256, 257, 4095, 9000])
def test_the_likeliest_tokens_come_in_order_and_of_equals_the_lowest_first(each_set: str, width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    few_values = torch.randint(-3, 3, (3, width + 5), generator=generator).float()  # nearly all have equals
    logits = torch.cat((torch.randn(2, width + 5, generator=generator), few_values, few_values.sort(1).values))
    logits[1, : width // 2] = -math.inf
    logits[:, width:] = 99.0  # of no token
    for most in {1, min(5, width), min(300, width), width}:
        assert torch.equal(likeliest(logits, width, most), likeliest_reference(logits, width, most)), most
    damaged = logits.clone()
    damaged[1, width - 1] = math.nan
    assert likeliest(damaged, width, 1).flatten().tolist()[1] == -1
    assert torch.equal(likeliest(damaged, width, 1)[0], likeliest(logits, width, 1)[0])


def test_more_tokens_than_there_are_cannot_be_the_likeliest() -> None:
    for width, most in ((4, 0), (4, 5), (9, 2)):
        with pytest.raises(TargetError, match="expected 1 to"):
            likeliest(torch.zeros(1, 8), width, most)
