"""Sinks that are committed by the driver: each task once, errors reported, a dead driver."""

from __future__ import annotations

import threading
from dataclasses import asdict
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.clock import SystemClock
from malstrom_py.errors import JobEnded, OperatorError, SinkError
from malstrom_py.rescale.autoscaling import Autoscale
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.workers.coordinator.command_queue import CommandQueue
from malstrom_py.workers.engine.graph_builder import build_sinks
from malstrom_py.workers.ray import driver_commits as module
from malstrom_py.workers.ray.coordinator_actor import CoordinatorActor, JournalEntry
from malstrom_py.workers.ray.driver_commits import DriverTask, DriverTaskRunner, DriverTasks, commit_in_driver
from malstrom_py.workers.reports.result import RunResult

CONTEXT = CommitContext("docs", "out", SnapshotId("20261122T042242123456Z-1a2b3c4d"), 2, final=False)


def steps(out: sinks.Memory) -> list[Any]:
    job = mp.Job("docs")
    job.source("in", sources.Memory([1])).sink("out", out)
    return build_sinks(job.plan(), SystemClock())


def serving(tasks: DriverTasks, runner: DriverTaskRunner, taken: list[str]) -> threading.Thread:
    def serve() -> None:
        while (task := tasks.next()) is None or task.what != "end":
            if task is not None:
                taken.append(task.what)
                error = runner.do(task)
                assert runner.do(task) == error  # offered again: it is not done again
                tasks.done(task.number, error)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_the_original_commits_and_recovers_and_the_copy_waits_for_it() -> None:
    out, taken, tasks = sinks.Memory(), list[str](), DriverTasks(outlives=False)
    thread = serving(tasks, DriverTaskRunner(steps(out)), taken)
    [step] = commit_in_driver(steps(sinks.Memory()), tasks)
    copy: Any = step.sink
    copy.recover(CONTEXT, [])
    copy.commit(CONTEXT, [])
    copy.commit(CONTEXT, [])
    tasks.close()
    thread.join()
    assert taken == ["recover", "commit", "commit"]


def test_what_goes_wrong_there_is_raised_here() -> None:
    class Refusing(sinks.Memory):
        def commit(self, context: CommitContext, payloads: Any) -> None:
            raise SinkError("no room there")

    tasks = DriverTasks(outlives=False)
    thread = serving(tasks, DriverTaskRunner(steps(Refusing())), [])
    with pytest.raises(SinkError, match="no room there"):
        tasks.commit(CONTEXT, [])
    tasks.close()
    thread.join()


def test_a_job_that_outlives_its_program_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.01)
    monkeypatch.setattr(module, "GONE_S", 0.0)
    tasks = DriverTasks(outlives=True)
    tasks.commit(CONTEXT, [b"rows"])
    assert tasks.next(0.0) is None


def test_an_answer_to_an_errand_before_is_no_answer_to_this() -> None:
    tasks, came = DriverTasks(outlives=False), list[DriverTask | None]()

    def serve() -> None:
        came.append(tasks.next(5.0))
        tasks.done("another", None)
        came.append(tasks.next(0.0))
        assert came[0] is not None
        tasks.done(came[0].number, None)

    thread = threading.Thread(target=serve)
    thread.start()
    tasks.commit(CONTEXT, [])
    thread.join()
    assert came[0] == came[1]


# What the coordinator on Ray logs of a job's end.


class Raising:
    """A run that ends by ``error``."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def execute(self) -> RunResult:
        raise self._error

    def result(self) -> RunResult:
        return RunResult("job", {}, 0.0)


def logged(error: Exception, caplog: pytest.LogCaptureFixture) -> list[str]:
    actor: Any = CoordinatorActor.__new__(CoordinatorActor)
    actor._commands = CommandQueue("job", kept=True)
    actor._run_to_end(Raising(error))
    return [record.levelname for record in caplog.records]


def test_a_stop_that_was_asked_for_is_not_logged_as_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(JobEnded("it was stopped", job="job", how="stopped"), caplog) == []


@pytest.mark.parametrize("error", [OperatorError("broken"), JobEnded("no", job="job", how="failed"), ValueError("no")])
def test_a_failure_is_logged_as_one(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    assert logged(error, caplog) == ["ERROR"]


def test_a_replacement_finds_the_options_of_the_autoscaler() -> None:
    class Setup:
        autoscale = Autoscale(max=3)

    setup: Any = Setup()
    changed = Autoscale(min=2, max=5)
    assert JournalEntry().autoscale_of(setup) == Autoscale(max=3)
    assert JournalEntry(autoscale=asdict(changed)).autoscale_of(setup) == changed
    assert JournalEntry(autoscale=False).autoscale_of(setup) is None
