"""A cluster of several nodes: workers spread, come to one that joins, leave one that goes, outlive one that dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private.authentication import authentication_token_setup
from ray.cluster_utils import Cluster

import malstrom_py as mp
from malstrom_py import sinks
from tests.integration.ray.chaos import PATIENCE_S, chaotic, check, rows_in, until
from tests.integration.ray.leftovers import actors, check_nothing_left, things
from tests.integration.ray.traffic import Attendance, Tour, check_counts, check_order, check_rows, memory_rows, traffic
from tests.tree import ROOT


@pytest.fixture
def cluster(temporary: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes, with room for two workers each."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # What a program of its own does when it starts a Ray: whoever ran before may have settled half of it.
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    authentication_token_setup.enable_token_auth_by_default()
    authentication_token_setup.ensure_token_if_auth_enabled()
    made: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    made.add_node(num_cpus=2)
    ray.init(address=made.address, log_to_driver=False)
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def nodes() -> list[str]:
    """The nodes of the living workers."""
    return [actor["Address"]["NodeID"] for actor in actors() if actor["ActorClassName"] == "WorkerActor"]


def test_workers_go_to_a_node_that_joins_and_leave_one_that_goes(cluster: Any, attendance: Attendance) -> None:
    before, out = things(), sinks.Memory()
    handle = mp.RayRuntime(2, num_cpus=1).start(traffic("nodes", out, attendance))
    tour = Tour(handle, attendance)
    tour.stay(2)
    assert len(set(nodes())) == 2
    with pytest.raises(mp.PlanError, match=r"5 workers of 1 CPU each .* room for 4 \(2 nodes\)"):
        handle.rescale(5)

    joined = cluster.add_node(num_cpus=4)
    cluster.wait_for_nodes()
    tour.go(5)
    assert joined.node_id in nodes()
    tour.go(2)
    assert joined.node_id not in nodes()
    cluster.remove_node(joined)
    tour.stay(2)
    tour.go(3)
    handle.stop()
    result = handle.wait()
    check_rows(memory_rows(out), result)
    check_order(out.by_key)
    check_counts(result)
    check_nothing_left(before)


def test_a_node_that_is_lost_is_told(cluster: Any, attendance: Attendance) -> None:
    handle = mp.RayRuntime(2, num_cpus=1).start(traffic("lost-node", sinks.Memory(), attendance))
    Tour(handle, attendance).stay(2)
    [lost] = [node for node in cluster.worker_nodes if node.node_id in nodes()]
    cluster.remove_node(lost, allow_graceful=False)
    with pytest.raises(mp.PeerError, match=r"worker \d died|is gone"):
        handle.wait(timeout_s=30)


def test_s6_a_job_with_snapshots_goes_on_without_a_node_that_is_lost(cluster: Any, tmp_path: Path) -> None:
    runtime = mp.RayRuntime(3, num_cpus=1, snapshots=mp.Snapshots(tmp_path / "kept", interval_s=0.5))
    handle = runtime.start(chaotic("one-node-less", tmp_path / "out"))
    until(lambda: (made := handle.status().snapshots) is not None and made.last is not None, handle.status)
    assert len(set(nodes())) == 2
    [lost] = cluster.worker_nodes
    cluster.remove_node(lost, allow_graceful=False)
    until(lambda: handle.status().restarts > 0, handle.status)
    read = handle.status().counts.read
    until(lambda: handle.status().state == "running" and handle.status().counts.read > read + 100, handle.status)
    assert handle.status().workers == 2, "there is room for two on the node that is left"
    handle.stop(timeout_s=PATIENCE_S)
    rows = rows_in(tmp_path / "out")
    assert len(rows) > 100
    check(rows)
