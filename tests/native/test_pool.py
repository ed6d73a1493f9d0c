"""The pool of threads: it follows torch, waits its turn, sleeps without work, and is made anew after a fork."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tests.factories import make_model
from tests.native.test_library import bits, draw
from torch import Tensor

from surefoot import native
from surefoot.errors import OptionError
from surefoot.native import pack, product
from surefoot.native.library import Library
from surefoot.native.records import Product
from surefoot.tree import chain
from surefoot.types import Capture

TASKS = Path("/proc/self/task")

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
pytestmark = pytest.mark.skipif(native.available() is None, reason=f"there are no kernels: {native.why_not()}")


def test_threads_follow_torch_until_a_number_is_asked_for(kernels: Library) -> None:
    before = torch.get_num_threads()
    try:
        for count in (1, 3, 2):
            torch.set_num_threads(count)
            assert kernels.threads == count
        kernels.use_threads(5)
        assert kernels.threads == 5
        kernels.use_threads(None)
        assert kernels.threads == 2
    finally:
        torch.set_num_threads(before)
    with pytest.raises(OptionError, match="at least 1"):
        kernels.use_threads(0)


def test_threads_of_python_may_call_at_the_same_time(kernels: Library) -> None:
    kernels.use_threads(2)
    cases = [(draw(rows, 130, seed=rows), pack(draw(300, 130, seed=rows))) for rows in (1, 3, 8, 20)]
    expected = [bits(product(x, packed)) for x, packed in cases]

    def repeat(case: int) -> set[bytes]:
        return {bits(product(*cases[case])) for _ in range(40)}

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(repeat, range(4))) == [{one} for one in expected]


def states(of: set[str]) -> dict[str, str]:
    """What the system says of threads of this process that are still there: R computes or would, S sleeps."""
    found = {}
    for thread in of & set(os.listdir(TASKS)):
        found[thread] = (TASKS / thread / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    return found


def soon(holds: Callable[[], bool]) -> bool:
    """Whether something comes true within seconds."""
    deadline = time.monotonic() + 5
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


@pytest.mark.skipif(not TASKS.exists(), reason="this system does not show threads")
def test_workers_sleep_where_there_is_no_work_and_go_where_fewer_are_wanted(kernels: Library) -> None:
    x, packed = draw(5, 130), pack(draw(300, 130))
    kernels.use_threads(1)
    product(x, packed)
    others = set(os.listdir(TASKS))
    kernels.use_threads(3)
    for _ in range(20):
        product(x, packed)
    workers = set(os.listdir(TASKS)) - others
    assert len(workers) == 2
    assert soon(lambda: list(states(workers).values()) == ["S", "S"])
    kernels.use_threads(1)
    product(x, packed)
    assert soon(lambda: not states(workers))


def test_a_call_takes_microseconds(kernels: Library) -> None:
    kernels.use_threads(1)
    x, y, packed = draw(1, 3), draw(2), pack(draw(2, 3))
    call = Product(0, 1, x.data_ptr(), packed.record.address, None, 0.0, y.data_ptr())
    seconds = []
    for _ in range(30):
        started = time.perf_counter()
        for _ in range(50):
            kernels.product(call.address)
        seconds.append((time.perf_counter() - started) / 50)
    assert min(seconds) < 2e-5  # about half a microsecond on an idle machine


def in_a_child(holds: Callable[[], bool]) -> bool | None:
    """Whether something holds in a forked process; None where that hangs for a minute."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of threads, which is what is tested
        child = os.fork()
    if child == 0:
        os._exit(0 if holds() else 3)
    deadline = time.monotonic() + 60
    while (done := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(done[1]) == 0


@forks
def test_a_forked_process_can_call(kernels: Library) -> None:
    kernels.use_threads(2)
    x, packed = draw(5, 130), pack(draw(300, 130))
    expected = bits(product(x, packed))
    assert in_a_child(lambda: bits(product(x, packed)) == expected)
    assert bits(product(x, packed)) == expected


@forks
@pytest.mark.usefixtures("one_thread")
def test_workers_that_wake_late_go_through_blocks_that_are_done(kernels: Library) -> None:
    """Each layer's rows choose other experts, so a worker that comes to one after another has begun finds those."""
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
    model = make_model("qwen3_moe", torch.float32, seed=1, num_hidden_layers=24, hidden_size=17, **experts)
    assert model.kernels is not None
    cache = model.new_cache(3)

    def shown() -> Tensor:
        (out,) = model.score([(chain([5, 9, 11]), cache)], Capture())
        cache.rollback()
        assert out.logits is not None
        return out.logits

    def stay() -> bool:
        kernels.use_threads(3)
        for _ in range(600):
            time.sleep(0.0004)  # long enough for workers to fall asleep
            if not torch.equal(shown(), expected):
                return False
        return True

    expected = shown()
    assert in_a_child(stay)
