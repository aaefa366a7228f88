"""A coordinator whose process is stopped (SIGSTOP) is replaced, and a slow one is not (S6, S7)."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.errors import FencedError
from malstrom_py.sinks.base import CommitContext
from malstrom_py.workers.ray import coordinator_actor, coordinator_watch
from malstrom_py.workers.ray.coordinator_actor import CoordinatorJournal
from tests.integration.ray.chaos import PATIENCE_S, chaotic, check, until
from tests.integration.ray.chaos_ends import rows_in
from tests.integration.ray.clusters import StartedCluster
from tests.integration.ray.leftovers import is_alive, pids
from tests.integration.ray.programs import malstrom, program, said

SILENT_S = 2.0


def started(folder: Path, sink: sinks.Files | None = None) -> mp.JobHandle:
    runtime = mp.RayRuntime(2, num_cpus=0.2, snapshots=mp.Snapshots(folder / "kept", interval_s=0.5))
    return runtime.start(chaotic("stopped", folder / "out", sink=sink))


def test_s7_a_stopped_coordinator_is_replaced(tidy: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_watch, "SILENT_S", SILENT_S)
    handle = started(tmp_path)
    first = handle.snapshot()
    [pid] = pids("CoordinatorActor")
    os.kill(pid, signal.SIGSTOP)
    until(lambda: not is_alive(pid), lambda: f"process {pid} is alive")
    until(lambda: handle.status().restarts == 1, handle.status)
    assert handle.snapshot() > first
    handle.stop(drain=True, timeout_s=PATIENCE_S)
    assert handle.wait().last_snapshot is not None
    check(rows_in(tmp_path / "out"))


DETACHED = """
import os, sys, time
from pathlib import Path
import ray
import malstrom_py as mp
from malstrom_py.workers.ray import coordinator_watch
from malstrom_py.workers.ray.cluster import NAMESPACE
from tests.integration.ray.chaos import chaotic
coordinator_watch.SILENT_S = float(sys.argv[3])
kept = mp.Snapshots(Path(sys.argv[1]) / "kept", interval_s=0.5)
runtime = mp.RayRuntime(2, num_cpus=0.2, address=sys.argv[2], detached=True, snapshots=kept)
handle = runtime.start(chaotic("stopped", Path(sys.argv[1]) / "out"))
handle.snapshot()
print(ray.get(ray.get_actor("stopped", namespace=NAMESPACE).process.remote()).pid)
"""


@pytest.mark.long
def test_s7_a_stopped_coordinator_of_a_detached_job_is_replaced(
    tmp_path: Path, started_cluster: StartedCluster
) -> None:
    address = started_cluster.address
    with program(tmp_path, DETACHED, tmp_path, address, SILENT_S) as process:
        pid = int(said(process))
    os.kill(pid, signal.SIGSTOP)
    until(lambda: not is_alive(pid), lambda: f"process {pid} is alive")
    kept = mp.Snapshots(tmp_path / "kept").checkpointer("stopped")
    last = kept.list_checkpoints()[-1]
    until(lambda: kept.list_checkpoints()[-1] > last, kept.list_checkpoints)
    with malstrom(tmp_path, "stop", "stopped", "--drain", "--address", address, **started_cluster.environment) as stop:
        said(stop)
    check(rows_in(tmp_path / "out"))


class HoldsTheLock(sinks.Files):
    """A sink whose third commit holds the interpreter's lock in the coordinator, and writes the file ``held`` then."""

    commits = 0
    held: Path

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Commit, and hold the lock once, as a library that does not release it."""
        super().commit(context, payloads)
        self.commits += 1
        if self.commits == 3:
            ctypes.PyDLL(None).sleep(int(4 * SILENT_S))
            self.held.touch()


@pytest.mark.long
def test_a_coordinator_that_holds_the_interpreter_lock_is_not_replaced(
    tidy: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_watch, "SILENT_S", SILENT_S)
    sink = HoldsTheLock(tmp_path / "out", format="json")
    sink.held = tmp_path / "held"
    handle = started(tmp_path, sink)
    until(sink.held.exists, handle.status)
    handle.snapshot()
    status = handle.status()
    assert (status.restarts, status.state) == (0, "running")
    handle.stop(drain=True, timeout_s=PATIENCE_S)
    check(rows_in(tmp_path / "out"))


class Kept:
    """Ray's key-value store in memory."""

    def __init__(self) -> None:
        self.data: dict[bytes, Any] = {}

    def _internal_kv_put(self, key: bytes, value: Any, namespace: bytes) -> None:
        self.data[key] = value

    def _internal_kv_get(self, key: bytes, namespace: bytes) -> Any:
        return self.data.get(key)

    def _internal_kv_del(self, key: bytes, namespace: bytes) -> None:
        self.data.pop(key, None)


def test_s7_a_coordinator_that_was_replaced_leaves_the_journal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    monkeypatch.setattr(coordinator_actor, "_store", lambda: kept)
    old = CoordinatorJournal("actor", kept=True)
    old.has_begun()
    new = CoordinatorJournal("actor", kept=True)
    new.restarted(died_at_s=1.0)
    new.completed("2")
    with pytest.raises(FencedError, match="another coordinator has replaced this one"):
        old.completed("1")
    old.forget()
    third = CoordinatorJournal("actor", kept=True).entry
    assert (third.has_begun, third.restarts, third.last_known) == (True, 1, "2")
    new.forget()
    assert kept.data == {}


def test_a_process_that_is_not_stopped_or_not_the_same_is_not_ended() -> None:
    with subprocess.Popen(["sleep", str(PATIENCE_S)]) as process:
        try:
            pid = process.pid
            _, began = coordinator_watch.state_of(pid)
            assert not coordinator_watch.end_if_stopped(pid, began)
            process.send_signal(signal.SIGSTOP)
            until(lambda: coordinator_watch.state_of(pid)[0] == "T", lambda: coordinator_watch.state_of(pid))
            assert not coordinator_watch.end_if_stopped(pid, "1")
            assert not coordinator_watch.end_if_stopped(pid, "")
            assert is_alive(pid)
            assert coordinator_watch.end_if_stopped(pid, began)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL
    assert not coordinator_watch.end_if_stopped(pid, began)
