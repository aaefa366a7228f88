"""Jobs that can be reached through control sockets, in a folder of each test's own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.workers.control import client as control_client
from malstrom_py.workers.control import messages as control_messages
from malstrom_py.workers.control import server as control_socket
from malstrom_py.workers.control.messages import Reply
from malstrom_py.workers.control.registry import server_directory
from tests.endless import endless_numbers
from tests.unit.workers.harness import PATIENCE_S


@pytest.fixture(autouse=True)
def runtime(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of sockets and tokens, empty."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))
    return server_directory()


@pytest.fixture
def out() -> sinks.Memory:
    return sinks.Memory()


@pytest.fixture
def handle(out: sinks.Memory) -> Iterator[mp.JobHandle]:
    """Of a job without an end."""
    job = mp.Job("endless")
    numbers = job.source("numbers", sources.Generator(endless_numbers, parts=4))
    numbers.key_by("key", lambda n: n % 20).count("seen").sink("out", out)
    started = mp.InProcess(2).start(job)
    yield started
    if started.status().state in {"running", "rescaling"}:
        started.stop(drain=False, timeout_s=PATIENCE_S)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released whenever a client of this process hears something: that it is waited for, or its answer."""
    released, decode = threading.Semaphore(0), control_messages.decode_answer

    def hear(payload: bytes) -> Reply:
        released.release()
        return decode(payload)

    monkeypatch.setattr(control_client, "decode_answer", hear)
    monkeypatch.setattr(control_socket, "WAITING_S", 0.05)
    return released
