"""The kernels for tests, one instruction set after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from surefoot import native
from surefoot.native.library import INSTRUCTIONS, Library


@pytest.fixture
def kernels() -> Iterator[Library]:
    """The kernels, left as they were found."""
    opened = native.available()
    if opened is None:
        pytest.skip(f"there are no kernels: {native.why_not()}")
    before = opened.instructions
    yield opened
    opened.choose(before)
    opened.use_threads(None)


@pytest.fixture(params=INSTRUCTIONS)
def each_set(kernels: Library, request: pytest.FixtureRequest) -> str:
    """Every instruction set this processor has, in turn."""
    if not kernels.choose(request.param):
        pytest.skip(f"this processor, or the compiler, has no {request.param}")
    return str(request.param)
