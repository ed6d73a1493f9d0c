"""No test of loading may open a connection."""

from __future__ import annotations

import socket

import pytest


class SocketOpenedError(AssertionError):
    """Something reached for the network."""


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every new socket a failure."""

    def refuse(*_: object, **__: object) -> None:
        raise SocketOpenedError

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
