"""Ray clusters for these tests: one Ray at a time in this program, and one shared cluster of `ray start`.

The fixtures `tidy` and `out` check that a test leaves no actor, process, port, thread or file of its jobs.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
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


@pytest.fixture(scope="package", autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
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


@pytest.fixture(scope="package")
def rays(temporary: None) -> Iterator[RaySwitch]:
    """Return the switch for the Ray of this program."""
    switch = RaySwitch()
    yield switch
    switch.close()


@pytest.fixture
def ray_here(rays: RaySwitch) -> None:
    """Connect to a local Ray with room for many small workers."""
    rays.use("local", lambda: local_ray(num_cpus=4))


@pytest.fixture
def tidy(ray_here: None) -> Iterator[None]:
    """Check that the test leaves nothing: see `check_nothing_left`."""
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
    """Return an attendance list in a new folder."""
    folder = tmp_path / "attendance"
    folder.mkdir()
    return Attendance(folder)


@contextmanager
def two_nodes_here() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("PYTHONPATH", str(ROOT))
        environ.delenv("RAY_AUTH_MODE", raising=False)
        with two_nodes() as made:
            yield made


@pytest.fixture
def cluster(rays: RaySwitch) -> Iterator[Any]:
    """Connect to two nodes with room for two workers each. A second node that an earlier test lost is replaced."""
    shared_cluster = rays.use("two nodes", two_nodes_here)
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


@pytest.fixture(scope="package")
def started_cluster(temporary: None) -> Iterator[StartedCluster]:
    """Return the cluster of `ray start` that all tests share that do not stop it."""
    with by_ray_start() as cluster:
        yield cluster


@pytest.fixture
def own_cluster() -> Iterator[StartedCluster]:
    """Start a cluster with `ray start` for one test, which may kill it."""
    with by_ray_start() as cluster:
        yield cluster
