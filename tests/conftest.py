"""What holds for all tests: nothing of the machine they run on takes part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _no_settings_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No command reads the settings file of whoever runs the tests, and no colours are forced upon it."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("settings")))
    for name in ("SUREFOOT_CONFIG", "FORCE_COLOR", "NO_COLOR"):
        patch.delenv(name, raising=False)
    yield
    patch.undo()


@contextmanager
def _torch_on(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch computes on one thread, and then on as many as before."""
    with _torch_on(1):
        yield


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Torch computes on two threads, and then on as many as before."""
    with _torch_on(2):
        yield
