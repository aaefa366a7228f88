"""The events of a job under every schedule that a seed makes: crashes of workers and coordinators, stops, rescales."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import events, sinks, sources
from malstrom_py.operators.logic import KeyedLogic
from malstrom_py.workers.reports.job_events import JobEvents
from tests.lives import check_lives

SEEDS = 120


class Listening(KeyedLogic[int, int, int, int]):
    """Counts what it is notified of. All simulated workers share it."""

    def __init__(self) -> None:
        self.seen: list[events.AnyEvent] = []

    def on_data(self, message: Any, key_state: int | None, output: Any) -> int:
        output.send(message)
        return (key_state or 0) + 1

    def on_event(self, event: events.AnyEvent) -> None:
        self.seen.append(event)


def simulated(seed: int, **options: Any) -> tuple[list[events.AnyEvent], Listening, mp.SimulatedResult]:
    seen: list[events.AnyEvent] = []
    logic, out = Listening(), sinks.Memory()
    job = mp.Job("events")
    keyed = job.source("in", sources.Memory(range(60), parts=3)).key_by("key", lambda n: n % 5)
    keyed.stateful_op("op", logic).sink("out", out)
    result = mp.Simulation(workers=2, seed=seed, on_event=seen.append, **options).run(job)
    assert sorted(out.items) == list(range(60))
    return seen, logic, result


def kinds(seen: list[events.AnyEvent]) -> Mapping[str, int]:
    return Counter(type(event).__name__ for event in seen)


@pytest.mark.long(but=("0", "20"))
@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_each_worker_has_one_last_event_under_every_schedule(first: int) -> None:
    met: Counter[str] = Counter()
    for seed in range(first, first + 20):
        seen, logic, result = simulated(seed, crashes=seed % 3)
        restarts = [event for event in seen if isinstance(event, events.Restarting)]
        assert len(restarts) == result.incarnations - 1
        check_lives(seen, sources=["in"], run_failures=sum(bool(event.error) for event in restarts))
        met.update(kinds(seen))
        _check_notified(seen, logic)
    wanted = "WorkerJoined", "WorkerLeft", "NodeFailed", "Stop", "Restarting", "RescaleBegun", "SnapshotCompleted"
    assert not [kind for kind in wanted if not met[kind]]


def _check_notified(seen: list[events.AnyEvent], logic: Listening) -> None:
    """Each logic is notified of a failure in the next run, once per worker of it that is there at its start."""
    told = Counter(str(event) for event in logic.seen if isinstance(event, events.NodeFailed))
    failed: Counter[str] = Counter()
    new: list[str] = []
    for index, event in enumerate(seen):
        if isinstance(event, events.NodeFailed):
            new.append(str(event))
        elif isinstance(event, events.Restarting):
            first = list(takewhile(lambda later: isinstance(later, events.WorkerJoined), seen[index + 1 :]))
            if first:
                failed.update(new * len(first))
                new.clear()
    assert told == failed


def test_a_stop_by_a_user_at_any_moment_ends_each_worker_once() -> None:
    causes: Counter[str] = Counter()
    for turn in range(0, 60, 3):
        seen: list[events.AnyEvent] = []
        job, out = mp.Job("events-stop"), sinks.Memory()
        job.source("in", sources.Memory(range(500), parts=2)).key_by("key", lambda n: n % 5).count("n").sink("out", out)
        handle = mp.InProcess(2, batch=mp.Batching(rows_max=1), on_event=seen.append).start(job, control=False)
        reader = handle.events()
        for _ in range(turn % 7):
            next(reader)
        try:
            handle.stop(drain=turn % 2 == 0, timeout_s=60)
        except mp.JobEnded:
            """It was faster."""
        list(reader)
        check_lives(seen, sources=["in"])
        causes.update(event.cause for event in seen if isinstance(event, events.Stop))
    assert causes[events.StopCause.MANUAL]


@pytest.mark.parametrize("wrong", ["joined", "left", "finished", "failed", "noticed"])
def test_what_an_event_is_left_out_for_is_seen(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above would see each of these faults in one of its seeds."""
    monkeypatch.setattr(JobEvents, wrong, lambda self, *_, **__: None)
    with pytest.raises((AssertionError, ValueError)):
        _check_seeds(range(20))


def _check_seeds(seeds: range) -> None:
    for seed in seeds:
        seen, _, _ = simulated(seed, crashes=1)
        check_lives(seen, sources=["in"], run_failures=kinds(seen)["Restarting"])
        assert kinds(seen)["Input"]
