"""Snapshots and savepoints by a handle: what is refused, and where a savepoint goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import JobEnded, PlanError, SnapshotError
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.workers.reports.commands import Command, SnapshotCommand, StopCommand
from tests.unit.workers.harness import PATIENCE_S, endless, idle, is_complete, start


class Elsewhere:
    """A job in another process, which notes what it is asked and returns ``result``."""

    name = "a"

    def __init__(self, result: Any) -> None:
        self.asked: list[tuple[Command, str]] = []
        self._result = result

    def ask(self, command: Command) -> Any:
        self.asked.append((command, command.what))
        return self._result


def test_a_job_without_snapshots_makes_none_and_goes_on() -> None:
    handle = start(idle("without"))
    with pytest.raises(SnapshotError, match="runs without snapshots"):
        handle.snapshot()
    with pytest.raises(SnapshotError, match="runs without snapshots"):
        handle.savepoint("/somewhere")
    assert handle.status().snapshots is None
    handle.stop(timeout_s=PATIENCE_S)
    with pytest.raises(JobEnded, match="cannot be saved in a snapshot: it has finished"):
        handle.snapshot()


@pytest.mark.parametrize("uri", ["", "x" * 2001, "x\0", 7, None, Path("there")], ids=repr)
def test_where_a_savepoint_is_to_be_is_checked(uri: Any) -> None:
    job = Elsewhere(None)
    with pytest.raises(PlanError, match="uri must be the place"):
        mp.JobHandle(job).savepoint(uri)
    with pytest.raises(PlanError, match="timeout_s must be a number"):
        mp.JobHandle(job).snapshot(timeout_s=-1)
    assert job.asked == []


def test_a_job_elsewhere_is_asked_and_a_path_is_one_of_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = Elsewhere(SnapshotId("20261122T042242123456Z-1a2b3c4d"))
    handle = mp.JobHandle(job)
    assert handle.snapshot(timeout_s=3) == SnapshotId("20261122T042242123456Z-1a2b3c4d")
    for uri in ("there", "s3://bucket/there", "file:/there", "/there"):
        handle.savepoint(uri, timeout_s=4)
    assert job.asked == [
        (SnapshotCommand(None, 3), "saved in a snapshot"),
        (SnapshotCommand(str(tmp_path / "there"), 4), f"saved to {tmp_path / 'there'}"),
        (SnapshotCommand("s3://bucket/there", 4), "saved to s3://bucket/there"),
        (SnapshotCommand("file:/there", 4), "saved to file:/there"),
        (SnapshotCommand("/there", 4), "saved to /there"),
    ]


def test_a_job_that_has_ended_tells_of_its_last_snapshot() -> None:
    job = mp.Job("ends-kept")
    job.source("in", sources.Memory(range(3))).sink("out", sinks.Memory())
    kept = mp.Snapshots(MemoryStore())
    handle = mp.InProcess(snapshots=kept).start(job, control=False)
    assert handle.wait(timeout_s=PATIENCE_S).snapshots == 1
    (last,) = kept.checkpointer("ends-kept").list_checkpoints()
    ended = handle.status().snapshots
    assert ended is not None
    assert (ended.last, ended.made) == (last, 1)


def test_a_stop_leaves_a_job_with_snapshots_to_be_gone_on_with() -> None:
    kept = mp.Snapshots(MemoryStore(), interval_s=None)
    job, out = endless("resumed")
    runtime = mp.InProcess(2, batch=mp.Batching(rows_max=50), snapshots=kept)
    stops: list[str] = []
    for _ in range(3):
        handle = runtime.start(job, control=False)
        handle.snapshot(timeout_s=PATIENCE_S)
        last = handle.stop(timeout_s=PATIENCE_S)
        assert last is not None
        assert handle.stop() == handle.stop(drain=False) == last, "to ask again is nothing new"
        assert handle.status().state == "stopped"
        with pytest.raises(JobEnded, match=f"can resume from snapshot {last}") as raised:
            handle.wait()
        assert raised.value.snapshot == last
        with pytest.raises(JobEnded, match="cannot be stopped with drain: it has been stopped"):
            handle.stop(drain=True)
        stops.append(last)
    assert stops == sorted(set(stops))
    handle = runtime.start(job, control=False)
    last = handle.stop(drain=True, timeout_s=PATIENCE_S)
    assert (handle.status().state, handle.wait().last_snapshot) == ("finished", last)
    assert handle.stop() == last, "it has ended"
    assert is_complete(out)
    again = runtime.start(job, control=False)
    assert again.wait(timeout_s=PATIENCE_S).resumed_finished
    assert not handle.wait().resumed_finished
    assert again.stop() == last


def test_a_stop_without_snapshots_drains_and_names_none() -> None:
    job, out = endless("drained")
    handle = start(job)
    assert handle.stop(timeout_s=PATIENCE_S) is None
    result = handle.wait()
    assert (result.written, result.last_snapshot, result.resumed_finished) == (len(out.items), None, False)
    assert start(idle("idle-drained")).stop(wait=False) is None


def test_a_job_elsewhere_says_with_which_snapshot_it_has_ended() -> None:
    job = Elsewhere(SnapshotId("20261122T042242123456Z-1a2b3c4d"))
    assert mp.JobHandle(job).stop(timeout_s=3) == "20261122T042242123456Z-1a2b3c4d"
    assert mp.JobHandle(Elsewhere(None)).stop(drain=True, wait=False) is None
    assert job.asked == [(StopCommand(None, True, 3), "stopped")]


class FailsOnce(sinks.Memory):
    """Cannot commit the first time."""

    failures = 0

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        if not self.failures:
            self.failures += 1
            raise OSError("as the test wants it")
        super().commit(context, payloads)


def test_what_an_earlier_attempt_of_this_start_has_finished_had_not_finished_before() -> None:
    job, out = mp.Job("late-fault"), FailsOnce()
    job.source("in", sources.Memory(range(3))).sink("out", out)
    runtime = mp.InProcess(snapshots=mp.Snapshots(MemoryStore()), restart=mp.Restart(backoff_s=0.0))
    handle = runtime.start(job, control=False)
    assert not handle.wait(timeout_s=PATIENCE_S).resumed_finished
    assert (handle.status().restarts, out.failures, out.items) == (1, 1, [0, 1, 2])
    assert runtime.run(job).resumed_finished
