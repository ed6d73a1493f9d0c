"""What holds for all tests: nothing of the machine they run on takes part."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _no_settings_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No command reads the settings file of whoever runs the tests, and no colours are forced upon it."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("settings")))
    for name in ("SUREFOOT_CONFIG", "FORCE_COLOR", "NO_COLOR"):
        patch.delenv(name, raising=False)
    yield
    patch.undo()
