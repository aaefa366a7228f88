"""Events of rescales: each has a beginning and an end, also those that wait for another one."""

from __future__ import annotations

import malstrom_py as mp
from malstrom_py import events, sinks, sources
from malstrom_py.errors import PlanError
from malstrom_py.workers.coordinator.job_events import JobEvents
from malstrom_py.workers.reports.event_log import EventLog
from malstrom_py.workers.reports.job_status import RescaleReport


def job_events() -> tuple[JobEvents, EventLog]:
    job, log = mp.Job("docs"), EventLog()
    job.source("in", sources.Memory([1])).sink("out", sinks.Memory())
    return JobEvents(job.plan(), log, lambda order: None), log


def report(workers: int) -> RescaleReport:
    return RescaleReport(tuple(range(workers)), version=1, moves=1, slots=10, parts=2, duration_s=0.5, keys=3, bytes=4)


def test_a_rescale_that_waits_begins_where_the_one_before_has_ended() -> None:
    made, log = job_events()
    made.rescaling(2, 4)
    made.rescaling(4, 3)
    made.rescaled(report(4), None, 3)
    made.rescaled(report(3), None, None)
    assert log.page(0).events == [
        events.RescaleBegun(2, 4),
        events.RescaleBegun(4, 3),
        events.RescaleEnded(4, slots=10, parts=2, keys=3, bytes=4, duration_s=0.5),
        events.RescaleBegun(4, 3),
        events.RescaleEnded(3, slots=10, parts=2, keys=3, bytes=4, duration_s=0.5),
    ]
    assert log.totals.rescales == 2
    assert log.totals.keys == 6


def test_a_rescale_that_was_called_off_is_in_no_total() -> None:
    made, log = job_events()
    made.rescaling(2, 4)
    made.rescaled(report(2), PlanError("there is no room"), None)
    ended = log.page(0).events[-1]
    assert isinstance(ended, events.RescaleEnded)
    assert (ended.workers, ended.error, log.totals.rescales) == (2, "there is no room", 0)
