"""What a call of the kernels costs by itself, and what their threads and torch's cost each other."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter, sleep

import torch

from benchmarks.common import rotated
from benchmarks.figures import Aim, Figure, Findings, Options
from surefoot.native import pack, product
from surefoot.native.library import required
from surefoot.native.records import Call, type_code

PRODUCT = (8, 896, 2432)
"""Rows, inputs and outputs of the products that share the processor: about half a millisecond of both cores."""


def calls(options: Options) -> Findings:
    """Microseconds of a call from Python that computes nothing: one after the other, and after 2 ms without any, when
    the workers sleep and are not waited for."""
    library = required()
    stream = torch.zeros(1, 16)
    call = Call(type=type_code(stream.dtype), num_rows=1, hidden=16, stream=stream.data_ptr())
    forward, address = library.forward, call.address
    often = 200 if options.quick else 5000

    def in_a_row() -> float:
        started = perf_counter()
        for _ in range(often):
            forward(address)
        return 1e6 * (perf_counter() - started) / often

    def rested() -> float:
        taken = []
        for _ in range(often // 100):
            sleep(0.002)
            started = perf_counter()
            forward(address)
            taken.append(1e6 * (perf_counter() - started))
        return median(taken)

    ways = {"one after the other": (in_a_row, Aim(at_most=3)), "after 2 ms without any": (rested, None)}
    figures = []
    for threads in (1, options.threads):
        library.use_threads(threads)
        in_a_row()
        label = f"{threads} thread{'s' * (threads > 1)}"
        for name, (measure, aim) in ways.items():
            figures.append(Figure.of(f"{label}: a call, {name}", "µs", [measure() for _ in range(options.turns)], aim))
    library.use_threads(None)
    return Findings(figures=tuple(figures), versions={})


def beside(options: Options) -> Findings:
    """Products of torch and of the kernels by turns, against each among its own kind: a pool that spins while the other
    computes takes its cores."""
    rows, inputs, outputs = PRODUCT
    x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs)
    packed = pack(weight)
    work: dict[str, Callable[[], object]] = {
        "torch": lambda: torch.nn.functional.linear(x, weight),
        "surefoot": lambda: product(x, packed),
    }
    orders = {"torch": ("torch",), "surefoot": ("surefoot",), "by turns": ("torch", "surefoot")}
    often = 20 if options.quick else 300
    seconds: dict[tuple[str, str], list[float]] = {(order, one): [] for order in orders for one in orders[order]}
    for turn in range(1 + options.turns):
        for order in rotated(list(orders), turn):
            taken: dict[str, list[float]] = {name: [] for name in orders[order]}
            for _ in range(often):
                for name in orders[order]:
                    started = perf_counter()
                    work[name]()
                    taken[name].append(perf_counter() - started)
            if turn:
                for name, found in taken.items():
                    seconds[order, name].append(median(found))
    figures = []
    for name in work:
        alone, shared = seconds[name, name], seconds["by turns", name]
        figures.append(Figure.of(f"{name}: a product among its own", "µs", [1e6 * one for one in alone]))
        slowed = [there / here for here, there in zip(alone, shared, strict=True)]
        figures.append(Figure.of(f"{name}: by turns with the other / among its own", "times", slowed))
    return Findings(figures=tuple(figures), versions={})
