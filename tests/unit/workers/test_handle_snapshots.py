"""Snapshots and savepoints by a handle: what is refused, and where a savepoint goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import ControlError, JobEnded, PlanError, SnapshotError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.workers.asking import AskedJob
from malstrom_py.workers.control_messages import Answer, Ask, AskSnapshot, Done, SnapshotMade
from tests.unit.workers.started_jobs import PATIENCE_S, idle, start


class Elsewhere(AskedJob):
    """A job in another process, which notes what it is asked and gives ``answer``."""

    def __init__(self, answer: Answer) -> None:
        super().__init__("a")
        self.asked: list[tuple[Ask, str]] = []
        self._answer = answer

    def ask(self, ask: Ask, what: str) -> Answer:
        self.asked.append((ask, what))
        return self._answer


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
    job = Elsewhere(Done())
    with pytest.raises(PlanError, match="uri says where"):
        mp.JobHandle(job).savepoint(uri)
    with pytest.raises(PlanError, match="timeout_s is a number"):
        mp.JobHandle(job).snapshot(timeout_s=-1)
    assert job.asked == []


def test_a_job_elsewhere_is_asked_and_a_path_is_one_of_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = Elsewhere(SnapshotMade("20261122T042242123456Z-1a2b3c4d"))
    handle = mp.JobHandle(job)
    assert handle.snapshot(timeout_s=3) == SnapshotId("20261122T042242123456Z-1a2b3c4d")
    for uri in ("there", "s3://bucket/there", "file:/there", "/there"):
        handle.savepoint(uri, timeout_s=4)
    assert job.asked == [
        (AskSnapshot(None, 3), "saved in a snapshot"),
        (AskSnapshot(str(tmp_path / "there"), 4), f"saved to {tmp_path / 'there'}"),
        (AskSnapshot("s3://bucket/there", 4), "saved to s3://bucket/there"),
        (AskSnapshot("file:/there", 4), "saved to file:/there"),
        (AskSnapshot("/there", 4), "saved to /there"),
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


def test_an_answer_of_another_kind_is_a_control_error() -> None:
    with pytest.raises(ControlError, match="answered with Done"):
        mp.JobHandle(Elsewhere(Done())).snapshot()
