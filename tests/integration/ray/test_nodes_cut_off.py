"""A node that is cut off: it is silent and Ray does not report it as lost. Ray itself needs a minute for that."""

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
from tests.integration.ray.chaos import PATIENCE_S, chaotic, check, until
from tests.integration.ray.chaos_ends import rows_in
from tests.integration.ray.clusters import stopped
from tests.integration.ray.leftovers import actors
from tests.integration.ray.test_nodes import nodes

pytestmark = pytest.mark.long

GOES_ON_S: Final = 15.0
"""The longest time until a job that has lost a node continues without it."""

LATE_S: Final = 10.0
"""The extra time that a machine which is busy with other tests may need."""


def started(folder: Path) -> mp.JobHandle:
    """Start a job with three workers on two nodes that makes no snapshot during the test."""
    snapshots = mp.Snapshots(folder / "kept", interval_s=3600)
    job = chaotic(folder.name, folder / "out")
    return mp.RayRuntime(3, num_cpus=1, snapshots=snapshots).start(job)


def goes_on(handle: mp.JobHandle, since_s: float, deadline_s: float) -> None:
    """Wait until the job has restarted on two workers and reads."""
    until_s = since_s + deadline_s
    while (status := handle.status()).workers != 2 or status.phase != "steady" or status.counts.read < 100:
        assert time.monotonic() < until_s, status
        time.sleep(0.02)
    print(f"the job continued {time.monotonic() - since_s:.1f} s after the node was cut off")


def test_a_job_continues_without_a_node_cut_off_before_the_first_snapshot(cluster: Any, tmp_path: Path) -> None:
    handle = started(tmp_path)
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


def test_a_job_continues_without_a_node_cut_off_while_workers_start(cluster: Any, tmp_path: Path) -> None:
    handle = started(tmp_path)
    until(lambda: any(actor["ActorClassName"] == "WorkerActor" for actor in actors()), handle.status)
    [lost] = cluster.worker_nodes
    with stopped(lost):
        goes_on(handle, time.monotonic(), GOES_ON_S + LATE_S)
        handle.stop(timeout_s=PATIENCE_S)
    check(rows_in(tmp_path / "out"))


def test_workers_start_elsewhere_when_a_node_is_cut_off_while_they_join(cluster: Any, tmp_path: Path) -> None:
    snapshots = mp.Snapshots(tmp_path / "kept", interval_s=3600)
    # The first worker is beside the coordinator; the other node has more room for the next ones.
    runtime = mp.RayRuntime(1, num_cpus=0.6, placement="pack", snapshots=snapshots)
    handle = runtime.start(chaotic("joining", tmp_path / "out"))
    until(lambda: handle.status().phase == "steady" and handle.status().counts.read > 100, handle.status)
    [lost] = cluster.worker_nodes
    assert lost.node_id not in nodes()
    with stopped(lost):
        began_s = time.monotonic()
        assert handle.rescale(3, timeout_s=GOES_ON_S + LATE_S) is not None
        print(f"three workers were up {time.monotonic() - began_s:.1f} s after the request")
        assert handle.status().restarts == 0
        handle.stop(timeout_s=PATIENCE_S)
    check(rows_in(tmp_path / "out"))


def test_a_raylet_that_stops_for_five_seconds_is_not_lost(cluster: Any, tmp_path: Path) -> None:
    handle = started(tmp_path)
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


def test_a_worker_whose_function_holds_the_interpreter_lock_is_not_lost(cluster: Any, tmp_path: Path) -> None:
    def numbers(part: int, start: int) -> Iterator[int]:
        yield from range(start, 3)

    def held(number: int) -> int:
        if number == 0:
            ctypes.PyDLL(None).sleep(8)  # in a library that does not release the interpreter lock
        return number

    job = mp.Job("held")
    read = job.source("in", sources.Generator(numbers, parts=4))
    read.map("held", held).sink("out", sinks.Files(tmp_path / "out", format="json"))
    snapshots = mp.Snapshots(tmp_path / "kept", interval_s=1)
    handle = mp.RayRuntime(3, num_cpus=1, snapshots=snapshots).start(job)
    assert handle.wait(timeout_s=PATIENCE_S).written == 12
    assert handle.status().restarts == 0
