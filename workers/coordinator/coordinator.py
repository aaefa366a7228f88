"""The coordinator of a run: feeds its machine with events, keeps the requests, executes the decisions.

Rule: decisions of the machine are executed in its order. The `WorkerStarter` starts and removes workers; orders are
returned as messages, which the worker group delivers. How workers are reached differs between the worker groups
(local, Ray, simulated); all decisions are made here, for all groups.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from malstrom_py.builder.plan import Plan
from malstrom_py.builder.regions import regions_of
from malstrom_py.clock import Clock
from malstrom_py.errors import DeadlineError, PlanError, SnapshotError
from malstrom_py.rescale.moves.move_sizing import Pacing
from malstrom_py.rescale.moves.placement import first_table
from malstrom_py.snapshot.snapshots import Snapshots
from malstrom_py.workers.coordinator import machine as coordinator
from malstrom_py.workers.coordinator import machine as events
from malstrom_py.workers.coordinator.command_queue import SnapshotDone
from malstrom_py.workers.coordinator.job_upgrades import plan_image
from malstrom_py.workers.coordinator.machine import Topology
from malstrom_py.workers.coordinator.recovery import RunStart
from malstrom_py.workers.coordinator.rescale_requests import Done, RescaleRequests
from malstrom_py.workers.coordinator.sink_commits import SinkCommits
from malstrom_py.workers.coordinator.snapshot_coordinator import SnapshotCoordinator
from malstrom_py.workers.engine.background import Background
from malstrom_py.workers.reports.job_status import Moving, SnapshotStatus
from malstrom_py.workers.reports.result import RunResult, StepCounts
from malstrom_py.workers.transport.messages import Message


def topology_of(plan: Plan) -> Topology:
    """Return the exchanges of ``plan``, the regions that exchanges feed, and the sources.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sinks, sources
    >>> job = mp.Job("docs")
    >>> numbers = job.source("numbers", sources.Memory([1, 2])).key_by("parity", lambda n: n % 2)
    >>> numbers.sum("total").sink("out", sinks.Memory())
    >>> topology_of(job.plan()).sources
    {'numbers': ('parity',)}
    """
    regions = regions_of(plan)
    downstream = _downstream(plan)
    return Topology(
        exchanges=tuple(exit for region in regions for exit in region.exits),
        regions={region.name: region.exits for region in regions if region.entries},
        sources={
            source: tuple(exit for exit in region.exits if exit in downstream[source])
            for region in regions
            for source in region.sources
        },
    )


def _downstream(plan: Plan) -> dict[str, set[str]]:
    """Return for each step all steps downstream, also those after another exchange."""
    found: dict[str, set[str]] = {step.name: {step.name} for step in plan.steps}
    for step in reversed(plan.steps):
        for ref in step.inputs:
            found[ref.step] |= found[step.name]
    return found


MOVE_DEADLINE_S: Final = 120.0
"""R7: how long a rescale or a barrier may take without progress of any worker."""


class WorkerStarter(Protocol):
    """The interface that starts and removes workers."""

    def start(self, start: events.StartWorkers) -> Sequence[Message]:
        """R1: start joiners, built from the current table and connected in both directions. Return the messages."""
        ...

    def remove_all_but(self, members: Sequence[int]) -> None:
        """R8: stop and remove all workers except ``members``."""
        ...


class Coordinator:
    """The coordinator of a run of ``plan`` that starts with the workers ``members``.

    ``slots_per_move``: the number of slots per move; None: as many as can be moved within the target pause.
    """

    def __init__(
        self,
        plan: Plan,
        workforce: WorkerStarter,
        *,
        members: Sequence[int],
        clock: Clock,
        slots_per_move: int | None = None,
    ) -> None:
        self._plan = plan
        self._workforce = workforce
        self._clock = clock
        self._pacing = Pacing.of(plan.slots) if slots_per_move is None else Pacing.fixed(slots_per_move)
        self._next_worker = max(members) + 1
        self._got_on_s = clock.monotonic_s()
        self._first = tuple(members)
        self.snapshotting: SnapshotCoordinator | None = None
        self.deal({})

    def deal(self, parts: Mapping[tuple[str, str], int]) -> None:
        """Set the readers of the movable parts, (source, part) -> worker. Call this first."""
        self._machine = coordinator.CoordinatorMachine(
            topology_of(self._plan),
            members=self._first,
            table=first_table(self._plan.slots, self._first),
            parts=parts,
            pacing=self._pacing,
        )
        self._rescales = RescaleRequests(self._machine)

    @property
    def members(self) -> tuple[int, ...]:
        """The current workers."""
        return self._machine.members

    @property
    def table(self) -> tuple[int, ...]:
        """The routing table: slot -> worker."""
        return self._machine.table

    @property
    def version(self) -> int:
        """The version of the table."""
        return self._machine.version

    @property
    def target(self) -> tuple[int, ...]:
        """The workers after the current rescale."""
        return self._machine.target

    @property
    def phase(self) -> str:
        """The phase: "steady", "joining", "moving", "leaving" or "barrier"."""
        return str(self._machine.phase)

    @property
    def is_steady(self) -> bool:
        """Whether no rescale and no barrier is in progress."""
        return self._machine.phase is coordinator.CoordinatorPhase.STEADY

    @property
    def readers(self) -> Mapping[tuple[str, str], int]:
        """The readers of the movable parts: (source, part) -> worker."""
        return self._machine.parts

    @property
    def is_between_moves(self) -> bool:
        """Whether a barrier passes between two moves of a rescale."""
        return self._machine.phase is coordinator.CoordinatorPhase.BARRIER and self._machine.moves_follow

    @property
    def moving(self) -> Moving | None:
        """The progress of the current rescale; None if nothing moves."""
        return self._rescales.moving

    def waiting_for(self) -> str:
        """R7: return a description of the missing reports."""
        return self._machine.waiting_for()

    def resized(self, size: int) -> tuple[int, ...]:
        """Return the members of a job of ``size`` workers: the youngest leave first."""
        members = self.target[:size]
        return (*members, *self.new_workers(size - len(members)))

    def new_workers(self, count: int) -> range:
        """Return ``count`` unused worker numbers, so that no old message is taken for a new worker's."""
        new = range(self._next_worker, self._next_worker + count)
        self._next_worker += count
        return new

    def check_leavers(self, members: Sequence[int], fixed: Mapping[int, str]) -> None:
        """Raise `PlanError` if a worker of ``fixed`` would leave: worker -> the source that only it can read."""
        for worker, source in fixed.items():
            if source and worker not in members:
                raise PlanError(
                    f"source {source!r} reads on worker {worker} and cannot move, because it has no positions: keep at "
                    f"least {worker + 1} workers, or make it a PartitionedSource"
                )

    def request(self, members: Sequence[int], done: Done) -> list[Message]:
        """Rescale to ``members``; ``done`` is called when the rescale has ended or was superseded (R9)."""
        members = tuple(members)
        self._rescales.asked(members, self._clock.monotonic_s(), done)
        return self.handle(events.RescaleRequested(members))

    def handle(self, event: events.Event) -> list[Message]:
        """Pass ``event`` to the machine and execute its decisions. Return the messages to send."""
        messages: list[Message] = []
        self.got_on()
        for effect in self._machine.handle(event):
            match effect:
                case events.StartWorkers():
                    messages += self._workforce.start(effect)
                case events.Send():
                    messages.append((effect.worker, effect.order))
                case events.Ended():
                    self._workforce.remove_all_but(effect.members)
                    self._rescales.ended(self._clock.monotonic_s(), effect.error)
                case events.BarrierBegun() if self.snapshotting is not None:
                    self.snapshotting.barrier_begun(effect)
                case events.CutMade() if self.snapshotting is not None:
                    self.snapshotting.cut_made(effect)
        self._machine.check()
        return messages

    def keep_snapshots(
        self,
        begun: RunStart,
        snapshots: Snapshots,
        background: Background,
        commits: SinkCommits,
        pins: Mapping[str, Any],
        count: Callable[[], RunResult],
    ) -> None:
        """Make snapshots from now on. ``count`` returns the counts of the run so far."""
        self.snapshotting = SnapshotCoordinator(
            self._plan.job,
            plan_image(self._plan),
            snapshots,
            begun.checkpointer,
            incarnation=begun.incarnation,
            sequence=begun.sequence,
            background=background,
            commits=commits,
            clock=self._clock,
            pins=pins,
            count=count,
            begun_from=begun.resumption,
        )

    def ask_snapshot(self, done: SnapshotDone, *, copy_to: str | None = None) -> None:
        """Request a snapshot and, with ``copy_to``, a copy there. `SnapshotError` if the job runs without."""
        if self.snapshotting is None:
            raise SnapshotError(
                f"job {self._plan.job!r} runs without snapshots: start it with snapshots=mp.Snapshots(uri)"
            )
        self.snapshotting.ask(done, copy_to=copy_to)

    def close(self) -> None:
        """Stop making snapshots: the run has ended."""
        if self.snapshotting is not None:
            self.snapshotting.close()

    @property
    def snapshots(self) -> SnapshotStatus | None:
        """The status of the snapshots; None for a job without."""
        return None if self.snapshotting is None else self.snapshotting.status

    @property
    def kept(self) -> RunResult | None:
        """The result of the job, once its final snapshot is durable; else None."""
        return None if self.snapshotting is None else self.snapshotting.result

    @property
    def is_saving(self) -> bool:
        """Whether a background task is pending."""
        return self.snapshotting is not None and self.snapshotting.background.pending > 0

    def due_s(self) -> list[float]:
        """Return the times of the next scheduled work, on the clock's monotonic time."""
        due_s = None if self.snapshotting is None else self.snapshotting.due_s()
        return [] if due_s is None else [due_s]

    def turn(self) -> list[Message]:
        """Inject the barrier of a snapshot that is due, and handle finished background tasks. Call between steps."""
        if self.snapshotting is None:
            return []
        return [message for wanted in self.snapshotting.turn() for message in self.handle(wanted)]

    def got_on(self) -> None:
        """Record progress of a worker."""
        self._got_on_s = self._clock.monotonic_s()

    def check_deadline(self) -> None:
        """R7: raise `DeadlineError` if a rescale or a barrier makes no progress.

        The error ends the run, which restarts from the last snapshot if there is one (S6).
        """
        if self.is_steady or self._clock.monotonic_s() - self._got_on_s <= MOVE_DEADLINE_S:
            return
        what = "a snapshot" if self._machine.phase is coordinator.CoordinatorPhase.BARRIER else "a rescale"
        remedy = "Start the job again." if self.snapshotting is None else "The job resumes from its last snapshot."
        raise DeadlineError(
            f"job {self._plan.job!r}: {what} has made no progress for {MOVE_DEADLINE_S:g} s. It waits for "
            f"{self.waiting_for()}. {remedy}",
            wait=self.waiting_for(),
            deadline_s=MOVE_DEADLINE_S,
        )


class CoordinatedWorkers(ABC):
    """The workers that run ``plan`` under the decisions of ``coordination``: the base class of all worker groups."""

    coordination: Coordinator

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self._plan = plan
        self._clock = clock
        self._started_s = clock.monotonic_s()
        self._suspending = False

    @property
    @abstractmethod
    def all_suspended(self) -> bool:
        """Whether every worker has stopped."""

    @abstractmethod
    def counts(self) -> dict[str, StepCounts]:
        """Return the counts of each step so far, summed over all workers."""

    @property
    def members(self) -> tuple[int, ...]:
        """The current workers."""
        return self.coordination.members

    @property
    def target(self) -> tuple[int, ...]:
        """The workers after the current rescale."""
        return self.coordination.target

    @property
    def phase(self) -> str:
        """The coordinator's phase: "steady", "joining", "moving", "leaving" or "barrier"."""
        return self.coordination.phase

    @property
    def moving(self) -> Moving | None:
        """The progress of the current rescale; None if nothing moves."""
        return self.coordination.moving

    @property
    def snapshots(self) -> SnapshotStatus | None:
        """The status of the snapshots; None for a job without."""
        return self.coordination.snapshots

    def snapshot(self, done: SnapshotDone) -> None:
        """Request a snapshot; ``done`` is called when it is committed. `SnapshotError` without ``snapshots=``."""
        self.coordination.ask_snapshot(done)

    def savepoint(self, uri: str, done: SnapshotDone) -> None:
        """Request a snapshot and a copy of it at ``uri``."""
        self.coordination.ask_snapshot(done, copy_to=uri)

    @property
    def kept(self) -> RunResult | None:
        """The result of the job, once its final snapshot is durable; else None."""
        return self.coordination.kept

    def suspend(self) -> None:
        """Stop every worker when nothing moves (R7): after all data in flight, or after a last snapshot's barrier."""
        snapshotting = self.coordination.snapshotting
        if snapshotting is None:
            self._suspending = True
        else:
            snapshotting.ask_last()

    @property
    def suspended(self) -> bool:
        """Whether all workers have stopped and the last snapshot, if any, is committed."""
        snapshotting = self.coordination.snapshotting
        return self.all_suspended if snapshotting is None else snapshotting.has_stopped

    @property
    def may_finish(self) -> bool:
        """Whether the run may finish: nothing moves, and no last barrier is in flight, which would stop the job."""
        snapshotting = self.coordination.snapshotting
        return self.coordination.is_steady and not (snapshotting is not None and snapshotting.is_stopping)

    def _result(self) -> RunResult:
        made = 0 if self.snapshots is None else self.snapshots.made
        return RunResult(self._plan.job, self.counts(), self._clock.monotonic_s() - self._started_s, snapshots=made)
