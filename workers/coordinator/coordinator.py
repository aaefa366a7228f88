"""The coordinator of a run: one shell for local, simulated and Ray workers.

`step` takes the messages of the workers, feeds the machines with them, and executes their decisions in their order. A
`WorkerGroup` starts and reaches the workers and decides nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, TypeVar

from malstrom_py.builder.plan import Plan
from malstrom_py.clock import Clock
from malstrom_py.errors import DeadlineError, InternalError, PlanError, SnapshotError
from malstrom_py.operators.read_source import RestoredPart
from malstrom_py.rescale.load import Weights
from malstrom_py.rescale.moves.move_sizing import Pacing
from malstrom_py.rescale.moves.placement import first_table
from malstrom_py.rescale.moves.pre_copy import AHEAD_LEAST
from malstrom_py.rescale.moves.protocol import Report
from malstrom_py.sources.base import Part
from malstrom_py.workers.coordinator import machine as events
from malstrom_py.workers.coordinator.commanded_workers import SnapshotDone
from malstrom_py.workers.coordinator.job_machine import (
    ENDED,
    ENDS,
    SUSPENDS,
    Event,
    JobMachine,
    PlannedStop,
    topology_of,
)
from malstrom_py.workers.coordinator.machine import CoordinatorMachine, CoordinatorPhase, RescaleCalledOff
from malstrom_py.workers.coordinator.metering import Metering
from malstrom_py.workers.coordinator.recovery import RunStart, SnapshotUse, begin, listed_parts
from malstrom_py.workers.coordinator.rescale_requests import Done, RescaleRequests
from malstrom_py.workers.coordinator.sink_commits import SinkCommits
from malstrom_py.workers.coordinator.snapshot_coordinator import SnapshotCoordinator, set_values
from malstrom_py.workers.coordinator.source_calls import SourceCalls
from malstrom_py.workers.coordinator.worker_group import (
    TURN_S,
    Arrived,
    NothingToDo,
    RunJournal,
    StartGroup,
    WorkerCalls,
    WorkerGroup,
)
from malstrom_py.workers.engine.background import Background, ThreadBackground
from malstrom_py.workers.engine.graph_builder import build_sinks, deal_parts, movable_parts
from malstrom_py.workers.engine.snapshot_capture import CapturedState
from malstrom_py.workers.reports.error_transfer import failure_of
from malstrom_py.workers.reports.event_log import EventLog
from malstrom_py.workers.reports.figures import WorkerFigures
from malstrom_py.workers.reports.job_events import JobEvents
from malstrom_py.workers.reports.job_status import Moving, SnapshotStatus, check_size
from malstrom_py.workers.reports.result import RunResult, StepCounts, merged_counts
from malstrom_py.workers.reports.taps import SeenOfStep, TapStep
from malstrom_py.workers.transport.messages import (
    Connected,
    Content,
    Drain,
    Finished,
    Notify,
    OpenSources,
    OrderFailed,
    PartsEnded,
    Saved,
    Start,
    Suspend,
    WorkerEvent,
)

MOVE_DEADLINE_S: Final = 120.0
"""R7: how long a rescale or a barrier may take without progress of any worker."""


G = TypeVar("G", bound=WorkerGroup)


@dataclass(slots=True)
class _FinalReports:
    """What workers have reported at their end: ``counts`` of each that is still there; ``left``: of those that have
    left, in sum, because a job that is rescaled often has had many workers; ``positions`` of the parts that they read.
    """

    counts: dict[int, Mapping[str, StepCounts]] = field(default_factory=dict)
    left: list[Mapping[str, StepCounts]] = field(default_factory=list)
    positions: dict[str, dict[Part, Any]] = field(default_factory=dict)

    def add(self, end: Finished) -> None:
        self.counts[end.worker] = end.counts
        for step, positions in end.positions.items():
            self.positions.setdefault(step, {}).update(positions)

    def leave(self, workers: Iterable[int]) -> None:
        self.left = [merged_counts([*self.left, *(self.counts.pop(worker) for worker in workers)])]


class Coordinator(Generic[G]):
    """The coordinator of a run of ``plan`` that starts with ``workers`` workers of ``group``.

    ``snapshot_use``: how the job keeps snapshots, if any; ``background``: makes what writes them; ``calling``: makes
    what lists sources again and lets them acknowledge. ``commits``: of the sinks.
    ``journal``: for the next coordinator. ``slots_per_move``: None: as many as can be moved within the target pause.
    ``ahead_least``: of a job with snapshots: with so many bytes, state is sent ahead of its move; None: never (R12).
    ``log``: of the events of the job.
    """

    def __init__(
        self,
        plan: Plan,
        group: G,
        *,
        workers: int,
        clock: Clock,
        snapshot_use: SnapshotUse | None = None,
        commits: SinkCommits | None = None,
        journal: RunJournal | None = None,
        background: Callable[[], Background] | None = None,
        calling: Callable[[], Background] | None = None,
        slots_per_move: int | None = None,
        ahead_least: int | None = AHEAD_LEAST,
        log: EventLog | None = None,
    ) -> None:
        self.group = group
        self._worker_calls = WorkerCalls(group, clock)
        self.events = JobEvents(plan, log or EventLog(), lambda event: self._send_all(group.workers, Notify(event)))
        self.commit = commits or SinkCommits(plan.job, build_sinks(plan, clock), clock.now_s())
        self.metering = Metering(plan, clock, self.events.emit)
        self.tapped: Callable[[SeenOfStep], None] = lambda _: None  # what workers have seen of a step
        self.snapshotting: SnapshotCoordinator | None = None
        self._plan = plan
        self._clock = clock
        self.snapshot_use = snapshot_use
        self._journal = journal or RunJournal()
        self._background = background or (lambda: ThreadBackground(group.wake))
        self._calling = calling or (lambda: ThreadBackground(group.wake, "malstrom-sources"))
        self._source_calls = SourceCalls(plan.job, [], clock, {}, background=self._calling)
        self._new_moves = partial(
            CoordinatorMachine,
            topology_of(plan),
            pacing=Pacing.of(plan.slots) if slots_per_move is None else Pacing.fixed(slots_per_move),
            ahead_least=None if snapshot_use is None else ahead_least,  # without snapshots no change is tracked
        )
        self._next_worker = workers
        self._started_s = self._got_on_s = clock.monotonic_s()
        self._run_start: RunStart | None = None
        self._new_group = partial(StartGroup, parameters={})
        self._saved: dict[int, str] = {}
        self._final = _FinalReports()
        self._deal(tuple(range(workers)), {})

    def _deal(self, members: tuple[int, ...], parts: Mapping[tuple[str, str], int]) -> None:
        """Set the first members, and the readers of the movable parts: (source, part) -> worker."""
        moves = self._new_moves(members=members, table=first_table(self._plan.slots, members), parts=parts)
        self._machine = JobMachine(moves)
        self._rescales = RescaleRequests(moves, self._plan.job, self.events.publish)

    # The beginning.

    def begin(self) -> RunStart | None:
        """Claim the job, choose the snapshot to resume from, and recover the sinks. Call this first."""
        if self.snapshot_use is None:
            self.commit.recover()
        else:
            self._run_start = begin(self._plan, self.snapshot_use, self.commit, self._clock, len(self.members))
            resumption = self._run_start.resumption
            self._journal.has_begun(None if resumption is None else resumption.manifest.id)
            if self._run_start.finished is not None:
                return self._run_start
        self.group.begin(self._run_start)
        return self._run_start

    def open(self, pins: Mapping[str, Any] | None = None) -> None:
        """Assign the parts of the sources, start the workers, restore their state, and open the sources."""
        members = self.members
        # Parts are listed before the workers start: all get what a source has learnt by that.
        resumption = None if self._run_start is None else self._run_start.resumption
        known = None if resumption is None else resumption.known
        dealt = deal_parts(self._plan, members, self._clock, known)
        self._deal(members, movable_parts(dealt.parts, dealt.movable))
        job, parts = self._plan.job, listed_parts(dealt.parts)
        self._source_calls = SourceCalls(job, dealt.sources, self._clock, parts, background=self._calling)
        kept = frozenset[str]() if resumption is None else resumption.stateful
        beginning = tuple(one.name for one in self._plan.steps if one.initial is not None and one.name not in kept)
        part_states = {} if resumption is None else resumption.restored_parts(dealt)
        restored = None if resumption is None else resumption.for_workers(self._plan, dealt)
        self._new_group = partial(StartGroup, parameters=set_values(self._plan, resumption))
        self.group.start(self._new_group(members, members, self.table, 0, restored=restored, beginning=beginning))
        self._worker_calls.await_connected(len(members))
        self._keep_snapshots(pins or {})
        self._worker_calls.open_sources(
            {worker: OpenSources(parts, _of_parts(parts, part_states)) for worker, parts in dealt.parts.items()}
        )
        self.events.opened(dealt.parts, self._source_calls.lists_again)
        self._send_all(members, Start())

    def _keep_snapshots(self, pins: Mapping[str, Any]) -> None:
        if self.snapshot_use is None or self._run_start is None:
            return
        self.snapshotting = SnapshotCoordinator(
            self._machine,
            self.handle,
            self._plan,
            self.snapshot_use.snapshots,
            self._run_start,
            background=self._background(),
            commits=self.commit,
            clock=self._clock,
            pins=pins,
            count=self.result,
            committed=self._source_calls.committed,
        )

    def committed_at_end(self) -> None:
        """Acknowledge what a job without snapshots has read and committed, unless another program commits it."""
        if not self.commit.to_deliver():
            self._source_calls.committed(self._final.positions)

    # The run, step by step.

    def step(self, *, until_s: float | None = None) -> None:
        """Take what has arrived, and what follows. Wait if there is nothing, at the latest until ``until_s``."""
        busy = self.turn() or (self._source_calls.any and self.find_parts())
        came = self.group.receive()
        while came or self._worker_calls.kept:
            busy = True
            self.take(came)
            came = self.group.arrived()
        if busy or self.group.at_work:
            self.got_on()
        else:
            self.check_deadline()
        if not (busy or self.group.busy or (self.finished and not self.is_saving) or self.suspended):
            self._wait(until_s)

    def turn(self) -> bool:
        """Inject the barrier of a snapshot that is due, handle finished background tasks, and suspend workers.

        Returns whether there were any orders. A slow commit blocks this thread, and counts as progress.
        """
        if self.snapshotting is None:
            if self._machine.stop is not PlannedStop.SUSPEND_WANTED or not self.is_steady:
                return False
            self._machine.stop_to("begin")
            self._send_all(self.members, Suspend())
            return True
        began_s = self._clock.monotonic_s()
        has_begun = self.snapshotting.turn()
        if self._clock.monotonic_s() - began_s > TURN_S:
            self.got_on()
        if (last := self.snapshotting.status.last) is not None:
            self._journal.completed(last)
        self.events.snapshots(self.snapshotting.status)
        return has_begun

    def find_parts(self) -> bool:
        """R13: have sources listed again that are due, and read the new parts. Return whether there were any."""
        found = self._source_calls.turn(may_list=self.may_find_parts)
        for new in found:
            self.events.found(new.source, [Part(part) for part, _ in new.parts])
            self.handle(new)
        return bool(found)

    def take(self, came: Iterable[Arrived]) -> None:
        """Handle messages of workers, first those that have arrived during calls."""
        for content in [*self._worker_calls.take_kept(), *came]:
            match content:
                case _ if isinstance(content, Report):
                    self.handle(events.ReportReceived(content))
                case Connected() | RescaleCalledOff():
                    self._joined(content)
                case Saved():
                    self._was_saved(content)
                case CapturedState() if self.snapshotting is not None:
                    self.snapshotting.save(content)
                case OrderFailed():
                    raise failure_of(content.worker, content.error)
                case WorkerEvent():
                    self.events.noticed(content.event)
                case PartsEnded():
                    self.events.parts_ended(content.source, content.parts)
                case _ if isinstance(content, SeenOfStep):
                    self.tapped(content)

    def _joined(self, event: Connected | RescaleCalledOff) -> None:
        if isinstance(event, Connected):
            self.events.joined(event.worker)
            if self._machine.stop is PlannedStop.DRAINING:
                self.group.send(event.worker, Drain())
        self.handle(event)

    def _was_saved(self, saved: Saved) -> None:
        """Record the saved state of a worker. A leaving worker reports this twice: its stream may be lost."""
        if self._saved.get(saved.worker) != saved.snapshot and self.snapshotting is not None:
            self._saved[saved.worker] = saved.snapshot
            self.snapshotting.saved(saved)

    def handle(self, event: Event) -> None:
        """Pass ``event`` to the machine and execute its decisions."""
        self.got_on()
        for effect in self._machine.handle(event):
            match effect:
                case events.StartWorkers():
                    self.group.start(self._new_group(effect.workers, effect.members, effect.table, effect.version))
                case events.Send():
                    self.group.send(effect.worker, effect.order)
                case events.Ended():
                    self._remove_all_but(effect.members)
                    if effect.error is not None:  # a later run begins with the workers that there are
                        self._journal.wanted(len(self.target))
                    self._rescales.ended(self._clock.monotonic_s(), effect.error)
                case _ if self.snapshotting is not None:
                    self.snapshotting.execute(effect)

    def _remove_all_but(self, members: Sequence[int]) -> None:
        """Release the workers that have sent Bye (R8). Their pre-commits wait for the next commit."""
        staying = set(members)
        leavers = [worker for worker in self.group.workers if worker not in staying]
        if not leavers:
            return
        self._worker_calls.part(members, leavers)
        self._finish(leavers)
        self.group.remove(leavers)
        self.events.left(leavers)
        self._final.leave(leavers)

    def _finish(self, workers: Sequence[int]) -> None:
        """Finish ``workers`` and keep what they have pre-committed, then raise the first error."""
        self._worker_calls.finish(workers, self.commit.contexts, self._was_finished)

    def _was_finished(self, end: Finished) -> None:
        """Keep the counts, pre-commits and positions of a worker that ends."""
        self._final.add(end)
        if end.saved is not None:
            self._was_saved(end.saved)
        self.commit.add(end.payloads)

    def _send_all(self, workers: Sequence[int], order: Content) -> None:
        for worker in workers:
            self.group.send(worker, order)

    def _wait(self, until_s: float | None) -> None:
        """Wait until a worker has work or something is due. A job that ends waits for no interval."""
        due_s = None if self.snapshotting is None else self.snapshotting.due_s()
        list_s = self._source_calls.due_s if self.may_find_parts else None
        now_s = self._clock.monotonic_s()
        # Overdue work waits for a worker, not for time.
        waits_s = [due - now_s for due in (due_s, list_s, until_s) if due is not None and due > now_s]
        try:
            self.group.wait(min(waits_s, default=None), pending=self.is_saving or self._source_calls.pending)
        except NothingToDo:
            if self.is_steady and any(due is not None and due <= now_s for due in (due_s, list_s)):
                return  # it has become due since this turn looked, and the next one begins it
            waits = "" if self.is_steady else f"; its rescale waits for {self.waiting_for()}"
            raise InternalError(f"no worker has anything to do, yet the job has not finished{waits}") from None

    def got_on(self) -> None:
        """Record progress of a worker."""
        self._got_on_s = self._clock.monotonic_s()

    def check_deadline(self) -> None:
        """R7: raise `DeadlineError` if a rescale or a barrier makes no progress.

        The error ends the run, which restarts from the last snapshot if there is one (S6).
        """
        if self.is_steady or self._clock.monotonic_s() - self._got_on_s <= MOVE_DEADLINE_S:
            return
        what = "a snapshot" if self._machine.moves.phase is CoordinatorPhase.BARRIER else "a rescale"
        remedy = "Start the job again." if self.snapshotting is None else "The job resumes from its last snapshot."
        raise DeadlineError(
            f"job {self._plan.job!r}: {what} has made no progress for {MOVE_DEADLINE_S:g} s. It waits for "
            f"{self.waiting_for()}. {remedy}",
            wait=self.waiting_for(),
            deadline_s=MOVE_DEADLINE_S,
        )

    # Commands.

    def rescale(self, size: int | None, done: Done) -> None:
        """Rescale to ``size`` workers; ``done`` is called when the rescale has ended or was superseded (R9). None: move
        slots by load, between the workers that are there once the earlier requests are granted (R10).

        The youngest workers leave first. `PlanError` for an invalid size, if there is no room, or if a leaving worker
        has to stay.
        """
        if size is None:
            self.request(self._rescales.next_members, done, evens_out=True)
            return
        self.check_rescale(size)
        kept = self.target[:size]
        members = (*kept, *self.new_workers(size - len(kept)))
        self._journal.wanted(size)
        self.request(members, done)

    def check_rescale(self, size: int, *, now: bool = False) -> None:
        """Raise `PlanError` if the job cannot be rescaled to ``size`` workers; ``now``: without more nodes."""
        check_size(size)
        self.group.check_room(size, now=now)
        self.check_leavers(self.target[:size])

    def request(self, members: Sequence[int], done: Done, *, evens_out: bool = False) -> None:
        """Rescale to exactly these ``members``, present or new. ``evens_out``: slots move also if they are present."""
        self.check_leavers(members)
        members = tuple(members)
        self._rescales.asked(members, self._clock.monotonic_s(), done)
        self.handle(events.RescaleRequested(members, self.weigh(), evens_out))

    def weigh(self) -> Weights | None:
        """R10: return the weights of the slots, by which a rescale places them; None if they are not known."""
        return self.metering.weights

    def sample(self) -> None:
        """Take a sample of what the workers have done, about once a second."""
        figures = self.group.figures()
        self.metering.sample(counts := self.counts(), self.group.counts(), figures)
        is_reading = self.is_steady and self._machine.stop is PlannedStop.NONE
        self.events.read(counts, self._clock.monotonic_s(), is_reading=is_reading)
        self.measured(figures)

    def measured(self, figures: Mapping[int, WorkerFigures]) -> None:
        """Take the loads of slots and keys from the ``figures`` of a sample."""
        self.metering.weigh(figures, len(self.members))

    def new_workers(self, count: int) -> range:
        """Return ``count`` unused worker numbers, so that no old message is taken for a new worker's."""
        new = range(self._next_worker, self._next_worker + count)
        self._next_worker += count
        return new

    def check_leavers(self, members: Sequence[int]) -> None:
        """Raise `PlanError` if a worker would leave whose source can be read there only."""
        for worker, source in self.group.fixed().items():
            if worker not in members:
                raise PlanError(
                    f"source {source!r} reads on worker {worker} and cannot move, because it has no offsets: keep at "
                    f"least {worker + 1} workers, or make it a PartitionedSource"
                )

    def snapshot(self, done: SnapshotDone, *, copy_to: str | None = None) -> None:
        """Request a snapshot, and with ``copy_to`` a copy of it there; ``done`` is called when it is committed.

        Raises: SnapshotError: the job runs without ``snapshots=``.
        """
        if self.snapshotting is None:
            raise SnapshotError(
                f"job {self._plan.job!r} runs without snapshots: start it with snapshots=mp.Snapshots(uri)"
            )
        self.snapshotting.ask(done, copy_to=copy_to)

    def tap(self, order: TapStep) -> None:
        """Let all workers sample the records of a step, for the lease of ``order``."""
        self._send_all(self.group.workers, order)

    def drain(self) -> None:
        """Stop the sources, so that the job finishes."""
        self._machine.stop_to("drain")
        self.events.stopping()
        self._send_all(self.group.workers, Drain())

    def suspend(self) -> None:
        """Stop every worker when nothing moves (R7): after all data in flight, or after a last snapshot's barrier."""
        if self._machine.stop not in SUSPENDS:
            self.events.stopping()
            self._machine.stop_to("suspend")

    # The end.

    @property
    def suspended(self) -> bool:
        """Whether all workers have stopped and the last snapshot, if any, is committed."""
        if self.snapshotting is None:
            return self.group.suspended(self.members, self.version)
        return self._machine.stop is PlannedStop.SUSPENDED

    @property
    def finished(self) -> bool:
        """Whether every worker has finished, nothing moves, and no last barrier is in flight, which stops the job."""
        stops = self.snapshotting is not None and self._machine.stop in SUSPENDS
        return self.is_steady and not stops and self.group.finished(self.members, self.version)

    def finish(self) -> None:
        """Make the last snapshot, with the job's result: all input is read and written."""
        assert self.snapshotting is not None
        self._machine.stop_to("finish")

    def pre_commit(self) -> None:
        """Finish all workers: pre-commit, and close all but the transactional writers."""
        self._finish(self.members)
        self._machine.stop_to("finish")

    def close(self) -> None:
        """Close every worker, then raise the first error."""
        self.metering.close()
        self._source_calls.close(wait=self._machine.stop in ENDED)
        if self.snapshotting is not None:
            self.snapshotting.close()
        self.group.close(failed=self._machine.stop not in ENDS)

    # What is known.

    @property
    def members(self) -> tuple[int, ...]:
        """The current workers."""
        return self._machine.moves.members

    @property
    def table(self) -> tuple[int, ...]:
        """The routing table: slot -> worker."""
        return self._machine.moves.table

    @property
    def version(self) -> int:
        """The version of the table."""
        return self._machine.moves.version

    @property
    def target(self) -> tuple[int, ...]:
        """The workers after the current rescale."""
        return self._machine.moves.target

    @property
    def phase(self) -> str:
        """The phase: "steady", "joining", "copying", "moving", "leaving" or "barrier"."""
        return str(self._machine.moves.phase)

    @property
    def is_steady(self) -> bool:
        """Whether no rescale and no barrier is in progress."""
        return self._machine.moves.phase is CoordinatorPhase.STEADY

    @property
    def is_between_moves(self) -> bool:
        """Whether a barrier passes between two moves of a rescale."""
        return self._machine.moves.phase is CoordinatorPhase.BARRIER and self._machine.moves.moves_follow

    @property
    def readers(self) -> Mapping[tuple[str, str], int]:
        """The readers of the movable parts: (source, part) -> worker."""
        return self._machine.moves.parts

    @property
    def moving(self) -> Moving | None:
        """The progress of the current rescale; None if nothing moves."""
        return self._rescales.moving

    def waiting_for(self) -> str:
        """R7: return a description of the missing reports."""
        return self._machine.moves.waiting_for()

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

    @property
    def may_find_parts(self) -> bool:
        """R13: whether new parts are looked for: not once a stop is planned."""
        return self._machine.stop is PlannedStop.NONE

    @property
    def wake(self) -> threading.Event:
        """An event that ends the wait of `step`."""
        return self.group.wake

    def counts(self) -> dict[str, StepCounts]:
        """Return the last known counts of each step, over all workers, including those that have left."""
        final = self._final
        live = self.group.counts() if len(final.counts) < len(self.group.workers) else {}
        known = [counts for counts in {**live, **final.counts}.values() if counts]
        return merged_counts(known, final.left) if known else {}

    def result(self) -> RunResult:
        """Return the counts so far."""
        made = 0 if self.snapshots is None else self.snapshots.made
        return RunResult(self._plan.job, self.counts(), self._clock.monotonic_s() - self._started_s, snapshots=made)


def _of_parts(
    parts: Mapping[str, Sequence[Part]], restored: Mapping[str, Mapping[Part, RestoredPart]]
) -> dict[str, dict[Part, RestoredPart]]:
    """Return the positions of those of ``parts`` that have one."""
    return {
        step: {part: restored[step][part] for part in some if part in restored.get(step, {})}
        for step, some in parts.items()
    }
