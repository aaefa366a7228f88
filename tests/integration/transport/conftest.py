"""Implementations of `Transport`, with ends that are closed when their test is over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.transport.ends import Kind, ZeroMQKind


@pytest.fixture(params=["127.0.0.1", None], ids=["tcp", "unix"])
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    made = ZeroMQKind(request.param)
    yield made
    made.close()


@pytest.fixture
def zeromq() -> Iterator[ZeroMQKind]:
    made = ZeroMQKind()
    yield made
    made.close()


@pytest.fixture
def local() -> Iterator[ZeroMQKind]:
    """Ends of one machine, over Unix sockets."""
    made = ZeroMQKind(None)
    yield made
    made.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ends of this process take a peer that is silent for a second for dead."""
    for name, ms in (("_HEARTBEAT_MS", 300), ("_SILENCE_MS", 1000), ("_HANDSHAKE_MS", 1500)):
        monkeypatch.setattr(f"malstrom_py.workers.transport.zeromq.{name}", ms)
