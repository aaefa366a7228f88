"""Jobs on a Ray of this machine alone. Whatever a test does, it leaves nothing of its jobs behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from malstrom_py import sinks
from tests.integration.ray.clusters import StartedCluster, by_ray_start, two_nodes
from tests.integration.ray.leftovers import actors, check_nothing_left, kill_jobs, things, until
from tests.integration.ray.traffic import Attendance
from tests.integration.transport.ends import local_ray
from tests.tree import ROOT


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


@pytest.fixture(scope="module")
def shared_cluster(temporary: None) -> Iterator[Any]:
    """Two nodes, with room for two workers each."""
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("PYTHONPATH", str(ROOT))
        environ.delenv("RAY_AUTH_MODE", raising=False)
        with two_nodes() as made:
            yield made


@pytest.fixture
def cluster(shared_cluster: Any) -> Iterator[Any]:
    """Two nodes, with room for two workers each: where a test has lost the second, the next one has a new one."""
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}  # type: ignore[no-untyped-call]
    for node in list(shared_cluster.worker_nodes):
        if node.node_id not in alive:
            shared_cluster.remove_node(node, allow_graceful=False)
    if not shared_cluster.worker_nodes:
        shared_cluster.add_node(num_cpus=2)
    shared_cluster.wait_for_nodes()
    yield shared_cluster
    kill_jobs()
    until(lambda: actors() == [])


@pytest.fixture
def started_cluster() -> Iterator[StartedCluster]:
    """A cluster of `ray start`, killed after the test."""
    with by_ray_start() as cluster:
        yield cluster
