"""`InProcess.start` and its handle, in one process: what is asked of a job that runs, and how it ends."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from itertools import count
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
    SinkError,
)
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


def test_a_stop_need_not_be_waited_for() -> None:
    job, out = endless()
    handle = start(job)
    handle.stop(wait=False)
    handle.stop(wait=False)
    with pytest.raises(OperationInProgress, match="is being stopped with drain already"):
        handle.stop(drain=False, wait=False)
    assert handle.wait(timeout_s=PATIENCE_S).written == len(out.items)


def test_a_stop_of_a_job_that_fails_meanwhile_raises_its_error() -> None:
    journal = Journal()
    job = mp.Job("a")
    source = sources.Generator(lambda part, start: count(start))
    job.source("in", source).sink("out", JournalSink("out", journal, failing="pre_commit"))
    with pytest.raises(SinkError, match="could not pre-commit"):
        start(job).stop(timeout_s=PATIENCE_S)


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


def test_a_job_can_be_run_in_the_calling_thread_beside_handles() -> None:
    job, _ = endless("beside")
    handle = start(job)
    assert mp.run(idle_free()).written == 1
    handle.stop(timeout_s=PATIENCE_S)


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
