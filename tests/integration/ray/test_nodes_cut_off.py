"""A node that is cut off: it answers nothing, and its loss is not reported. Ray itself takes a minute to see it."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from tests.integration.ray.chaos import PATIENCE_S, chaotic, check, rows_in, until
from tests.integration.ray.clusters import stopped
from tests.integration.ray.leftovers import actors
from tests.integration.ray.test_nodes import nodes

GOES_ON_S: Final = 15.0
"""The deadline for a job that has lost a node to continue without it."""

LATE_S: Final = 10.0
"""What a machine that is busy with other tests may take beyond that."""


def started(folder: Path, streams: Any) -> mp.JobHandle:
    """A job with three workers on two nodes, and no snapshot for as long as the test takes."""
    snapshots = mp.Snapshots(folder / "kept", interval_s=3600)
    job = chaotic(folder.name, folder / "out")
    return mp.RayRuntime(3, num_cpus=1, streams=streams, snapshots=snapshots).start(job)


def goes_on(handle: mp.JobHandle, since_s: float, deadline_s: float) -> None:
    """Wait until a job on two workers reads after a restart."""
    until_s = since_s + deadline_s
    while (status := handle.status()).workers != 2 or status.phase != "steady" or status.counts.read < 100:
        assert time.monotonic() < until_s, status
        time.sleep(0.02)
    print(f"the job resumed {time.monotonic() - since_s:.1f} s after the node was cut off")


@pytest.mark.parametrize("streams", ["direct", "ray"])
def test_a_node_cut_off_before_the_first_snapshot_is_gone_on_without(
    streams: str, cluster: Any, tmp_path: Path
) -> None:
    handle = started(tmp_path, streams)
    until(lambda: handle.status().phase == "steady" and handle.status().counts.read > 100, handle.status)
    [lost] = cluster.worker_nodes
    assert lost.node_id in nodes()
    with stopped(lost):
        goes_on(handle, time.monotonic(), GOES_ON_S + LATE_S)
        restarts = handle.status().restarts
        assert restarts in {1, 2}  # a first restart may still have tried the node that was cut off
    # The workers that were cut off wake up. What they send is ignored.
    time.sleep(1.0)
    assert handle.status().restarts == restarts
    handle.stop(timeout_s=PATIENCE_S)
    rows = rows_in(tmp_path / "out")
    assert len(rows) > 100
    check(rows)


def test_a_node_cut_off_while_workers_come_up_is_gone_on_without(cluster: Any, tmp_path: Path) -> None:
    handle = started(tmp_path, "direct")
    until(lambda: any(actor["ActorClassName"] == "WorkerActor" for actor in actors()), handle.status)
    [lost] = cluster.worker_nodes
    with stopped(lost):
        goes_on(handle, time.monotonic(), GOES_ON_S + LATE_S)
        handle.stop(timeout_s=PATIENCE_S)
    check(rows_in(tmp_path / "out"))


def test_a_node_cut_off_while_workers_join_has_others_hired_elsewhere(cluster: Any, tmp_path: Path) -> None:
    snapshots = mp.Snapshots(tmp_path / "kept", interval_s=3600)
    # The first is beside the coordinator, and for the next there is more room on the other node.
    runtime = mp.RayRuntime(1, num_cpus=0.6, placement="pack", snapshots=snapshots)
    handle = runtime.start(chaotic("joining", tmp_path / "out"))
    until(lambda: handle.status().phase == "steady" and handle.status().counts.read > 100, handle.status)
    [lost] = cluster.worker_nodes
    assert lost.node_id not in nodes()
    with stopped(lost):
        began_s = time.monotonic()
        assert handle.rescale(3, timeout_s=GOES_ON_S + LATE_S) is not None
        print(f"three workers were there {time.monotonic() - began_s:.1f} s after they were asked for")
        assert handle.status().restarts == 0
        handle.stop(timeout_s=PATIENCE_S)
    check(rows_in(tmp_path / "out"))


def test_a_raylet_that_is_held_up_for_five_seconds_is_not_lost(cluster: Any, tmp_path: Path) -> None:
    handle = started(tmp_path, "ray")  # here nodes are looked at all the time
    until(lambda: handle.status().phase == "steady" and handle.status().counts.read > 100, handle.status)
    [busy] = cluster.worker_nodes
    [raylet] = busy.all_processes["raylet"]
    os.kill(raylet.process.pid, signal.SIGSTOP)
    try:
        time.sleep(5.0)
    finally:
        os.kill(raylet.process.pid, signal.SIGCONT)
    read = handle.status().counts.read
    until(lambda: handle.status().counts.read > read + 100, handle.status)
    assert (handle.status().restarts, handle.status().workers) == (0, 3)
    handle.stop(timeout_s=PATIENCE_S)
    check(rows_in(tmp_path / "out"))


def test_a_worker_whose_function_keeps_the_interpreter_to_itself_is_not_lost(cluster: Any, tmp_path: Path) -> None:
    def numbers(part: int, start: int) -> Iterator[int]:
        yield from range(start, 3)

    def held(number: int) -> int:
        if number == 0:
            ctypes.PyDLL(None).sleep(8)  # by a library that does not release the interpreter's lock
        return number

    job = mp.Job("held")
    read = job.source("in", sources.Generator(numbers, parts=4))
    read.map("held", held).sink("out", sinks.Files(tmp_path / "out", format="json"))
    snapshots = mp.Snapshots(tmp_path / "kept", interval_s=1)
    handle = mp.RayRuntime(3, num_cpus=1, snapshots=snapshots).start(job)
    assert handle.wait(timeout_s=PATIENCE_S).written == 12
    assert handle.status().restarts == 0
