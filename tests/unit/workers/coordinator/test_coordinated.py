"""A worker group reports and executes the decisions of its coordinator."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.clock import VirtualClock
from malstrom_py.errors import DeadlineError, InternalError, SnapshotError
from malstrom_py.workers.coordinator.coordinator import Coordinator
from malstrom_py.workers.coordinator.machine import RescaleCalledOff
from malstrom_py.workers.coordinator.worker_group import NothingToDo, RunJournal
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.runtime.local_workers import LocalWorkers


def run_of(job: mp.Job, clock: VirtualClock, *, workers: int) -> Coordinator[LocalWorkers]:
    plan = job.plan()
    return Coordinator(plan, LocalWorkers(plan, clock, Batching()), workers=workers, clock=clock)


def coordinator() -> Coordinator[LocalWorkers]:
    job = mp.Job("crew")
    job.source("in", sources.Memory([1, 2])).key_by("key", lambda n: n).sink("out", sinks.Memory())
    made = run_of(job, VirtualClock(), workers=2)
    made.open()
    return made


def test_it_tells_who_works_and_what_moves() -> None:
    made = coordinator()
    assert (made.members, made.target, made.phase, made.moving) == ((0, 1), (0, 1), "steady", None)
    made.rescale(3, lambda ended: None)
    assert made.target == (0, 1, 2)
    made.close()


class Wanted(RunJournal):
    """Notes the sizes that were wanted."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def wanted(self, workers: int) -> None:
        self.sizes.append(workers)


@pytest.mark.parametrize("rebalances", [False, True])
def test_a_size_that_was_called_off_is_not_that_of_a_later_run(
    monkeypatch: pytest.MonkeyPatch, rebalances: bool
) -> None:
    made, wanted, ended = coordinator(), Wanted(), list[object]()
    monkeypatch.setattr(made.group, "start", lambda start: None)
    made._journal = wanted
    made.rescale(3, ended.append)
    if rebalances:  # it waits, for three workers
        made.request((0, 1, 2), list[object]().append, evens_out=True)
    late = DeadlineError("they did not start", wait="the start", deadline_s=1.0)
    made.take([RescaleCalledOff(late)])
    assert (made.members, wanted.sizes, ended) == ((0, 1), [3, 2], [late])
    made.close()


def test_without_snapshots_none_can_be_asked_for_and_it_is_suspended_all_the_same() -> None:
    made = coordinator()
    assert (made.snapshots, made.kept) == (None, None)
    with pytest.raises(SnapshotError, match=r"start it with snapshots=mp\.Snapshots\(uri\)"):
        made.snapshot(lambda ended: None)
    with pytest.raises(SnapshotError, match="runs without snapshots"):
        made.snapshot(lambda ended: None, copy_to="/somewhere")
    made.suspend()
    turns = 0
    while not made.suspended:
        turns += 1
        assert turns <= 100, "it is not suspended"
        made.step()
    made.close()


@pytest.mark.parametrize(("due_s", "is_stuck"), [(None, True), (1.0, False)])
def test_r13_a_listing_that_has_become_due_since_the_turn_began_is_not_the_end_of_the_job(
    due_s: float | None, is_stuck: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(wait_s: float | None, *, pending: bool) -> None:
        raise NothingToDo

    clock = VirtualClock()
    job = mp.Job("waits")
    job.source("in", sources.Memory([1])).sink("out", sinks.Memory())
    made = run_of(job, clock, workers=1)
    monkeypatch.setattr(made, "_source_calls", SimpleNamespace(due_s=due_s, pending=False))
    monkeypatch.setattr(made.group, "wait", nothing)
    clock.advance(1.5)
    with pytest.raises(InternalError, match="no worker has anything to do") if is_stuck else nullcontext():
        made._wait(None)
