"""`InProcess.start` and its handle, in one process: what is asked of a job that runs, and how it ends."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import (
    ControlError,
    InternalError,
    JobEnded,
    JobRunning,
    OperationInProgress,
    OperatorError,
    PlanError,
    SnapshotError,
)
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.workers.coordinator.command_queue import CommandQueue
from malstrom_py.workers.reports.commands import Command, SnapshotCommand, StateCommand, StopCommand
from malstrom_py.workers.reports.job_status import JobOutcome
from malstrom_py.workers.reports.result import RunResult
from tests.unit.operators.scripted import Scripted
from tests.unit.workers.harness import (
    PATIENCE_S,
    Gate,
    Journal,
    JournalSink,
    endless,
    idle,
    idle_free,
    is_complete,
    start,
)


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in left)


def test_wait_gives_the_result_of_a_job_that_ends_by_itself() -> None:
    job, out = mp.Job("a"), sinks.Memory()
    job.source("in", sources.Memory(range(100))).sink("out", out)
    handle = start(job)
    assert handle.name == "a"
    assert repr(handle) == "JobHandle('a')"
    assert handle.wait(timeout_s=PATIENCE_S).written == 100
    assert handle.wait() == handle.wait()
    assert out.items == list(range(100))
    status = handle.status()
    assert (status.state, status.phase, status.counts.read, status.error) == ("finished", "ended", 100, None)
    handle.stop()


def test_a_wrong_job_is_refused_at_the_start() -> None:
    with pytest.raises(PlanError, match="is empty"):
        start(mp.Job("empty"))
    with pytest.raises(PlanError, match=r"InProcess.start takes a job"):
        start("job")  # type: ignore[arg-type]


def test_wait_raises_the_error_of_the_job_with_its_cause() -> None:
    journal = Journal()
    job = mp.Job("a")
    job.source("in", sources.Memory([1, 0])).map("inverse", lambda n: 1 // n).sink("out", JournalSink("out", journal))
    handle = start(job)
    for _ in range(2):
        with pytest.raises(OperatorError, match="step 'inverse'") as raised:
            handle.wait(timeout_s=PATIENCE_S)
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert journal.calls("out")[-2:] == ["abort", "close"]
    status = handle.status()
    assert status.state == "failed"
    assert status.error is not None
    assert "step 'inverse' failed" in status.error
    with pytest.raises(JobEnded, match=r"cannot be rescaled to 2: it has failed \(step 'inverse' failed") as ended:
        handle.rescale(2)
    assert ended.value.how == "failed"
    with pytest.raises(OperatorError):
        handle.stop()


@pytest.mark.parametrize(
    "stop", [SystemExit(3), KeyboardInterrupt(), InternalError("bug"), RuntimeError("odd")], ids=repr
)
def test_whatever_ends_the_thread_of_a_job_reaches_who_waits(stop: BaseException) -> None:
    job = mp.Job("a")
    job.source("in", Scripted({"a": [[1], stop]})).sink("out", sinks.Memory())
    handle = start(job)
    with pytest.raises((type(stop), mp.SourceError)):
        handle.wait(timeout_s=PATIENCE_S)
    assert handle.status().error is not None


def test_a_wait_that_runs_out_leaves_the_job_running() -> None:
    gate = Gate()
    job = mp.Job("a")
    job.source("in", sources.Memory([1])).map("gate", gate).sink("out", sinks.Memory())
    handle = start(job)
    with pytest.raises(OperationInProgress, match=r"has not ended within 0.01 s; it continues") as raised:
        handle.wait(timeout_s=0.01)
    assert (raised.value.job, raised.value.operation) == ("a", "run")
    gate.opened.set()
    assert handle.wait(timeout_s=PATIENCE_S).written == 1


def test_a_function_that_takes_long_makes_the_figures_old_and_blocks_nobody() -> None:
    gate = Gate()
    job = mp.Job("a")
    job.source("in", sources.Memory([1])).map("gate", gate).sink("out", sinks.Memory())
    handle = start(job)
    assert gate.entered.wait(PATIENCE_S)
    status = handle.status(timeout_s=0.01)
    assert status.state == "running"
    assert status.age_s > 0
    with pytest.raises(OperationInProgress, match=r"has not been rescaled within 0.01 s; the rescale continues"):
        handle.rescale(2, timeout_s=0.01)
    with pytest.raises(OperationInProgress, match="it is still being stopped"):
        handle.stop(timeout_s=0.01)
    assert handle.status(timeout_s=0).state == "stopping"
    gate.opened.set()
    assert handle.wait(timeout_s=PATIENCE_S).written == 1


def test_a_stop_drains_what_is_in_flight_and_commits() -> None:
    job, out = endless()
    handle = start(job, 2)
    handle.stop(timeout_s=PATIENCE_S)
    result = handle.wait()
    assert result.read == result.written == len(out.items)
    assert is_complete(out)
    assert handle.status().state == "finished"
    assert all(step.epoch == mp.MAX_EPOCH for step in result.steps.values())
    handle.stop()
    with pytest.raises(JobEnded, match="cannot be stopped without drain: it has finished"):
        handle.stop(drain=False)


def test_a_stop_without_drain_shows_nothing() -> None:
    journal = Journal()
    job = mp.Job("a")
    numbers = job.source("in", sources.Generator(lambda part, start: count(start), parts=2))
    numbers.key_by("key", lambda n: n % 3).count("n").sink("out", JournalSink("out", journal))
    handle = start(job, 2)
    handle.stop(drain=False, timeout_s=PATIENCE_S)
    assert "pre_commit" not in journal.calls("out")
    assert journal.calls("out").count("abort") == 1
    assert handle.status().state == "stopped"
    handle.stop(drain=False)
    for _ in range(2):
        with pytest.raises(JobEnded, match="was stopped without drain: nothing was committed") as raised:
            handle.wait()
        assert raised.value.how == "stopped"
    with pytest.raises(JobEnded, match="cannot be stopped with drain: it has been stopped"):
        handle.stop()


def test_a_clock_that_is_not_the_systems_is_used_as_it_is() -> None:
    class Counted:
        def __init__(self) -> None:
            self.slept_s = 0.0

        def now_s(self) -> float:
            return self.slept_s

        def monotonic_s(self) -> float:
            return self.slept_s

        def sleep_s(self, duration_s: float) -> None:
            self.slept_s += duration_s

    clock = Counted()
    handle = start(idle(), clock=clock)
    while clock.slept_s < 10:
        handle.status(timeout_s=PATIENCE_S)
    handle.stop(timeout_s=PATIENCE_S)


def test_a_name_is_taken_while_its_job_runs_and_free_when_it_has_been_waited_for() -> None:
    job, _ = endless("once")
    for _ in range(3):
        handle = start(job)
        with pytest.raises(JobRunning, match="a job 'once' runs already in this process"):
            start(job)
        handle.stop(timeout_s=PATIENCE_S)
    assert mp.run(idle_free()).written == 1


@pytest.mark.parametrize("timeout_s", [-1, math.nan, "5", None, True], ids=repr)
def test_timeouts_are_checked(timeout_s: Any) -> None:
    handle = start(idle_free())
    for call in (handle.status, handle.stop, lambda **given: handle.rescale(2, **given)):
        with pytest.raises(PlanError, match="timeout_s must be a number of seconds"):
            call(timeout_s=timeout_s)
    if timeout_s is not None:
        with pytest.raises(PlanError, match="timeout_s must be a number of seconds"):
            handle.wait(timeout_s=timeout_s)
    assert handle.wait(timeout_s=math.inf).written == 1


def test_flags_are_checked() -> None:
    handle = start(idle_free())
    for call in (lambda: handle.stop(drain="no"), lambda: handle.stop(wait=1), lambda: handle.rescale(2, wait="no")):  # type: ignore[arg-type, call-overload]
        with pytest.raises(PlanError, match="must be True or False"):
            call()
    handle.wait(timeout_s=PATIENCE_S)


def test_a_function_of_the_job_stops_it_without_waiting_for_itself() -> None:
    job, out = mp.Job("itself"), sinks.Memory()
    seen: list[mp.JobStatus] = []
    handles: list[mp.JobHandle] = []
    started = threading.Event()

    def stop_at_ten(number: int) -> int:
        assert started.wait(PATIENCE_S)
        if number == 10:
            (own,) = handles
            seen.append(own.status())
            for call in (own.wait, own.stop, lambda: own.rescale(2), lambda: own.rescale(2, wait=False)):
                with pytest.raises(ControlError, match="a function of job 'itself' cannot wait for the job itself"):
                    call()
            own.stop(wait=False)
        return number

    job.source("in", sources.Generator(lambda part, start: count(start))).map("stop", stop_at_ten).sink("out", out)
    handles.append(start(job))
    started.set()
    assert handles[0].wait(timeout_s=PATIENCE_S).written == len(out.items) > 10
    assert seen[0].state == "running"


def test_a_job_that_finds_no_thread_was_never_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            start(idle_free())
    assert start(idle_free()).wait(timeout_s=PATIENCE_S).written == 1


# Rescales.


def test_r9_rescales_under_traffic_lose_nothing_and_the_last_one_wins() -> None:
    job, out = endless()
    handle = start(job)
    for size in (3, 1, 8, 2):
        report = handle.rescale(size, timeout_s=PATIENCE_S)
        assert len(report.members) == handle.status().workers == size
        assert report.superseded_by is None
    reports: dict[int, mp.RescaleReport] = {}

    def rescale(size: int) -> None:
        reports[size] = handle.rescale(size, timeout_s=PATIENCE_S)

    threads = [threading.Thread(target=rescale, args=(size,)) for size in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    last = handle.status().workers
    assert len(reports) == 6
    assert reports[last].superseded_by is None
    assert {report.superseded_by for report in reports.values()} <= {None, *range(1, 7)}
    handle.stop(timeout_s=PATIENCE_S)
    assert handle.wait().written == len(out.items)
    assert is_complete(out)


def test_a_rescale_need_not_be_waited_for_but_what_cannot_be_is_told() -> None:
    job, out = endless()
    handle = start(job)
    assert handle.rescale(4, wait=False, timeout_s=PATIENCE_S) is None
    with pytest.raises(PlanError, match="workers must be a whole number from 1 to 128"):
        handle.rescale(0, wait=False)
    assert handle.rescale(4, timeout_s=PATIENCE_S).members == (0, 1, 2, 3)
    handle.stop(timeout_s=PATIENCE_S)
    assert is_complete(out)


def test_a_stop_during_a_rescale_ends_the_job_and_answers_who_waits() -> None:
    for drain in (True, False):
        job, out = endless()
        handle = start(job)
        answers: list[object] = []

        def rescale(handle: mp.JobHandle = handle, answers: list[object] = answers) -> None:
            try:
                answers.append(handle.rescale(8, timeout_s=PATIENCE_S))
            except JobEnded as error:
                answers.append(error)

        thread = threading.Thread(target=rescale)
        thread.start()
        handle.stop(drain=drain, timeout_s=PATIENCE_S)
        thread.join(PATIENCE_S)
        assert len(answers) == 1
        assert handle.status().state == ("finished" if drain else "stopped")
        assert is_complete(out)
        assert bool(out.items) <= drain


def test_the_number_of_workers_is_the_last_one_also_when_nobody_asked_in_between() -> None:
    rescaled, job = threading.Event(), mp.Job("a")

    def fail(number: int) -> float:
        return 1 / (not rescaled.is_set())

    job.source("in", sources.Generator(lambda part, start: count(start))).map("fail", fail).sink("out", sinks.Memory())
    handle = start(job)
    handle.rescale(5, timeout_s=PATIENCE_S)
    rescaled.set()
    with pytest.raises(OperatorError):
        handle.wait(timeout_s=PATIENCE_S)
    assert handle.status().workers == 5


# Snapshots and savepoints.


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


def test_a_job_that_has_never_begun_cannot_be_asked_for_its_state() -> None:
    commands = CommandQueue("a")
    asked = commands.submit(StateCommand(1.0))
    with pytest.raises(OperationInProgress, match="has not begun within 0 s"):
        commands.answer_of(StateCommand(0.0), 0.0)
    commands.end(JobOutcome.of(RunResult("a", {}, 0.0), SnapshotError("no")))
    with pytest.raises(JobEnded, match="cannot be asked for its state: it has failed"):
        asked.result(0)
