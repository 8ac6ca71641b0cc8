"""Fixtures of the data set tests."""

from __future__ import annotations

import builtins
import socket

import pytest


@pytest.fixture
def no_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test in which something asks on stdin or looks up a name on the network."""

    def ask(prompt: object = "") -> str:
        pytest.fail(f"asked on stdin: {prompt}")

    def look_up(host: object, *_: object, **__: object) -> object:
        pytest.fail(f"looked up {host} on the network")

    monkeypatch.setattr(builtins, "input", ask)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
