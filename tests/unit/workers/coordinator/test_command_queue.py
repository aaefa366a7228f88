"""Commands between threads and a run: each is taken once, by the run's thread, and everyone is answered in the end."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from malstrom_py.errors import (
    DeadlineError,
    InternalError,
    JobEnded,
    MalstromError,
    OperationInProgress,
    OperatorError,
    PlanError,
    SnapshotError,
)
from malstrom_py.metrics import JobMetrics, RateMetrics
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.workers.coordinator import command_queue as controls_module
from malstrom_py.workers.coordinator.command_queue import CommandQueue
from malstrom_py.workers.coordinator.commanded_workers import SnapshotDone
from malstrom_py.workers.coordinator.rescale_requests import Done
from malstrom_py.workers.reports.commands import MetricsCommand, RescaleCommand, SnapshotCommand, StatusCommand
from malstrom_py.workers.reports.job_status import JobOutcome, Moving, RescaleReport, SnapshotStatus
from malstrom_py.workers.reports.result import RunResult
from malstrom_py.workers.reports.taps import TapStep
from malstrom_py.workers.runtime.local_runtime import WakefulClock

NOTHING = RunResult("a", {}, 0.0)


class Workers:
    """Fake workers that execute commands when the test decides, and record them."""

    def __init__(self) -> None:
        self.members: tuple[int, ...] = (0,)
        self.phase = "steady"
        self.moving: Moving | None = None
        self.suspended = False
        self.snapshots: SnapshotStatus | None = None
        self.told: list[str] = []
        self.waiting: list[Any] = []

    def rescale(self, size: int | None, done: Done) -> None:
        self.told.append(f"rescale {size}")
        if size == 13:
            raise PlanError("not thirteen")
        if size == 99:
            raise InternalError("broken")
        self.phase = "moving"
        self.waiting.append((size or len(self.members), done))

    def snapshot(self, done: SnapshotDone, *, copy_to: str | None = None) -> None:
        raise SnapshotError("the job runs without snapshots")

    def tap(self, order: TapStep) -> None:
        self.told.append(f"tap {order.step}")

    def drain(self) -> None:
        self.told.append("drain")

    @property
    def snapshotting(self) -> Workers | None:
        return None if self.snapshots is None else self

    def set_parameter(self, name: str, value: object) -> object:
        self.told.append(f"set {name}")
        return value

    def suspend(self) -> None:
        self.told.append("suspend")

    def finish(self, superseded_by: int | None = None) -> None:
        size, done = self.waiting.pop(0)
        self.members, self.phase = tuple(range(size)), "steady"
        done(RescaleReport(self.members, 1, 1, 10, 0, 0.5, superseded_by))

    def call_off(self) -> None:
        _, done = self.waiting.pop(0)
        self.phase = "steady"
        done(DeadlineError("worker 2 did not start"))


@pytest.fixture
def workers() -> Workers:
    return Workers()


@pytest.fixture
def commands() -> CommandQueue:
    made = CommandQueue("a")
    made.enter("opening", NOTHING, 1)
    made.loop()
    return made


def obey(commands: CommandQueue, workers: Workers) -> None:
    commands.obey(workers, lambda: NOTHING)


def rescale(commands: CommandQueue, size: int | None, *, wait: bool = True) -> Future[Any]:
    return commands.submit(RescaleCommand(size, wait, 1.0))


def finished() -> JobOutcome:
    return JobOutcome.of(NOTHING, None)


def test_a_command_wakes_the_run_and_is_taken_once(commands: CommandQueue, workers: Workers) -> None:
    assert not commands.pending
    asked, begun = rescale(commands, 3), rescale(commands, 4, wait=False)
    assert commands.pending
    assert commands.wake.is_set()
    obey(commands, workers)
    assert (workers.told, commands.pending) == (["rescale 3", "rescale 4"], False)
    assert begun.result(timeout=0) is None
    assert not asked.done()
    assert commands.known().state == "rescaling"
    assert commands.known().moving is None
    workers.moving = Moving(1, 0, 8, 0, 0)
    obey(commands, workers)
    assert commands.known().moving == workers.moving
    workers.finish()
    assert asked.result().members == (0, 1, 2)


def test_r9_requests_are_passed_on_in_order_and_each_gets_its_report(commands: CommandQueue, workers: Workers) -> None:
    first, second = rescale(commands, 3), rescale(commands, 5)
    obey(commands, workers)
    assert workers.told == ["rescale 3", "rescale 5"]
    workers.finish(superseded_by=5)
    workers.finish()
    assert first.result().superseded_by == 5
    assert second.result().superseded_by is None


def test_an_abandoned_rescale_is_reported_and_the_job_continues(commands: CommandQueue, workers: Workers) -> None:
    late, waits = rescale(commands, 3), rescale(commands, 2)
    obey(commands, workers)
    workers.call_off()
    with pytest.raises(DeadlineError, match="worker 2 did not start"):
        late.result(timeout=0)
    obey(commands, workers)
    assert (commands.known().state, commands.known().workers) == ("running", 1)
    workers.finish()
    assert waits.result(timeout=0).members == (0, 1)


@pytest.mark.parametrize("size", [0, -1, 129, 2.0, "2", True], ids=repr)
def test_an_impossible_size_is_refused_before_the_run_hears_of_it(size: Any, commands: CommandQueue) -> None:
    with pytest.raises(PlanError, match="workers must be a whole number from 1 to 128"):
        rescale(commands, size)
    assert not commands.pending


def test_what_the_workers_refuse_is_told_to_who_asked_and_the_others_go_on(
    commands: CommandQueue, workers: Workers
) -> None:
    refused, too, fine = rescale(commands, 13), rescale(commands, 13, wait=False), rescale(commands, 2)
    obey(commands, workers)
    for future in (refused, too):
        with pytest.raises(PlanError, match="not thirteen"):
            future.result()
    workers.finish()
    assert fine.result().members == (0, 1)


def test_every_command_is_answered_when_one_ends_the_run(commands: CommandQueue, workers: Workers) -> None:
    asked = [rescale(commands, size) for size in (2, 99, 4)]
    status = commands.submit(StatusCommand(1.0))
    with pytest.raises(InternalError):
        obey(commands, workers)
    commands.end(JobOutcome.of(NOTHING, InternalError("broken")))
    for rescaling in asked:
        with pytest.raises(JobEnded, match="it has failed"):
            rescaling.result()
    assert status.result().state == "failed"


def test_a_stop_with_drain_is_told_once_however_often_it_is_asked_for(commands: CommandQueue, workers: Workers) -> None:
    commands.stop(drain=True)
    obey(commands, workers)
    commands.stop(drain=True)
    obey(commands, workers)
    assert workers.told == ["drain"]
    assert commands.known().state == "stopping"
    commands.refuse_if_stopped()


@pytest.mark.parametrize("drain", [True, False])
def test_a_stop_in_the_other_way_is_refused_while_one_runs(drain: bool, commands: CommandQueue) -> None:
    commands.stop(drain=drain)
    with pytest.raises(OperationInProgress, match="is being stopped") as raised:
        commands.stop(drain=not drain)
    assert raised.value.operation == "stop"


def test_without_drain_the_run_ends_once_all_workers_are_suspended(commands: CommandQueue, workers: Workers) -> None:
    commands.stop(drain=False)
    obey(commands, workers)
    obey(commands, workers)
    assert commands.pending, "it has to come by after each step"
    workers.suspended = True
    with pytest.raises(JobEnded, match="without drain: nothing was committed") as raised:
        obey(commands, workers)
    assert raised.value.how == "stopped"
    assert workers.told == ["suspend"]


def test_workers_that_take_too_long_to_be_suspended_are_not_waited_for(
    commands: CommandQueue, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.stop(drain=False)
    obey(commands, workers)
    monkeypatch.setattr(controls_module, "SUSPEND_S", 0.0)
    with pytest.raises(JobEnded, match="without drain"):
        obey(commands, workers)


@pytest.mark.parametrize("drain", [True, False])
def test_who_is_being_stopped_begins_no_move_any_more(drain: bool, commands: CommandQueue, workers: Workers) -> None:
    commands.stop(drain=drain)
    asked = rescale(commands, 2)
    obey(commands, workers)
    assert workers.told == ["drain" if drain else "suspend"]
    commands.end(JobOutcome.of(NOTHING, None if drain else JobEnded("stopped", how="stopped")))
    with pytest.raises(JobEnded, match="cannot be rescaled to 2: it has"):
        asked.result()


def test_a_job_that_is_done_before_it_is_suspended_does_not_commit(commands: CommandQueue) -> None:
    commands.refuse_if_stopped()
    commands.stop(drain=False)
    with pytest.raises(JobEnded, match="without drain"):
        commands.refuse_if_stopped()


def test_an_abandoned_run_ends_at_once_whatever_else_was_asked(commands: CommandQueue, workers: Workers) -> None:
    commands.stop(drain=True)
    rescale(commands, 2)
    commands.abandon("the lights went out")
    with pytest.raises(JobEnded, match="the lights went out") as raised:
        obey(commands, workers)
    assert raised.value.how == "stopped"
    assert workers.told == []
    with pytest.raises(JobEnded):
        commands.refuse_if_stopped()


def test_concurrent_status_requests_get_one_answer(commands: CommandQueue, workers: Workers) -> None:
    first, second = commands.submit(StatusCommand(1.0)), commands.submit(StatusCommand(1.0))
    assert first is second
    obey(commands, workers)
    assert (first.result().workers, first.result().age_s) == (1, 0.0)
    assert commands.submit(StatusCommand(1.0)) is not first


def test_a_run_that_does_not_come_by_answers_with_what_is_known() -> None:
    commands = CommandQueue("a")
    commands.enter("opening", NOTHING, 3)
    status = commands.submit(StatusCommand(1.0)).result()
    assert (status.phase, status.workers, status.age_s) == ("opening", 3, 0.0)
    commands.loop()
    waiting = commands.submit(StatusCommand(1.0))
    assert not waiting.done()
    commands.enter("committing", NOTHING, 4)
    assert (waiting.result().phase, waiting.result().workers) == ("committing", 4)


def test_figures_that_the_run_does_not_renew_grow_old(commands: CommandQueue) -> None:
    ages = [commands.known().age_s for _ in range(2)]
    assert 0 < ages[0] < ages[1]
    commands.end(finished())
    assert commands.known().age_s == 0.0


def test_a_job_that_has_ended_answers_everyone_at_once(commands: CommandQueue) -> None:
    waiting, ended = commands.submit(StatusCommand(1.0)), commands.stop(drain=True)
    commands.end(finished())
    assert (waiting.result().state, waiting.result().phase) == ("finished", "ended")
    assert commands.submit(StatusCommand(1.0)).result().state == "finished"
    assert ended.result().how == "finished"
    assert commands.stop(drain=False).done()
    with pytest.raises(JobEnded, match="cannot be rescaled to 2: it has finished") as raised:
        rescale(commands, 2)
    assert raised.value.how == "finished"


def test_who_watches_gets_the_last_metrics_before_the_job_has_ended(commands: CommandQueue) -> None:
    """The end of the job waits for who watches it."""
    commands.loop()
    asked = commands.submit(MetricsCommand(5.0))
    assert not asked.done()
    commands.announce(finished())
    assert asked.done()
    assert commands.submit(MetricsCommand(5.0)).done()


def test_rates_of_the_last_ten_minutes_are_kept_for_who_asks(commands: CommandQueue) -> None:
    commands.loop()
    for at in (0.0, 1.0, 300.0, 601.0):
        commands.rates.add(RateMetrics(at, 1.0, 1.0, 0.5, 0.0))
    asked, rated = commands.submit(MetricsCommand(5.0)), commands.submit(MetricsCommand(5.0, since=1.0))
    commands.announce(finished())
    assert asked.result().rates == []
    assert [rates.at for rates in rated.result().rates] == [300.0, 601.0]
    known = commands.unanswered(MetricsCommand(0.0, since=0.0), asked)
    assert isinstance(known, JobMetrics)
    assert [rates.at for rates in known.rates] == [1.0, 300.0, 601.0]


def test_nobody_who_waits_can_cancel_what_others_wait_for(commands: CommandQueue) -> None:
    assert not commands.ended.cancel()
    assert not rescale(commands, 2).cancel()
    commands.end(finished())


def test_the_error_of_a_failed_job_stands_in_its_status(commands: CommandQueue) -> None:
    commands.end(JobOutcome.of(NOTHING, OperatorError("step 'a' failed")))
    assert (commands.known().state, commands.known().error) == ("failed", "step 'a' failed")


def test_threads_that_ask_while_the_run_ends_are_all_answered() -> None:
    for _ in range(50):
        commands = CommandQueue("a")
        answers: list[str] = []
        commands.enter("opening", NOTHING, 1)
        commands.loop()
        start = threading.Barrier(4)

        def ask(commands: CommandQueue = commands, start: Any = start, answers: list[str] = answers) -> None:
            start.wait(60)
            try:
                rescale(commands, 2).result(60)
            except JobEnded as error:
                answers.append(error.how)
            answers.append(commands.submit(StatusCommand(1.0)).result(60).state)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        start.wait(60)
        commands.end(finished())
        for thread in threads:
            thread.join(60)
        assert answers == ["finished"] * 6


def test_sleep_ends_when_a_command_comes_and_the_next_one_does_not() -> None:
    commands = CommandQueue("a")
    clock = WakefulClock(commands)
    commands.wake.set()
    clock.sleep_s(3600)
    assert not commands.wake.is_set()
    clock.sleep_s(0.001)


# Snapshots and savepoints.

ID = SnapshotId("20261122T042242123456Z-1a2b3c4d")


class Saving(Workers):
    """Those of a job with snapshots."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshots = SnapshotStatus(None, None, 0)

    def rescale(self, size: int | None, done: Done) -> None:
        self.told.append(f"rescale {size}")
        self.waiting.append(done)

    def snapshot(self, done: SnapshotDone, *, copy_to: str | None = None) -> None:
        self.told.append("snapshot" if copy_to is None else f"savepoint {copy_to}")
        if copy_to == "nowhere":
            raise SnapshotError("there is no such place")
        self.waiting.append(done)

    def answer(self, came: SnapshotId | RescaleReport | MalstromError = ID) -> None:
        self.snapshots = SnapshotStatus(ID, 1.5, 1)
        self.waiting.pop(0)(came)


@pytest.fixture
def saving() -> Saving:
    return Saving()


def save(commands: CommandQueue, uri: str | None = None) -> Future[Any]:
    return commands.submit(SnapshotCommand(uri, 1.0))


def test_a_snapshot_is_asked_for_once_and_answered_with_its_id(commands: CommandQueue, saving: Saving) -> None:
    asked = save(commands)
    assert commands.pending
    assert commands.wake.is_set()
    obey(commands, saving)
    obey(commands, saving)
    assert saving.told == ["snapshot"]
    assert not asked.done()
    saving.answer()
    assert asked.result(timeout=0) == ID
    obey(commands, saving)
    assert commands.known().snapshots == SnapshotStatus(ID, 1.5, 1)


def test_why_there_is_no_snapshot_is_told_to_who_asked_and_the_job_goes_on(
    commands: CommandQueue, saving: Saving
) -> None:
    failed, fine = save(commands), save(commands)
    obey(commands, saving)
    saving.answer(SnapshotError("the disk is full"))
    saving.answer()
    with pytest.raises(SnapshotError, match="the disk is full"):
        failed.result(timeout=0)
    assert fine.result(timeout=0) == ID
    refused = save(commands, "nowhere")
    obey(commands, saving)
    with pytest.raises(SnapshotError, match="no such place"):
        refused.result(timeout=0)
    assert not save(commands, "somewhere").done(), "the one that was refused is not in the way"


def test_another_savepoint_and_a_stop_wait_for_a_savepoint(commands: CommandQueue, saving: Saving) -> None:
    asked = save(commands, "there")
    for taken in (False, True):
        if taken:
            obey(commands, saving)
        for other in (lambda: save(commands, "elsewhere"), lambda: commands.stop(drain=True)):
            with pytest.raises(OperationInProgress, match="is making a savepoint, so there can be no") as raised:
                other()
            assert raised.value.operation == "savepoint"
    save(commands)  # as one in the middle of an interval would be
    saving.answer()
    assert asked.result(timeout=0) == ID
    assert saving.told == ["savepoint there"]
    commands.stop(drain=True)


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("uri", [None, "there"])
def test_who_is_being_stopped_makes_no_snapshot_on_demand(uri: str | None, drain: bool, commands: CommandQueue) -> None:
    commands.stop(drain=drain)
    with pytest.raises(OperationInProgress, match="is being stopped, so there can be no") as raised:
        save(commands, uri)
    assert raised.value.operation == "stop"
    commands.end(JobOutcome.of(NOTHING, None))
    with pytest.raises(JobEnded, match=r"cannot be saved (in a snapshot|to there): it has finished"):
        save(commands, uri)


def test_a_job_that_ends_answers_who_waits_for_a_snapshot(commands: CommandQueue, saving: Saving) -> None:
    taken = save(commands)
    obey(commands, saving)
    waiting = save(commands, "there")
    commands.end(JobOutcome.of(NOTHING, InternalError("broken")))
    for asked in (taken, waiting):
        with pytest.raises(JobEnded, match="cannot be saved"):
            asked.result(timeout=0)


def test_commands_that_nobody_takes_are_bounded(commands: CommandQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls_module, "ASKED_MAX", 2)
    rescale(commands, 2)
    save(commands)
    with pytest.raises(OperationInProgress, match="has not taken 2 earlier commands") as raised:
        save(commands)
    assert raised.value.operation == "snapshot"


def test_s3_a_stop_without_drain_waits_for_the_last_snapshot_and_tells_it(
    commands: CommandQueue, saving: Saving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controls_module, "SUSPEND_S", 0.0)
    commands.stop(drain=False)
    obey(commands, saving)
    assert (saving.told, commands.pending) == (["suspend"], True)
    saving.snapshots, saving.suspended = SnapshotStatus(ID, 1.5, 1), True
    with pytest.raises(JobEnded, match=f"was stopped without drain: it can resume from snapshot {ID}") as raised:
        obey(commands, saving)
    assert raised.value.how == "stopped"


def test_a_last_snapshot_that_takes_too_long_leaves_the_one_before(
    commands: CommandQueue, saving: Saving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controls_module, "SAVE_S", 0.0)
    saving.snapshots = SnapshotStatus(ID, 1.5, 1)
    commands.stop(drain=False)
    with pytest.raises(JobEnded, match=f"it can resume from snapshot {ID}. No last snapshot was made"):
        obey(commands, saving)


def test_a_stop_without_a_last_snapshot_says_from_which_one_the_job_goes_on(
    commands: CommandQueue, caplog: pytest.LogCaptureFixture
) -> None:
    commands.note_snapshots(SnapshotStatus(ID, 1.5, 1))
    commands.note_snapshots(None)  # a run that has not got as far
    commands.refuse_if_stopped()
    commands.stop(drain=False)
    told = f"it can resume from snapshot {ID}. No last snapshot was made: records that are in no snapshot are"
    with pytest.raises(JobEnded, match=told):
        commands.refuse_if_stopped()
    assert "No last snapshot" in caplog.text
    assert commands.known().snapshots == SnapshotStatus(ID, 1.5, 1)


def test_only_a_stop_that_is_accepted_is_told_of() -> None:
    accepted: list[bool] = []
    commands = CommandQueue("a", accepted=accepted.append)
    commands.loop()
    save(commands, "/copy")
    with pytest.raises(OperationInProgress, match="is making a savepoint"):
        commands.stop(drain=False)
    assert accepted == []
    commands = CommandQueue("a", accepted=accepted.append)
    commands.stop(drain=True)
    commands.stop(drain=True)
    with pytest.raises(OperationInProgress, match="is being stopped with drain"):
        commands.stop(drain=False)
    assert accepted == [True]


def test_without_a_snapshot_nothing_was_committed(commands: CommandQueue, saving: Saving) -> None:
    save(commands)
    obey(commands, saving)
    commands.abandon("the lights went out")
    with pytest.raises(JobEnded, match="was stopped: the lights went out, and nothing was committed"):
        obey(commands, saving)


def test_s6_pending_commands_are_repeated_after_a_recovery(commands: CommandQueue, saving: Saving) -> None:
    done, moving, copied = save(commands), rescale(commands, 3), save(commands, "there")
    obey(commands, saving)
    saving.answer()
    late = rescale(commands, 4)
    commands.recover(NOTHING, 1)
    status = commands.known()
    assert (status.state, status.phase, status.restarts) == ("recovering", "recovering", 1)
    assert commands.submit(StatusCommand(1.0)).result(timeout=0).state == "recovering"
    with pytest.raises(OperationInProgress):
        save(commands, "elsewhere")
    commands.loop()
    assert commands.pending
    others = Saving()
    obey(commands, others)
    assert (done.result(timeout=0), others.told) == (ID, ["rescale 3", "savepoint there", "rescale 4"])
    for stale in list(saving.waiting):
        stale(PeerGone("worker 0 has left"))
    assert not moving.done()
    report = RescaleReport((0, 1, 2), 1, 1, 10, 0, 0.5)
    for came in (report, ID, report):
        others.answer(came)
    assert (moving.result(timeout=0), copied.result(timeout=0)) == (report, ID)
    assert late.result(timeout=0) is report
    assert commands.known().state == "running"


class PeerGone(MalstromError):
    """What the workers of before say of what they did not do."""


@pytest.mark.parametrize("drain", [True, False])
def test_s6_a_stop_goes_on_behind_a_recovery(drain: bool, commands: CommandQueue, saving: Saving) -> None:
    commands.stop(drain=drain)
    obey(commands, saving)
    commands.recover(NOTHING, 1)
    commands.loop()
    assert commands.pending
    assert commands.known().state == "stopping"
    others = Saving()
    obey(commands, others)
    assert others.told == ["drain" if drain else "suspend"]
