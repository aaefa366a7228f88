"""Unit tests neither sleep, nor open sockets, nor start Ray: each of these raises `ForbiddenInUnitTest` here.

A test that needs one of them belongs to tests/integration. Time is passed in, so no unit test has to wait for it.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Final

import pytest

MEMORY: Final = Path("/dev/shm")
ROOM_BYTES: Final = 2 << 30
IN_MEMORY: Final = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM_BYTES


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is room: tests of files wait for a disk a third of their time."""
    if not IN_MEMORY:
        yield tmp_path
        return
    with TemporaryDirectory(prefix="mt-", dir=MEMORY, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


class ForbiddenInUnitTest(AssertionError):
    """A unit test reached for the outside world."""


_earlier: set[int | None] = set()
"""Threads that ran before the unit test of now."""


def _forbid(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, called: str) -> None:
    allowed = getattr(owner, name)

    def raise_forbidden(*args: Any, **kwargs: Any) -> Any:
        # Threads that another suite has left in this process, such as those that talk to a JVM, may continue.
        if threading.current_thread().ident in _earlier:
            return allowed(*args, **kwargs)
        raise ForbiddenInUnitTest(f"{called} is forbidden in tests/unit: pass it in, or move this to tests/integration")

    monkeypatch.setattr(owner, name, raise_forbidden)


class _RayWatch(Loader, MetaPathFinder):
    """Lets `import ray` happen, and forbids `ray.init` as soon as it has. Nothing is imported to set this up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._inner: Loader | None = None

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find `ray` as usual, and replace its loader."""
        spec = PathFinder.find_spec(name, path, target) if name == "ray" else None
        if spec is not None and spec.loader is not None:
            self._inner, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the real loader does."""
        assert self._inner is not None
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the real module, then take its `init` away."""
        assert self._inner is not None
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._inner
        self._inner.exec_module(module)
        _forbid(self._monkeypatch, module, "init", "ray.init")


@pytest.fixture(autouse=True)
def outside_world_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make `time.sleep`, sockets and `ray.init` raise during every unit test."""
    _earlier.clear()
    _earlier.update({thread.ident for thread in threading.enumerate()} - {threading.current_thread().ident})
    _forbid(monkeypatch, time, "sleep", "time.sleep")
    _forbid(monkeypatch, socket.socket, "connect", "socket.connect")
    _forbid(monkeypatch, socket.socket, "bind", "socket.bind")
    open_socket = socket.socket.__init__

    def open_adopted_only(
        self: socket.socket, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None
    ) -> None:
        # An open descriptor reaches no other process: asyncio wakes itself up through such a pair.
        if fileno is None and threading.current_thread().ident not in _earlier:
            raise ForbiddenInUnitTest("socket.socket is forbidden in tests/unit: move this test to tests/integration")
        open_socket(self, family, type, proto, fileno)

    monkeypatch.setattr(socket.socket, "__init__", open_adopted_only)
    if "ray" in sys.modules:
        _forbid(monkeypatch, sys.modules["ray"], "init", "ray.init")
    watch = _RayWatch(monkeypatch)
    sys.meta_path.insert(0, watch)
    yield
    sys.meta_path.remove(watch)
