"""Sinks that are committed by the driver: each task once, errors reported, a dead driver."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.clock import SystemClock
from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.workers.engine.graph_builder import build_sinks
from malstrom_py.workers.ray import driver_commits as module
from malstrom_py.workers.ray.driver_commits import DriverTask, DriverTaskRunner, DriverTasks, commit_in_driver

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
