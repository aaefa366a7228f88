"""When a source counts as silent: the time in which workers can read it, of all its parts."""

from __future__ import annotations

from datetime import timedelta

import malstrom_py as mp
from malstrom_py import events, sinks, sources
from malstrom_py.sources import Part
from malstrom_py.workers.reports.event_log import EventLog
from malstrom_py.workers.reports.job_events import JobEvents
from malstrom_py.workers.reports.result import StepCounts


class Watched:
    """The events of a run with one source, ``in``, that is silent after 10 s."""

    def __init__(self, log: EventLog | None = None) -> None:
        job = mp.Job("watched")
        numbers = job.source("in", sources.Memory([1]), silent_after=timedelta(seconds=10))
        numbers.sink("out", sinks.Memory())
        self.log = log or EventLog()
        self.events = JobEvents(job.plan(), self.log, lambda event: None)
        self.events.opened({0: {"in": [Part("a")]}, 1: {"in": [Part("b")]}})
        self.now_s = 1_000.0

    def read(self, rows: int, after_s: float, *, is_reading: bool = True) -> None:
        self.now_s += after_s
        self.events.read({"in": StepCounts("source", rows, {})}, self.now_s, is_reading=is_reading)

    @property
    def seen(self) -> list[events.AnyEvent]:
        kinds = (events.InputSilent, events.InputRecovered, events.InputClosed)
        return [event for event in self.log.page(0).events if isinstance(event, kinds)]


def test_it_is_silent_once_until_a_record_comes() -> None:
    watched = Watched()
    for rows, after_s in ((0, 0.0), (0, 9.0), (1, 5.0), (1, 9.0), (1, 2.0), (1, 50.0)):
        watched.read(rows, after_s)
    assert watched.seen == [events.InputSilent("in", 11.0)]
    watched.read(2, 1.0)
    watched.read(2, 10.0)
    assert watched.seen[1:] == [events.InputRecovered("in"), events.InputSilent("in", 10.0)]


def test_time_in_which_it_is_not_read_does_not_count() -> None:
    watched = Watched()
    watched.read(5, 0.0)
    watched.read(5, 30.0, is_reading=False)
    watched.events.noticed(events.BackPressureBegun("in", 1))
    watched.read(5, 30.0)
    watched.events.noticed(events.BackPressureEnded("in", 1))
    watched.read(5, 9.0)
    assert watched.seen == []
    watched.read(5, 1.0)
    assert watched.seen == [events.InputSilent("in", 10.0)]


def test_an_input_that_has_ended_is_not_silent() -> None:
    watched = Watched()
    watched.events.parts_ended("in", [Part("a"), Part("b")])
    watched.read(5, 0.0)
    watched.read(5, 30.0)
    assert watched.seen == [events.InputClosed("in")]


def test_one_that_was_silent_before_a_restart_is_not_reported_again() -> None:
    before = Watched()
    before.read(5, 0.0)
    before.read(5, 30.0)
    after = Watched(EventLog.of(before.log.image))
    for rows, after_s in ((0, 0.0), (0, 30.0), (1, 1.0)):
        after.read(rows, after_s)
    assert after.seen == [events.InputSilent("in", 30.0), events.InputRecovered("in")]
