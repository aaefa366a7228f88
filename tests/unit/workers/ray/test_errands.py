"""Sinks that are committed in the program that started a job: each errand once, errors told, a program gone."""

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
from malstrom_py.workers.ray.driver_commits import Errand, Errands, Runner, done_in_driver

CONTEXT = CommitContext("docs", "out", SnapshotId("20261122T042242123456Z-1a2b3c4d"), 2, final=False)


def steps(out: sinks.Memory) -> list[Any]:
    job = mp.Job("docs")
    job.source("in", sources.Memory([1])).sink("out", out)
    return build_sinks(job.plan(), SystemClock())


def serving(errands: Errands, runner: Runner, taken: list[str]) -> threading.Thread:
    def serve() -> None:
        while (errand := errands.next()) is None or errand.what != "end":
            if errand is not None:
                taken.append(errand.what)
                error = runner.do(errand)
                assert runner.do(errand) == error  # handed out again: it is not done again
                errands.done(errand.number, error)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_the_original_commits_and_recovers_and_the_copy_waits_for_it() -> None:
    out, taken, errands = sinks.Memory(), list[str](), Errands(outlives=False)
    thread = serving(errands, Runner(steps(out)), taken)
    [step] = done_in_driver(steps(sinks.Memory()), errands)
    copy: Any = step.sink
    copy.recover(CONTEXT, [])
    copy.commit(CONTEXT, [])
    copy.commit(CONTEXT, [])
    errands.close()
    thread.join()
    assert taken == ["recover", "commit", "commit"]


def test_what_goes_wrong_there_is_raised_here() -> None:
    class Refusing(sinks.Memory):
        def commit(self, context: CommitContext, payloads: Any) -> None:
            raise SinkError("no room there")

    errands = Errands(outlives=False)
    thread = serving(errands, Runner(steps(Refusing())), [])
    with pytest.raises(SinkError, match="no room there"):
        errands.commit(CONTEXT, [])
    errands.close()
    thread.join()


def test_a_job_that_outlives_its_program_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.01)
    monkeypatch.setattr(module, "GONE_S", 0.0)
    errands = Errands(outlives=True)
    errands.commit(CONTEXT, [b"rows"])
    assert errands.next(0.0) is None


def test_an_answer_to_an_errand_before_is_no_answer_to_this() -> None:
    errands, came = Errands(outlives=False), list[Errand | None]()

    def serve() -> None:
        came.append(errands.next(5.0))
        errands.done("another", None)
        came.append(errands.next(0.0))
        assert came[0] is not None
        errands.done(came[0].number, None)

    thread = threading.Thread(target=serve)
    thread.start()
    errands.commit(CONTEXT, [])
    thread.join()
    assert came[0] == came[1]
