"""Snapshots and savepoints that are asked for, and what a stop and a recovery make of commands."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from malstrom_py.errors import InternalError, JobEnded, MalstromError, OperationInProgress, SnapshotError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.workers.coordinator import command_queue as controls_module
from malstrom_py.workers.coordinator.command_queue import CommandQueue, SnapshotDone
from malstrom_py.workers.coordinator.rescale_requests import Done
from malstrom_py.workers.reports.commands import RescaleCommand, SnapshotCommand, StatusCommand
from malstrom_py.workers.reports.job_status import JobOutcome, Moving, RescaleReport, SnapshotStatus
from malstrom_py.workers.reports.result import RunResult

NOTHING = RunResult("a", {}, 0.0)
ID = SnapshotId("20261122T042242123456Z-1a2b3c4d")


class Workers:
    """Fake workers with snapshots that execute commands when the test decides."""

    def __init__(self) -> None:
        self.members: tuple[int, ...] = (0,)
        self.phase = "steady"
        self.moving: Moving | None = None
        self.suspended = False
        self.snapshots: SnapshotStatus | None = SnapshotStatus(None, None, 0)
        self.told: list[str] = []
        self.waiting: list[Any] = []

    def rescale(self, size: int | None, done: Done) -> None:
        self.told.append(f"rescale {size}")
        self.waiting.append(done)

    def snapshot(self, done: SnapshotDone, *, copy_to: str | None = None) -> None:
        self.told.append("snapshot" if copy_to is None else f"savepoint {copy_to}")
        if copy_to == "nowhere":
            raise SnapshotError("there is no such place")
        self.waiting.append(done)

    def drain(self) -> None:
        self.told.append("drain")

    def suspend(self) -> None:
        self.told.append("suspend")

    def finish(self, came: SnapshotId | RescaleReport | MalstromError = ID) -> None:
        self.snapshots = SnapshotStatus(ID, 1.5, 1)
        self.waiting.pop(0)(came)


@pytest.fixture
def workers() -> Workers:
    return Workers()


@pytest.fixture
def controls() -> CommandQueue:
    made = CommandQueue("a")
    made.enter("opening", NOTHING, 1)
    made.loop()
    return made


def obey(controls: CommandQueue, workers: Workers) -> None:
    controls.obey(workers, lambda: NOTHING)


def rescale(controls: CommandQueue, size: int, *, wait: bool = True) -> Future[Any]:
    return controls.submit(RescaleCommand(size, wait, 1.0))


def save(controls: CommandQueue, uri: str | None = None) -> Future[Any]:
    return controls.submit(SnapshotCommand(uri, 1.0))


def test_a_snapshot_is_asked_for_once_and_answered_with_its_id(controls: CommandQueue, workers: Workers) -> None:
    asked = save(controls)
    assert controls.pending
    assert controls.wake.is_set()
    obey(controls, workers)
    obey(controls, workers)
    assert workers.told == ["snapshot"]
    assert not asked.done()
    workers.finish()
    assert asked.result(timeout=0) == ID
    obey(controls, workers)
    assert controls.known().snapshots == SnapshotStatus(ID, 1.5, 1)


def test_why_there_is_no_snapshot_is_told_to_who_asked_and_the_job_goes_on(
    controls: CommandQueue, workers: Workers
) -> None:
    failed, fine = save(controls), save(controls)
    obey(controls, workers)
    workers.finish(SnapshotError("the disk is full"))
    workers.finish()
    with pytest.raises(SnapshotError, match="the disk is full"):
        failed.result(timeout=0)
    assert fine.result(timeout=0) == ID
    refused = save(controls, "nowhere")
    obey(controls, workers)
    with pytest.raises(SnapshotError, match="no such place"):
        refused.result(timeout=0)
    assert not save(controls, "somewhere").done(), "the one that was refused is not in the way"


def test_another_savepoint_and_a_stop_wait_for_a_savepoint(controls: CommandQueue, workers: Workers) -> None:
    asked = save(controls, "there")
    for taken in (False, True):
        if taken:
            obey(controls, workers)
        for other in (lambda: save(controls, "elsewhere"), lambda: controls.stop(drain=True)):
            with pytest.raises(OperationInProgress, match="is making a savepoint, so there can be no") as raised:
                other()
            assert raised.value.operation == "savepoint"
    save(controls)  # as one in the middle of an interval would be
    workers.finish()
    assert asked.result(timeout=0) == ID
    assert workers.told == ["savepoint there"]
    controls.stop(drain=True)


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("uri", [None, "there"])
def test_who_is_being_stopped_makes_no_snapshot_on_demand(uri: str | None, drain: bool, controls: CommandQueue) -> None:
    controls.stop(drain=drain)
    with pytest.raises(OperationInProgress, match="is being stopped, so there can be no") as raised:
        save(controls, uri)
    assert raised.value.operation == "stop"
    controls.end(JobOutcome.of(NOTHING, None))
    with pytest.raises(JobEnded, match=r"cannot be saved (in a snapshot|to there): it has finished"):
        save(controls, uri)


def test_a_job_that_ends_answers_who_waits_for_a_snapshot(controls: CommandQueue, workers: Workers) -> None:
    taken = save(controls)
    obey(controls, workers)
    waiting = save(controls, "there")
    controls.end(JobOutcome.of(NOTHING, InternalError("broken")))
    for asked in (taken, waiting):
        with pytest.raises(JobEnded, match="cannot be saved"):
            asked.result(timeout=0)


def test_commands_that_nobody_takes_are_bounded(controls: CommandQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls_module, "ASKED_MAX", 2)
    rescale(controls, 2)
    save(controls)
    with pytest.raises(OperationInProgress, match="has not taken 2 earlier commands") as raised:
        save(controls)
    assert raised.value.operation == "snapshot"


def test_s3_a_stop_without_drain_waits_for_the_last_snapshot_and_tells_it(
    controls: CommandQueue, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controls_module, "SUSPEND_S", 0.0)
    controls.stop(drain=False)
    obey(controls, workers)
    assert (workers.told, controls.pending) == (["suspend"], True)
    workers.snapshots, workers.suspended = SnapshotStatus(ID, 1.5, 1), True
    with pytest.raises(JobEnded, match=f"was stopped without drain: it can resume from snapshot {ID}") as raised:
        obey(controls, workers)
    assert raised.value.how == "stopped"


def test_a_last_snapshot_that_takes_too_long_leaves_the_one_before(
    controls: CommandQueue, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controls_module, "SAVE_S", 0.0)
    workers.snapshots = SnapshotStatus(ID, 1.5, 1)
    controls.stop(drain=False)
    with pytest.raises(JobEnded, match=f"it can resume from snapshot {ID}. No last snapshot was made"):
        obey(controls, workers)


def test_a_stop_without_a_last_snapshot_says_from_which_one_the_job_goes_on(
    controls: CommandQueue, caplog: pytest.LogCaptureFixture
) -> None:
    controls.note_snapshots(SnapshotStatus(ID, 1.5, 1))
    controls.note_snapshots(None)  # a run that has not got as far
    controls.refuse_if_stopped()
    controls.stop(drain=False)
    told = f"it can resume from snapshot {ID}. No last snapshot was made: records that are in no snapshot are"
    with pytest.raises(JobEnded, match=told):
        controls.refuse_if_stopped()
    assert "No last snapshot" in caplog.text
    assert controls.known().snapshots == SnapshotStatus(ID, 1.5, 1)


def test_only_a_stop_that_is_accepted_is_told_of() -> None:
    accepted: list[bool] = []
    controls = CommandQueue("a", accepted=accepted.append)
    controls.loop()
    save(controls, "/copy")
    with pytest.raises(OperationInProgress, match="is making a savepoint"):
        controls.stop(drain=False)
    assert accepted == []
    controls = CommandQueue("a", accepted=accepted.append)
    controls.stop(drain=True)
    controls.stop(drain=True)
    with pytest.raises(OperationInProgress, match="is being stopped with drain"):
        controls.stop(drain=False)
    assert accepted == [True]


def test_without_a_snapshot_nothing_was_committed(controls: CommandQueue, workers: Workers) -> None:
    save(controls)
    obey(controls, workers)
    controls.abandon("the lights went out")
    with pytest.raises(JobEnded, match="was stopped: the lights went out, and nothing was committed"):
        obey(controls, workers)


def test_s6_pending_commands_are_repeated_after_a_recovery(controls: CommandQueue, workers: Workers) -> None:
    done, moving, saving = save(controls), rescale(controls, 3), save(controls, "there")
    obey(controls, workers)
    workers.finish()
    late = rescale(controls, 4)
    controls.recover(NOTHING, 1)
    status = controls.known()
    assert (status.state, status.phase, status.restarts) == ("recovering", "recovering", 1)
    assert controls.submit(StatusCommand(1.0)).result(timeout=0).state == "recovering"
    with pytest.raises(OperationInProgress):
        save(controls, "elsewhere")
    controls.loop()
    assert controls.pending
    others = Workers()
    obey(controls, others)
    assert (done.result(timeout=0), others.told) == (ID, ["rescale 3", "savepoint there", "rescale 4"])
    for stale in list(workers.waiting):
        stale(PeerGone("worker 0 has left"))
    assert not moving.done()
    report = RescaleReport((0, 1, 2), 1, 1, 10, 0, 0.5)
    for came in (report, ID, report):
        others.finish(came)
    assert (moving.result(timeout=0), saving.result(timeout=0)) == (report, ID)
    assert late.result(timeout=0) is report
    assert controls.known().state == "running"


class PeerGone(MalstromError):
    """What the workers of before say of what they did not do."""


@pytest.mark.parametrize("drain", [True, False])
def test_s6_a_stop_goes_on_behind_a_recovery(drain: bool, controls: CommandQueue, workers: Workers) -> None:
    controls.stop(drain=drain)
    obey(controls, workers)
    controls.recover(NOTHING, 1)
    controls.loop()
    assert controls.pending
    assert controls.known().state == "stopping"
    others = Workers()
    obey(controls, others)
    assert others.told == ["drain" if drain else "suspend"]
