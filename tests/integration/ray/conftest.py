"""Ray clusters for these tests: one Ray at a time in this program, and one shared cluster of `ray start`.

The fixtures `tidy` and `out` check that a test leaves no actor, process, port, thread or file of its jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import ray

from tests.integration.ray.clusters import StartedCluster, by_ray_start, two_nodes
from tests.integration.ray.leftovers import actors, check_nothing_left, kill_jobs, things, until
from tests.tree import ROOT


@pytest.fixture(autouse=True)
def in_short_folders(ray_folders: None) -> None:
    """Keep the files of these tests where Ray finds them."""


@pytest.fixture
def tidy(ray_here: None) -> Iterator[None]:
    """Check that the test leaves nothing: see `check_nothing_left`."""
    before = things()
    yield
    try:
        check_nothing_left(before)
    finally:
        kill_jobs()


@contextmanager
def two_nodes_here() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("PYTHONPATH", str(ROOT))
        environ.delenv("RAY_AUTH_MODE", raising=False)
        with two_nodes() as made:
            yield made


@pytest.fixture
def cluster(rays: Any) -> Iterator[Any]:
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
def started_cluster(ray_folders: None) -> Iterator[StartedCluster]:
    """Return the cluster of `ray start` that all tests share that do not stop it."""
    with by_ray_start() as cluster:
        yield cluster


@pytest.fixture
def own_cluster() -> Iterator[StartedCluster]:
    """Start a cluster with `ray start` for one test, which may kill it."""
    with by_ray_start() as cluster:
        yield cluster
