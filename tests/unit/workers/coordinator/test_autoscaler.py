"""The shell of the autoscaler: what it samples, when it asks, and what becomes of its requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import events, sinks
from malstrom_py.clock import VirtualClock
from malstrom_py.errors import DeadlineError, PlanError
from malstrom_py.metrics import PartMetrics
from malstrom_py.workers.coordinator.autoscaler import Autoscaler, ScaledGroup, check_autoscale
from malstrom_py.workers.coordinator.rescale_requests import Done
from malstrom_py.workers.reports.event_log import EventLog
from malstrom_py.workers.reports.figures import WorkerFigures
from malstrom_py.workers.reports.result import StepCounts
from tests.arriving import Arriving

OPTIONS = mp.Autoscale(max=4, interval_s=1, up_after_s=2, cool_down_s=4)


class Run:
    """A run whose workers have done what a test says. ``room``: for how many workers there is room, or may once be;
    ``room_now``: the same without more nodes.
    """

    def __init__(self, workers: int = 1, room: int = 8, room_now: int = 8) -> None:
        self.members = tuple(range(workers))
        self.phase = "steady"
        self.group: ScaledGroup = self
        self.room = room
        self.room_now = room_now
        self.read = self.lag = 0
        self.busy_s = 0.0
        self.sharing = False
        self.asked: list[tuple[int, Done]] = []

    def counts(self) -> Mapping[str, StepCounts]:
        return {"in": StepCounts("source", self.read, {"out": self.read}), "out": StepCounts("sink", self.read, {})}

    def figures(self) -> Mapping[int, WorkerFigures]:
        return {
            worker: WorkerFigures(
                host="here",
                pid=1 if self.sharing else worker + 1,
                busy_s=self.busy_s / (len(self.members) if self.sharing else 1),
                parts=[PartMetrics("in", str(worker), worker, lag_rows=self.lag)],
            )
            for worker in self.members
        }

    def check_rescale(self, size: int, *, now: bool = False) -> None:
        room = min(self.room, self.room_now) if now else self.room
        if size > room:
            raise PlanError(f"there is room for {room}")

    def rescale(self, size: int, done: Done) -> None:
        self.asked.append((size, done))


def turns(scaler: Autoscaler, run: Run, *, from_s: int, to_s: int, rows: int = 100, busy: float = 1.0) -> None:
    """Let a second pass ``to_s - from_s`` times, with these rows read and the workers so busy."""
    for at_s in range(from_s, to_s):
        run.read += rows
        run.busy_s += busy
        if at_s >= scaler.due_s:
            scaler.turn(run, float(at_s))


def growing(scaler: Autoscaler, run: Run, *, from_s: int, to_s: int) -> None:
    """Let as many seconds pass, in which each worker reads 100 rows, and the lag grows by more than that."""
    for at_s in range(from_s, to_s):
        run.lag += 150
        turns(scaler, run, from_s=at_s, to_s=at_s + 1, rows=100 * len(run.members))


@pytest.fixture
def log() -> EventLog:
    return EventLog()


@pytest.fixture
def scaler(log: EventLog) -> Autoscaler:
    made = Autoscaler("docs", log)
    made.start(OPTIONS)
    return made


def emitted(log: EventLog) -> list[events.Autoscaled]:
    return [event for event in log.page(0, "").events if isinstance(event, events.Autoscaled)]


def test_without_options_it_does_nothing(log: EventLog) -> None:
    scaler, run = Autoscaler("docs", log), Run()
    turns(scaler, run, from_s=0, to_s=20)
    assert not run.asked
    assert scaler.metrics is None


def test_a_decision_is_an_event_with_its_figures_before_the_request(scaler: Autoscaler, log: EventLog) -> None:
    run = Run()
    turns(scaler, run, from_s=0, to_s=4)
    [event] = emitted(log)
    assert (event.workers, event.target, event.error) == (1, 2, "")
    assert event.reason == "100 rows/s arrive, 1 worker takes 70 at its target of 70 %"
    assert (event.arrival_per_s, event.capacity_per_s, event.busy, event.lag_rows) == (100, 70, 1.0, 0)
    assert [size for size, _ in run.asked] == [2]
    assert scaler.metrics is not None
    assert (scaler.metrics.decisions, scaler.metrics.max) == (1, 4)


def test_nothing_is_asked_while_something_moves(scaler: Autoscaler) -> None:
    run = Run()
    run.phase = "moving"
    turns(scaler, run, from_s=0, to_s=20)
    assert not run.asked


def test_a_barrier_is_waited_for(scaler: Autoscaler) -> None:
    run = Run()
    turns(scaler, run, from_s=0, to_s=2)
    run.phase = "barrier"
    turns(scaler, run, from_s=2, to_s=3)
    run.phase = "steady"
    turns(scaler, run, from_s=3, to_s=5)
    assert run.asked


def test_r9_the_size_of_a_user_is_left_alone(scaler: Autoscaler) -> None:
    run = Run()
    turns(scaler, run, from_s=0, to_s=1)
    scaler.overruled(1)
    turns(scaler, run, from_s=1, to_s=5)
    assert not run.asked
    turns(scaler, run, from_s=5, to_s=8)
    assert run.asked


def test_r9_a_rebalance_asks_for_no_size_that_is_left_alone(scaler: Autoscaler) -> None:
    run = Run()
    turns(scaler, run, from_s=0, to_s=1)
    scaler.overruled(None)
    turns(scaler, run, from_s=1, to_s=4)
    assert run.asked


def test_r9_a_size_of_a_user_from_before_there_were_options_does_not_count(log: EventLog) -> None:
    scaler, run = Autoscaler("docs", log), Run()
    turns(scaler, run, from_s=0, to_s=2)
    scaler.overruled(1)
    scaler.set(OPTIONS)
    turns(scaler, run, from_s=50, to_s=54)
    assert run.asked


def test_a_size_outside_the_limits_that_is_refused_is_tried_once_a_minute(scaler: Autoscaler, log: EventLog) -> None:
    scaler.set(mp.Autoscale(min=3, max=4, interval_s=1, up_after_s=2, cool_down_s=4))
    run = Run(room=1)
    turns(scaler, run, from_s=0, to_s=100)
    assert len(emitted(log)) == 2


def test_a_lag_that_becomes_known_has_not_grown(scaler: Autoscaler) -> None:
    run = Run(workers=2)
    turns(scaler, run, from_s=0, to_s=1, busy=0.5)
    run.members = (0, 1)
    known = run.figures()
    run.group = Lagging({0: known[0]})
    turns(scaler, run, from_s=1, to_s=2, busy=0.5)
    run.group = Lagging({0: known[0], 1: replace(known[1], parts=[PartMetrics("in", "1", 1, lag_rows=10_000)])})
    turns(scaler, run, from_s=2, to_s=3, busy=0.5)
    assert scaler.metrics is not None
    assert scaler.metrics.arrival_per_s == 100


class Lagging:
    """Workers with these figures."""

    def __init__(self, found: Mapping[int, WorkerFigures]) -> None:
        self._found = found

    def figures(self) -> Mapping[int, WorkerFigures]:
        return self._found


def test_where_there_is_less_room_it_takes_what_there_is(log: EventLog) -> None:
    scaler, run = Autoscaler("docs", log), Run(room=2)
    scaler.set(OPTIONS)
    growing(scaler, run, from_s=0, to_s=4)
    assert [size for size, _ in run.asked] == [2]
    assert emitted(log)[0].reason.endswith("there is no room for 4: there is room for 2")


def test_where_there_is_no_room_the_job_stays_and_says_why(log: EventLog, scaler: Autoscaler) -> None:
    run = Run(room=1)
    turns(scaler, run, from_s=0, to_s=40)
    [event] = emitted(log)
    assert (event.workers, event.target, event.error) == (1, 2, "there is room for 1")
    run.room = 8
    turns(scaler, run, from_s=40, to_s=80)
    assert run.asked


def test_workers_that_do_not_start_in_time_are_tried_again_later(log: EventLog, scaler: Autoscaler) -> None:
    run = Run()
    turns(scaler, run, from_s=0, to_s=4)
    _, done = run.asked[0]
    done(DeadlineError("they did not start", wait="the start", deadline_s=1.0))
    assert emitted(log)[-1].error == "they did not start"
    turns(scaler, run, from_s=4, to_s=50)
    assert len(run.asked) == 1
    turns(scaler, run, from_s=50, to_s=80)
    assert len(run.asked) > 1


def test_a_cluster_that_stops_growing_is_used_as_far_as_it_goes(log: EventLog, scaler: Autoscaler) -> None:
    late = DeadlineError("they did not start", wait="the start", deadline_s=1.0)
    run = Run(room_now=2)
    growing(scaler, run, from_s=0, to_s=4)
    run.asked[0][1](late)
    assert [(made.target, made.error) for made in emitted(log)] == [(4, ""), (4, "they did not start")]
    growing(scaler, run, from_s=4, to_s=5)
    assert [size for size, _ in run.asked] == [4, 2]
    run.members = (0, 1)
    growing(scaler, run, from_s=5, to_s=60)
    assert len(run.asked) == 2
    growing(scaler, run, from_s=60, to_s=64)
    assert [size for size, _ in run.asked] == [4, 2, 4]
    run.asked[2][1](late)
    growing(scaler, run, from_s=64, to_s=120)
    assert len(run.asked) == 3


def test_a_request_that_had_room_and_failed_is_not_repeated_for_fewer(scaler: Autoscaler) -> None:
    run = Run()
    growing(scaler, run, from_s=0, to_s=4)
    run.asked[0][1](PlanError("a sink did not open"))
    growing(scaler, run, from_s=4, to_s=50)
    assert len(run.asked) == 1


def test_workers_of_one_process_take_turns(scaler: Autoscaler) -> None:
    run = Run(workers=2)
    run.sharing = True
    turns(scaler, run, from_s=0, to_s=4, busy=1.0)
    assert scaler.metrics is not None
    assert scaler.metrics.capacity_per_s == pytest.approx(70)


def test_other_options_apply_from_then_on_and_are_kept(scaler: Autoscaler) -> None:
    kept: list[Any] = []
    scaler.start(OPTIONS, kept.append)
    run = Run()
    turns(scaler, run, from_s=0, to_s=2)
    scaler.set(None)
    turns(scaler, run, from_s=2, to_s=10)
    assert not run.asked
    scaler.set(OPTIONS)
    turns(scaler, run, from_s=10, to_s=16)
    assert run.asked
    assert kept == [None, OPTIONS]


def test_wrong_options_of_a_runtime_are_refused() -> None:
    for wrong in (4, mp.Autoscale):
        with pytest.raises(PlanError, match="autoscale must be an mp"):
            check_autoscale(wrong)
    with pytest.raises(PlanError, match="max must be at most 128"):
        mp.InProcess(autoscale=mp.Autoscale(max=1000))
    with pytest.raises(PlanError, match="autoscale needs row_cost_s"):
        mp.Simulation(autoscale=mp.Autoscale())


def test_a_job_in_this_process_begins_at_an_allowed_size_and_says_what_it_does() -> None:
    job, out = mp.Job("in-process"), sinks.Memory()
    clock = VirtualClock()
    job.source("in", Arriving(lambda at_s: 10 * at_s, 30.0, lambda: clock, parts=2)).sink("out", out)
    seen: list[events.AnyEvent] = []
    mp.run(job, clock=clock, autoscale=mp.Autoscale(min=2, max=3, cool_down_s=20), on_event=seen.append)
    assert [event.worker for event in seen if isinstance(event, events.WorkerJoined)][:2] == [0, 1]
    assert sorted(out.items) == list(range(300))
