"""The coordinator's shell, wherever its workers run: takes events, keeps the requests, carries out decisions.

What the coordinator must know of a plan: which exchanges each region and each source feeds.

The coordinator's shell, wherever its workers run: takes events, keeps the requests, and has done what is decided.

Rule: decisions of the machine are executed in its order. The `WorkerStarter` starts and removes workers. Orders are
returned as messages.

What every crew has of its coordination: who works, what moves, which snapshots there are, and what can be asked for.

Rule: how workers are reached is the crew's own; what is decided about them is decided in one place for all crews.
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
    """The exchanges of ``plan``, the regions that exchanges feed, and its sources.

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
    """For each step those that it leads to; what is behind another exchange among them does no harm."""
    found: dict[str, set[str]] = {step.name: {step.name} for step in plan.steps}
    for step in reversed(plan.steps):
        for ref in step.inputs:
            found[ref.step] |= found[step.name]
    return found


MOVE_DEADLINE_S: Final = 120.0
"""R7: how long a rescale may go on without any worker getting on with anything."""


class WorkerStarter(Protocol):
    """Who starts workers and lets them go."""

    def start(self, start: events.StartWorkers) -> Sequence[Message]:
        """R1: start joiners, built from the table of now and connected both ways; what there is to say of it."""
        ...

    def remove_all_but(self, members: Sequence[int]) -> None:
        """R8: nobody else is needed any more."""
        ...


class Coordinator:
    """Coordinates ``members``, the first workers of a run of ``plan``, by the clock of the runtime.

    ``slots_per_move``: how many slots each move takes; None: as many as can be moved within the target pause.
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
        """Before anything else: where the parts that can move are read, (source, part) -> worker."""
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
        """The workers that are there."""
        return self._machine.members

    @property
    def table(self) -> tuple[int, ...]:
        """Slot -> worker."""
        return self._machine.table

    @property
    def version(self) -> int:
        """Of the table."""
        return self._machine.version

    @property
    def target(self) -> tuple[int, ...]:
        """The workers that the last request leads to."""
        return self._machine.target

    @property
    def phase(self) -> str:
        """What the coordinator is about: "steady", "joining", "moving" or "leaving"."""
        return str(self._machine.phase)

    @property
    def is_steady(self) -> bool:
        """Whether nothing moves, and nobody comes or goes."""
        return self._machine.phase is coordinator.CoordinatorPhase.STEADY

    @property
    def readers(self) -> Mapping[tuple[str, str], int]:
        """(source, part) -> the worker that reads it, of the parts that can move."""
        return self._machine.parts

    @property
    def is_between_moves(self) -> bool:
        """Whether a barrier passes, and the moves of a rescale go on behind it."""
        return self._machine.phase is coordinator.CoordinatorPhase.BARRIER and self._machine.moves_follow

    @property
    def moving(self) -> Moving | None:
        """How far the rescale under way has come; None while nothing moves."""
        return self._rescales.moving

    def waiting_for(self) -> str:
        """R7: what has to be reported before a rescale goes on, for people."""
        return self._machine.waiting_for()

    def resized(self, size: int) -> tuple[int, ...]:
        """The members of a job of ``size`` workers: the youngest leave first."""
        members = self.target[:size]
        return (*members, *self.new_workers(size - len(members)))

    def new_workers(self, count: int) -> range:
        """Numbers for ``count`` workers: none that was a member, so that nothing old is taken for something new."""
        new = range(self._next_worker, self._next_worker + count)
        self._next_worker += count
        return new

    def check_leavers(self, members: Sequence[int], fixed: Mapping[int, str]) -> None:
        """`PlanError` if one who reads a source that cannot be read on elsewhere (worker -> its name) would leave."""
        for worker, source in fixed.items():
            if source and worker not in members:
                raise PlanError(
                    f"source {source!r} reads on worker {worker} and cannot go on elsewhere, for it has no "
                    f"positions: keep at least {worker + 1} workers, or make it a PartitionedSource"
                )

    def request(self, members: Sequence[int], done: Done) -> list[Message]:
        """Go to just these ``members``; ``done`` is told when that has ended, or was overtaken (R9)."""
        members = tuple(members)
        self._rescales.asked(members, self._clock.monotonic_s(), done)
        return self.handle(events.RescaleRequested(members))

    def handle(self, event: events.Event) -> list[Message]:
        """Let the machine decide, and do what it decides: the orders and news that come of it."""
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
        """From now on make snapshots of what runs. ``count``: what it has done so far."""
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
            begun_from=None if begun.resumption is None else begun.resumption.manifest,
        )

    def ask_snapshot(self, done: SnapshotDone, *, copy_to: str | None = None) -> None:
        """Have a snapshot made, and maybe copied elsewhere. `SnapshotError` if the job has none."""
        if self.snapshotting is None:
            raise SnapshotError(
                f"job {self._plan.job!r} runs without snapshots: start it with snapshots=mp.Snapshots(uri)"
            )
        self.snapshotting.ask(done, copy_to=copy_to)

    def close(self) -> None:
        """The run has ended, one way or another."""
        if self.snapshotting is not None:
            self.snapshotting.close()

    @property
    def snapshots(self) -> SnapshotStatus | None:
        """How it stands with the snapshots; None for a job without."""
        return None if self.snapshotting is None else self.snapshotting.status

    @property
    def kept(self) -> RunResult | None:
        """What the job has come to, once its last snapshot stands, behind which nothing comes."""
        return None if self.snapshotting is None else self.snapshotting.result

    @property
    def is_saving(self) -> bool:
        """Whether something is being written in the background."""
        return self.snapshotting is not None and self.snapshotting.background.pending > 0

    def due_s(self) -> list[float]:
        """When something is to be done of itself, on the clock's monotonic time."""
        due_s = None if self.snapshotting is None else self.snapshotting.due_s()
        return [] if due_s is None else [due_s]

    def turn(self) -> list[Message]:
        """Between two steps: have the barrier of a snapshot go if it is time, and take in what has been saved."""
        if self.snapshotting is None:
            return []
        return [message for wanted in self.snapshotting.turn() for message in self.handle(wanted)]

    def got_on(self) -> None:
        """Somebody has got on with something."""
        self._got_on_s = self._clock.monotonic_s()

    def check_deadline(self) -> None:
        """R7: a rescale or a barrier with which nobody gets on ends the run, which goes back to the last snapshot;
        without snapshots there is no way back (S6).
        """
        if self.is_steady or self._clock.monotonic_s() - self._got_on_s <= MOVE_DEADLINE_S:
            return
        what = "a snapshot" if self._machine.phase is coordinator.CoordinatorPhase.BARRIER else "a rescale"
        remedy = "Start the job afresh." if self.snapshotting is None else "It goes on from its last snapshot."
        raise DeadlineError(
            f"job {self._plan.job!r}: nothing has happened for {MOVE_DEADLINE_S:g} s in the middle of {what}, which "
            f"waits for {self.waiting_for()}. {remedy}",
            wait=self.waiting_for(),
            deadline_s=MOVE_DEADLINE_S,
        )


class WorkerGroup(ABC):
    """A crew that runs ``plan``, as its ``coordination`` has it."""

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
        """What each step has done so far, on all workers together."""

    @property
    def members(self) -> tuple[int, ...]:
        """The workers that are there."""
        return self.coordination.members

    @property
    def target(self) -> tuple[int, ...]:
        """The workers that there will be."""
        return self.coordination.target

    @property
    def phase(self) -> str:
        """What the coordinator is about: "steady", "joining", "moving", "leaving" or "barrier"."""
        return self.coordination.phase

    @property
    def moving(self) -> Moving | None:
        """How far the rescale under way has come; None while nothing moves."""
        return self.coordination.moving

    @property
    def snapshots(self) -> SnapshotStatus | None:
        """How it stands with the snapshots; None for a job without."""
        return self.coordination.snapshots

    def snapshot(self, done: SnapshotDone) -> None:
        """Have a snapshot made; ``done`` is told when it stands and sinks have committed it. `SnapshotError` if the job
        has none.
        """
        self.coordination.ask_snapshot(done)

    def savepoint(self, uri: str, done: SnapshotDone) -> None:
        """The same, and have it copied to ``uri``."""
        self.coordination.ask_snapshot(done, copy_to=uri)

    @property
    def kept(self) -> RunResult | None:
        """What the job has come to, once its last snapshot stands."""
        return self.coordination.kept

    def suspend(self) -> None:
        """Have every worker stop, once nothing moves any more (R7): behind all that is on its way, or, if the job has
        snapshots, behind the barrier of one more.
        """
        snapshotting = self.coordination.snapshotting
        if snapshotting is None:
            self._suspending = True
        else:
            snapshotting.ask_last()

    @property
    def suspended(self) -> bool:
        """Whether all have stopped, and the snapshot behind which they were to is committed."""
        snapshotting = self.coordination.snapshotting
        return self.all_suspended if snapshotting is None else snapshotting.has_stopped

    @property
    def may_finish(self) -> bool:
        """Whether nothing moves, and no last barrier is on its way: where it has passed the job is stopped."""
        snapshotting = self.coordination.snapshotting
        return self.coordination.is_steady and not (snapshotting is not None and snapshotting.is_stopping)

    def _result(self) -> RunResult:
        made = 0 if self.snapshots is None else self.snapshots.made
        return RunResult(self._plan.job, self.counts(), self._clock.monotonic_s() - self._started_s, snapshots=made)
