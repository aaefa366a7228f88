"""The contract of a `WorkerGroup`: what the coordinator relies on, run against local, simulated and Ray workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.builder.plan import Plan
from malstrom_py.errors import MalstromError, PeerError
from malstrom_py.rescale.moves.placement import first_table
from malstrom_py.rescale.moves.protocol import BarrierPassed, InjectBarrier
from malstrom_py.sources.base import Part
from malstrom_py.worker_context import WorkerInfo
from malstrom_py.workers.coordinator.machine import RescaleCalledOff
from malstrom_py.workers.coordinator.sink_commits import SinkCommits
from malstrom_py.workers.coordinator.worker_group import Arrived, NothingToDo, StartGroup, WorkerGroup
from malstrom_py.workers.engine.graph_builder import build_sinks
from malstrom_py.workers.transport.messages import (
    Connected,
    Drain,
    Finish,
    Finished,
    OpenSources,
    OrderFailed,
    Parted,
    PartWith,
    SourcesOpened,
    Start,
    Suspend,
)

K = TypeVar("K")

ROWS: Final = 60
ROUNDS_MAX: Final = 5_000
"""How often a group is asked before a test gives up."""


class Refusing:
    """A sink that cannot be opened."""

    def build(self, worker: WorkerInfo) -> Any:
        raise OSError("no room")


def counted(sink: Any) -> Plan:
    """A job with one exchange: counts by key."""
    job = mp.Job("group", slots=8)
    numbers = job.source("in", sources.Memory(range(ROWS), parts=2)).key_by("key", lambda n: n % 5)
    numbers.count("n").sink("out", sink)
    return job.plan()


@dataclass
class Grouped:
    """``group``, which runs ``plan``. ``turn`` delivers messages where a schedule does so."""

    group: WorkerGroup
    plan: Plan
    turn: Callable[[], None] = lambda: None

    def arriving(self) -> Iterator[list[Arrived]]:
        """Yield what arrives, round by round, as a coordinator takes it."""
        for _ in range(ROUNDS_MAX):
            self.turn()
            came = [*self.group.arrived(), *self.group.receive()]
            yield came
            if not came:
                try:
                    self.group.wait(0.2)
                except NothingToDo:
                    """Only a message can help."""
        raise AssertionError("what was waited for has not come")

    def start(self, *workers: int) -> Grouped:
        """Start the first workers."""
        self.group.begin(None)
        self.group.start(StartGroup(workers, workers, first_table(self.plan.slots, workers), 0))
        return self

    def opened(self, *workers: int) -> Grouped:
        """Start the first workers, and open their sources."""
        assert sorted(reply.worker for reply in self.start(*workers).replies(Connected, len(workers))) == [*workers]
        for worker in workers:
            parts = [Part(str(part)) for part in range(2) if workers[part % len(workers)] == worker]
            self.group.send(worker, OpenSources({"in": parts}))
        assert {reply.worker for reply in self.replies(SourcesOpened, len(workers))} == {*workers}
        return self

    def replies(self, kind: type[K], count: int) -> list[K]:
        """Return the next ``count`` messages of a kind. The error of an order is raised."""
        found: list[K] = []
        for came in self.arriving():
            for content in came:
                assert not isinstance(content, OrderFailed)
                if isinstance(content, RescaleCalledOff):
                    raise content.error
                if isinstance(content, kind):
                    found.append(content)
            if len(found) >= count:
                break
        assert len(found) == count
        return found

    def until(self, wanted: Callable[[], bool]) -> None:
        for _ in self.arriving():
            if wanted():
                return


def check_runs_to_its_end(grouped: Grouped) -> None:
    """The first workers read nothing before `Start`; at the end they leave what they have pre-committed."""
    group = grouped.opened(0, 1).group
    assert sorted(group.workers) == [0, 1]
    assert not group.finished((0, 1), 0)
    for worker in (0, 1):
        group.send(worker, Start())
    grouped.until(lambda: group.finished((0, 1), 0))
    commits = SinkCommits(grouped.plan.job, build_sinks(grouped.plan, mp.InProcess()._clock), 0.0)
    for worker in (0, 1):
        group.send(worker, Finish(commits.contexts))
    ended = grouped.replies(Finished, 2)
    assert [end.error for end in ended] == [None, None]
    assert sum(end.counts["in"].rows_in for end in ended) == ROWS
    assert {step for end in ended for step, _ in end.payloads} == {"out"}
    group.close(failed=False)


def check_joins_and_leaves(grouped: Grouped) -> None:
    """R1, R8: joiners are connected with all; who stays parts with leavers, which are then removed."""
    group = grouped.opened(0).group
    group.send(0, Start())
    group.start(StartGroup((3, 4), (0,), first_table(grouped.plan.slots, (0,)), 0))
    assert sorted(reply.worker for reply in grouped.replies(Connected, 2)) == [3, 4]
    assert sorted(group.workers) == [0, 3, 4]
    for worker in (0, 3):
        group.send(worker, PartWith((4,)))
    assert sorted(reply.worker for reply in grouped.replies(Parted, 2)) == [0, 3]
    commits = SinkCommits(grouped.plan.job, build_sinks(grouped.plan, mp.InProcess()._clock), 0.0)
    group.send(4, Finish(commits.contexts))
    assert [end.worker for end in grouped.replies(Finished, 1)] == [4]
    group.remove([4])
    assert (sorted(group.workers), sorted(group.counts())) == ([0, 3], [0, 3])
    group.close(failed=False)


def check_takes_orders_in_order(grouped: Grouped) -> None:
    """A barrier, then the end of the sources: the barrier has passed before."""
    group = grouped.opened(0).group
    for order in (Start(), InjectBarrier("one"), Drain()):
        group.send(0, order)
    assert grouped.replies(BarrierPassed, 1)[0].snapshot == "one"
    grouped.until(lambda: group.finished((0,), 0))
    group.close(failed=True)


def check_suspends(grouped: Grouped) -> None:
    """Suspended workers have stopped after what is in flight."""
    group = grouped.opened(0, 1).group
    for worker in (0, 1):
        group.send(worker, Start())
        group.send(worker, Suspend())
    grouped.until(lambda: group.suspended((0, 1), 0))
    group.close(failed=False)


def check_failed_start_is_an_error(grouped: Grouped) -> None:
    """The error of a worker that cannot be built is raised, or arrives. ``grouped`` writes to a `Refusing` sink."""
    with pytest.raises(MalstromError, match=r"sink 'out'"):
        grouped.start(0).replies(Connected, 1)
    grouped.group.close(failed=True)


def check_dead_worker_is_named(grouped: Grouped, pid_of_one: Callable[[Grouped], int], how: str) -> int | None:
    """The error of a worker whose process is killed names it, the process, and ``how`` it ended. Not for local ones.
    Return the worker.
    """
    grouped.opened(0, 1).group.send(0, Start())
    killed = pid_of_one(grouped)
    os.kill(killed, signal.SIGKILL)
    with pytest.raises(PeerError, match=r"worker [01] died") as caught:
        grouped.until(lambda: False)
    assert str(caught.value).startswith(f"worker {caught.value.peer} died")
    assert f"pid: {killed}{how}" in str(caught.value)
    grouped.group.close(failed=True)
    return caught.value.peer


CONTRACT: Final[Mapping[Callable[[Grouped], None], Any]] = {
    check_runs_to_its_end: sinks.Memory,
    check_joins_and_leaves: sinks.Memory,
    check_takes_orders_in_order: sinks.Memory,
    check_suspends: sinks.Memory,
    check_failed_start_is_an_error: Refusing,
}
"""The contract: what is checked of a group, and the sink of its plan, which `counted` makes."""
