"""`JobHandle.rescale` in one process: under traffic, while asleep, at the end, and again before it is done."""

from __future__ import annotations

import threading
from itertools import count

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import (
    JobEnded,
    OperationInProgress,
    OperatorError,
    PlanError,
)
from tests.unit.workers.harness import PATIENCE_S, Gate, endless, idle, is_complete, start


def test_a_command_wakes_a_job_that_sleeps() -> None:
    handle = start(idle())
    assert handle.status(timeout_s=PATIENCE_S).age_s == 0.0
    assert handle.rescale(3, timeout_s=PATIENCE_S).members == (0, 1, 2)
    handle.stop(timeout_s=PATIENCE_S)


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


def test_a_job_that_ends_while_it_rescales_answers_who_waits() -> None:
    gate = Gate()
    job = mp.Job("a")
    job.source("in", sources.Memory([1])).map("gate", gate).key_by("k", lambda n: n).count("n").sink(
        "out", sinks.Memory()
    )
    handle = start(job)
    assert gate.entered.wait(PATIENCE_S)
    with pytest.raises(OperationInProgress):
        handle.rescale(2, timeout_s=0.0)
    gate.opened.set()
    assert handle.wait(timeout_s=PATIENCE_S).written == 1


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
