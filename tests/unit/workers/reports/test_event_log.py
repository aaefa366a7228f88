"""The log of events: each reader has its own pace, and what a late one needs is never dropped."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future

import pytest

import malstrom_py as mp
from malstrom_py import events
from malstrom_py.workers.control.messages import LENGTH_BYTES, decode_answer, encode_answer
from malstrom_py.workers.reports.commands import EventsCommand
from malstrom_py.workers.reports.event_log import (
    PAGE_MAX,
    Ask,
    EventCalls,
    EventLog,
    EventPage,
    read_events,
)

JOINED = events.WorkerJoined(0)


def local_ask(log: EventLog) -> Ask:
    """Return what asks ``log`` itself."""

    def ask(after: int, known: str, wait_s: float) -> EventPage:
        future = log.next_page(after, known)
        try:
            return future.result(wait_s)
        except TimeoutError:
            log.forget(future)
            return log.page(after, known)

    return ask


def test_a_reader_gets_what_follows_what_it_has_seen() -> None:
    log = EventLog()
    log.emit(JOINED)
    page = log.page(0)
    assert (page.events, page.missed, page.ended) == ([JOINED], 0, False)
    assert log.page(page.after, page.log).events == []
    log.emit(events.Ended("finished"))
    rest = log.page(page.after, page.log)
    assert (rest.events, rest.ended) == ([events.Ended("finished")], True)


def test_an_input_is_closed_once_and_nothing_follows_the_end() -> None:
    log = EventLog()
    assert log.emit(events.InputClosed("in"))
    assert not log.emit(events.InputClosed("in"))
    assert log.emit(events.Ended("stopped"))
    assert not log.emit(JOINED)
    assert log.page(0).events == [events.InputClosed("in"), events.Ended("stopped")]


def test_a_full_log_drops_the_oldest_but_not_what_says_how_something_ended() -> None:
    log = EventLog(kept_max=10)
    stop = events.Stop(events.StopCause.MANUAL, 3)
    log.emit(events.InputClosed("in"))
    log.emit(stop)
    for _ in range(20):
        log.emit(JOINED)
    read = list(read_events(local_ask(log), follow=False))
    assert read == [events.EventsMissed(10), events.InputClosed("in"), stop, *[JOINED] * 10]


def test_no_failure_is_dropped_for_the_events_that_follow() -> None:
    log = EventLog()
    failures = [events.NodeFailed(f"worker {number}", "died") for number in range(3_000)]
    others = [events.WorkerJoined(number) for number in range(10_000)]
    everything: list[events.AnyEvent] = [events.InputClosed("in"), *failures, *others]
    for event in everything:
        log.emit(event)
    for each in (log, EventLog.of(log.image)):
        assert list(read_events(local_ask(each), follow=False)) == everything
        assert not each.emit(events.InputClosed("in"))
        assert max(len(each.page(after).events) for after in (0, 100, 2_999, 3_001)) <= PAGE_MAX


def test_of_endless_failures_the_last_stay_and_the_end_of_each_input() -> None:
    """A job that restarts for ever must not fill the memory; the reader gets the number of those that are gone."""
    log = EventLog(kept_max=2, lasting_max=3)
    log.emit(events.InputClosed("in"))
    failures = [events.NodeFailed(f"worker {number}", "died") for number in range(10)]
    for event in failures:
        log.emit(event)
    log.emit(events.InputClosed("other"))
    log.emit(JOINED)
    log.emit(JOINED)
    read = list(read_events(local_ask(log), follow=False))
    ends = [events.InputClosed("in"), *failures[-3:], events.InputClosed("other")]
    assert read == [events.EventsMissed(7), *ends, JOINED, JOINED]


def test_a_reader_of_another_log_starts_over() -> None:
    """A coordinator on Ray that replaces another one has a new log."""
    first, second = EventLog(), EventLog()
    for _ in range(3):
        first.emit(JOINED)
    first.emit(events.InputClosed("in"))
    second.emit(events.NodeFailed("coordinator", "died"))
    second.emit(events.InputClosed("in"))
    second.emit(events.Ended("finished"))
    logs = iter([first, second])
    asked: list[EventPage] = []

    def ask(after: int, log: str, wait_s: float) -> EventPage:
        asked.append(next(logs).page(after, log))
        return asked[-1]

    read = list(read_events(ask, follow=True))
    assert read[3:] == [events.InputClosed("in"), events.NodeFailed("coordinator", "died"), events.Ended("finished")]


def test_a_reader_that_follows_waits_for_the_next_event() -> None:
    log = EventLog()
    read: list[events.AnyEvent] = []
    reader = threading.Thread(target=lambda: read.extend(read_events(local_ask(log), follow=True)))
    reader.start()
    log.emit(JOINED)
    log.emit(events.Ended("finished"))
    reader.join(30)
    assert read == [JOINED, events.Ended("finished")]


def test_a_wait_that_is_given_up_leaves_nothing() -> None:
    log = EventLog()
    assert local_ask(log)(0, "", 0.0).events == []
    future = log.next_page(0)
    log.forget(future)
    log.emit(JOINED)
    assert not future.done()
    is_new: Future[EventPage] = log.next_page(0)
    assert is_new.result(0).events == [JOINED]


def test_an_on_event_that_raises_is_logged_and_called_again(caplog: pytest.LogCaptureFixture) -> None:
    log, seen = EventLog(), list[events.AnyEvent]()

    def on_event(event: events.AnyEvent) -> None:
        seen.append(event)
        raise ValueError("no")

    calls = EventCalls(on_event, local_ask(log), "docs")
    with caplog.at_level(logging.ERROR, "malstrom_py"):
        log.emit(JOINED)
        log.emit(events.Ended("finished"))
        calls.join()
    assert seen == [JOINED, events.Ended("finished")]
    assert "on_event" in caplog.text


def test_on_event_must_be_a_function() -> None:
    with pytest.raises(mp.PlanError, match="on_event must be a function of one event, got int"):
        mp.RunOptions(on_event=3)  # type: ignore[arg-type]
    for runtime in (mp.InProcess, mp.Simulation, mp.RayRuntime):
        with pytest.raises(mp.PlanError, match="on_event"):
            runtime(on_event="print")  # type: ignore[arg-type]


EVERY: list[events.AnyEvent] = [
    events.Input("in", {"worker": 0, "rows": 2}),
    events.InputClosed("in"),
    events.InputSilent("in", 60.0),
    events.InputRecovered("in"),
    events.NodeFailed("worker 1", "died", ("in", "key")),
    events.Stop(events.StopCause.ALL_INPUTS_CLOSED, 0),
    events.Reload("op", "id"),
    events.ParameterChanged("threshold", 12),
    events.Error("no"),
    events.Autoscaled(1, 2, "150 rows/s arrive", capacity_per_s=70.0, lag_rows=3),
    events.RescaleBegun(1, 2),
    events.RescaleEnded(2),
    events.SnapshotCompleted("id"),
    JOINED,
    events.WorkerLeft(1),
    events.BackPressureBegun("in", 0),
    events.HotKeyBegun("by-user", "'ann'", 1, 0.6, 0.8),
    events.HotKeyEnded("by-user", "'ann'"),
    events.BackPressureEnded("in", 0),
    events.Restarting("no", 0.2),
    events.Ended("failed", "no"),
    events.EventsMissed(3),
]


def test_every_kind_of_event_passes_the_control_socket_and_unknown_ones_are_left_out() -> None:
    assert {type(event) for event in EVERY} == set(events.AnyEvent.__args__)

    class Later(events.Event, frozen=True, tag=True):
        new: int

    page = EventPage("log", 17, [*EVERY, Later(1)], 1, ended=True)  # type: ignore[list-item]
    command = EventsCommand(0, "", 1.0)
    back = decode_answer(encode_answer(page)[LENGTH_BYTES:]).result(command, "docs")
    assert isinstance(back, EventPage)
    assert back.events == EVERY
    assert (back.log, back.after, back.missed, back.ended) == ("log", 17, 1, True)


def test_the_data_of_an_input_is_arrow() -> None:
    from malstrom_py.data.batch import Batch

    assert events.Input("in").data is None
    rows = events.Input("in", batch=Batch([{"a": 1}, {"a": 2}], keys=["x", "y"], timestamps=[5, 6]))
    assert rows.data is not None
    assert rows.data.to_pydict() == {"key": ["x", "y"], "timestamp": [5, 6], "a": [1, 2]}
    plain = events.Input("in", batch=Batch([1, 2]))
    assert plain.data is not None
    assert plain.data.to_pydict() == {"value": [1, 2]}
