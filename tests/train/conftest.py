"""The tiny target, once for all tests of a session."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.train.teaching import loaded, make_target

from surefoot.loading.loaded import LoadedTarget


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def target_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(tmp_path_factory.mktemp("training") / "target")


@pytest.fixture(scope="session")
def target(target_path: Path) -> LoadedTarget:
    return loaded(target_path)
