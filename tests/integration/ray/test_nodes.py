"""Clusters of several nodes: workers spread over them, use a new node, leave an old one, and survive a lost one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks
from tests.integration.ray.chaos import PATIENCE_S, chaotic, check, until
from tests.integration.ray.chaos_ends import rows_in
from tests.integration.ray.leftovers import actors, check_nothing_left, things
from tests.integration.ray.traffic import Attendance, Tour, check_counts, check_order, check_rows, memory_rows, traffic


def nodes() -> list[str]:
    """Return the nodes of the living workers."""
    return [actor["Address"]["NodeID"] for actor in actors() if actor["ActorClassName"] == "WorkerActor"]


@pytest.mark.long
def test_workers_start_on_a_new_node_and_leave_a_node_before_it_is_removed(
    cluster: Any, attendance: Attendance
) -> None:
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


@pytest.mark.long
def test_a_lost_node_ends_a_job_without_snapshots_with_a_peer_error(cluster: Any, attendance: Attendance) -> None:
    handle = mp.RayRuntime(2, num_cpus=1).start(traffic("lost-node", sinks.Memory(), attendance))
    Tour(handle, attendance).stay(2)
    [lost] = [node for node in cluster.worker_nodes if node.node_id in nodes()]
    cluster.remove_node(lost, allow_graceful=False)
    with pytest.raises(mp.PeerError, match=r"worker \d died|is gone"):
        handle.wait(timeout_s=30)


@pytest.mark.long("True")
@pytest.mark.parametrize("autoscaling", [False, True])
def test_s6_a_job_with_snapshots_continues_without_a_lost_node(autoscaling: bool, cluster: Any, tmp_path: Path) -> None:
    snapshots = mp.Snapshots(tmp_path / "kept", interval_s=0.5)
    timeout_s = 15 if autoscaling else 60  # with an autoscaler it is waited for a third worker for so long
    runtime = mp.RayRuntime(3, num_cpus=1, snapshots=snapshots, autoscaling=autoscaling, start_timeout_s=timeout_s)
    handle = runtime.start(chaotic("one-node-less", tmp_path / "out"))
    until(lambda: (made := handle.status().snapshots) is not None and made.last is not None, handle.status)
    assert len(set(nodes())) == 2
    [lost] = cluster.worker_nodes
    cluster.remove_node(lost, allow_graceful=False)
    until(lambda: handle.status().restarts > 0, handle.status)
    read = handle.status().counts.read
    until(lambda: handle.status().state == "running" and handle.status().counts.read > read + 100, handle.status)
    assert handle.status().workers == 2, "the remaining node has room for two"
    handle.stop(timeout_s=PATIENCE_S)
    rows = rows_in(tmp_path / "out")
    assert len(rows) > 100
    check(rows)


@pytest.mark.long
@pytest.mark.parametrize(("placement", "used"), [("spread", 2), ("pack", 1)])
def test_placement_spreads_or_packs_the_workers_and_the_coordinator_is_beside_the_head(
    placement: Any, used: int, cluster: Any, attendance: Attendance
) -> None:
    runtime = mp.RayRuntime(2, num_cpus=0.2, memory=10_000_000, placement=placement)
    handle = runtime.start(traffic("placed", sinks.Memory(), attendance))
    Tour(handle, attendance).stay(2)
    assert len(set(nodes())) == used
    [coordinator] = [actor for actor in actors() if actor["ActorClassName"] == "CoordinatorActor"]
    assert coordinator["Address"]["NodeID"] == cluster.head_node.node_id
    handle.stop(drain=False)
