"""One Ray at a time in this program, shared by all suites that need one."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from malstrom_py import sinks
from tests.integration.job_module import JobModule, MakeModule
from tests.integration.ray.traffic import Attendance
from tests.integration.transport.ends import local_ray


class RaySwitch:
    """The Ray that this program is connected to. A test that needs another kind of cluster replaces it."""

    def __init__(self) -> None:
        self._kind = ""
        self._made: Any = None
        self._stack = ExitStack()

    def use(self, kind: str, start: Callable[[], AbstractContextManager[Any]]) -> Any:
        """Return the cluster of this kind, started unless it runs already."""
        if kind != self._kind:
            self.close()
            self._made = self._stack.enter_context(start())
            self._kind = kind
        return self._made

    def close(self) -> None:
        """Stop the cluster."""
        self._kind = ""
        self._stack.close()


@pytest.fixture(scope="session")
def ray_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Create a folder for temporary files, and one for Ray, which needs short paths."""
    tmp_path_factory.getbasetemp()
    before = os.environ.copy()
    with (
        tempfile.TemporaryDirectory(prefix="malstrom-ray-") as folder,
        tempfile.TemporaryDirectory(prefix="mr-", dir="/tmp", ignore_cleanup_errors=True) as rays,
    ):
        os.environ |= {"TMPDIR": folder, "RAY_TMPDIR": rays}
        tempfile.tempdir = None
        try:
            yield
        finally:
            os.environ.clear()
            os.environ |= before
            tempfile.tempdir = None


@pytest.fixture(scope="session")
def rays(ray_folders: None) -> Iterator[RaySwitch]:
    """Return the switch for the Ray of this program."""
    switch = RaySwitch()
    yield switch
    switch.close()


@pytest.fixture
def out(tidy: None) -> sinks.Memory:
    """Return a sink for a test that must leave nothing: ``tidy`` of its folder checks that."""
    return sinks.Memory()


@pytest.fixture
def job_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeModule]:
    """Return what makes the module of a job, which processes that are started from now on can import."""
    name = f"job{os.getpid()}x{abs(hash(str(tmp_path)))}"
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda text: JobModule(tmp_path / f"{name}.py", text)
    sys.modules.pop(name, None)


@pytest.fixture
def attendance(tmp_path: Path) -> Attendance:
    """Return an attendance list in a new folder."""
    folder = tmp_path / "attendance"
    folder.mkdir()
    return Attendance(folder)


@pytest.fixture
def ray_here(rays: RaySwitch) -> None:
    """Connect to a local Ray with room for many small workers."""
    rays.use("local", lambda: local_ray(num_cpus=4))
