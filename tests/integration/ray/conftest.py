"""Jobs on a Ray of this machine alone. Whatever a test does, it leaves nothing of its jobs behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from malstrom_py import sinks
from tests.integration.ray.leftovers import check_nothing_left, kill_jobs, things
from tests.integration.ray.traffic import Attendance
from tests.integration.transport.ends import local_ray


@pytest.fixture(scope="module", autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder for temporary files that nobody else uses, and one for Ray, whose paths must be short."""
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


@pytest.fixture(scope="module")
def ray_here(temporary: None) -> Iterator[None]:
    """A Ray of these tests, with room for many small workers."""
    with local_ray(num_cpus=4):
        yield


@pytest.fixture
def tidy(ray_here: None) -> Iterator[None]:
    """Checks that the test leaves nothing behind."""
    before = things()
    yield
    try:
        check_nothing_left(before)
    finally:
        kill_jobs()


@pytest.fixture
def out(tidy: None) -> sinks.Memory:
    return sinks.Memory()


@pytest.fixture
def attendance(tmp_path: Path) -> Attendance:
    """Who works, in a folder of its own."""
    folder = tmp_path / "attendance"
    folder.mkdir()
    return Attendance(folder)
