"""The workers of a job on Ray as the run in the coordinator drives them: start, connect, command, release.

Rule: batches, orders and reports travel over the streams between the actors; everything else is an actor call. Each run
has streams with its own incarnation number, so messages of an earlier run are dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from malstrom_py.builder.plan import Plan
from malstrom_py.clock import Clock
from malstrom_py.errors import InternalError, MalstromError, PeerError
from malstrom_py.operators.read_source import RestoredPart
from malstrom_py.sources.base import Part
from malstrom_py.workers.coordinator import machine as events
from malstrom_py.workers.coordinator.coordinator import CoordinatedWorkers, Coordinator
from malstrom_py.workers.coordinator.recovery import RestorePoint, RunStart, begin, beginning_steps, listed
from malstrom_py.workers.coordinator.rescale_requests import Done
from malstrom_py.workers.coordinator.sink_commits import SinkCommits
from malstrom_py.workers.engine.background import ThreadBackground
from malstrom_py.workers.engine.graph_builder import Membership, PartAssignment, build_sinks, deal_parts, movable_parts
from malstrom_py.workers.engine.worker_loop import Wake
from malstrom_py.workers.ray.cluster import check_room
from malstrom_py.workers.ray.coordinator_journal import CoordinatorJournal
from malstrom_py.workers.ray.driver_commits import DriverTasks, commit_in_driver
from malstrom_py.workers.ray.job_config import JobSetup, pack_plan
from malstrom_py.workers.ray.node_watch import NodeWatch
from malstrom_py.workers.ray.worker_handle import WorkerHandle, await_answers
from malstrom_py.workers.ray.worker_registry import WorkerRegistry
from malstrom_py.workers.ray.worker_server import WorkerOutcome
from malstrom_py.workers.ray.worker_startup import WorkerStartup, parts_of
from malstrom_py.workers.reports.job_status import check_size
from malstrom_py.workers.reports.result import StepCounts
from malstrom_py.workers.transport.base import Transport
from malstrom_py.workers.transport.messages import (
    COORDINATOR,
    Connected,
    Content,
    Message,
    Saved,
    WorkerCounts,
    WorkerStatus,
)

TURN_S: Final = 0.5
"""The longest wait of the coordinator between two checks; any event ends the wait."""

FINISH_S: Final = 600.0
"""The timeout of pre-commits."""

BUILD_S: Final = 600.0
"""The timeout for opening sinks and restoring state."""

CLOSE_S: Final = 60.0
"""How long finished workers may take to close before their processes are killed."""

GIVE_UP_S: Final = 3.0
"""The same after a failure, which every caller sees within ten seconds."""

GO_BACK_S: Final = 1.0
"""The same before a restart from the last snapshot, which begins within ten seconds."""

_LOG: Final = logging.getLogger("malstrom_py.coordinator")


class RayWorkers(CoordinatedWorkers):
    """The workers of ``plan``, configured by ``setup``. ``tasks``: for the driver; ``journal``: for the next
    coordinator; ``node_watch``: knows the silent nodes.
    """

    def __init__(
        self,
        setup: JobSetup,
        plan: Plan,
        clock: Clock,
        tasks: DriverTasks,
        journal: CoordinatorJournal,
        node_watch: NodeWatch,
    ) -> None:
        super().__init__(plan, clock)
        self._node_watch = node_watch
        self._setup = setup
        self._journal = journal
        self.transport: Transport | None = None
        self.wake = Wake()
        sinks = build_sinks(plan, clock)
        if setup.keeping is not None:
            sinks = commit_in_driver(sinks, tasks)
        self.commit = SinkCommits(plan.job, sinks, clock.now_s(), deliver=setup.keeping is None)
        self.coordination = Coordinator(plan, self, members=range(setup.workers), clock=clock)
        self._begun: RunStart | None = None
        self._registry = WorkerRegistry(plan.job, clock, node_watch)
        self._startup: WorkerStartup | None = None
        self._joining: Iterator[None] | None = None
        self._saved: dict[int, str] = {}
        self._fixed: dict[int, str] = {}
        self._draining = False
        self._is_ending = False

    def begin(self) -> RunStart | None:
        """Claim the job, choose the snapshot to resume from, and recover the sinks. Call this first."""
        if self._setup.keeping is None:
            self.commit.recover()
        else:
            self._begun = begin(self._plan, self._setup.keeping, self.commit, self._clock)
            resumption = self._begun.resumption
            self._journal.has_begun(None if resumption is None else resumption.manifest.id)
            if self._begun.finished is not None:
                return self._begun
            self._setup = replace(self._setup, incarnation=self._begun.incarnation)
        self.wake.transport = self.transport = self._setup.wiring.end(COORDINATOR, incarnation=self._setup.incarnation)
        return self._begun

    def open(self, pins: Mapping[str, Any]) -> None:
        """Assign the parts, start the first workers, open their sinks, connect all workers, and open the sources."""
        members = self.coordination.members
        # Parts are listed before the plan is packed: all workers get what a source has cached.
        resumption = None if self._begun is None else self._begun.resumption
        known = None if resumption is None else resumption.known
        dealt = deal_parts(self._plan, members, self._clock, known)
        self.coordination.deal(movable_parts(dealt.parts, dealt.movable))
        beginning = beginning_steps(self._plan, resumption)
        resumption, begun = self._resumed(dealt)
        startup = self._startup = WorkerStartup(
            self._setup,
            self._registry,
            pack_plan(self._plan),
            self._streams,
            self._clock,
            self.wake.set,
            self._node_watch,
        )
        startup.start_actors(members)
        for _ in startup.wait_until_up():
            self._streams.receive(TURN_S)
        handles = startup.joiners
        self._registry.handles, startup.joiners = {handle.worker: handle for handle in handles}, []
        table, incarnation = self.coordination.table, self._setup.incarnation
        how = ((), False, resumption, beginning)
        built = [
            (handle, handle.ask("build", Membership(handle.worker, members, table, 0, incarnation), *how))
            for handle in handles
        ]
        answer = self._registry.answers
        answer(built, "open its sinks and take over its state", timeout_s=BUILD_S)
        answer([(handle, handle.ask("reach", startup.addresses_but(handle))) for handle in handles], "reach the others")
        for handle in handles:
            self._streams.connect(handle.worker, handle.address)
        opened = [
            (
                handle,
                handle.ask("open_sources", dealt.parts[handle.worker], parts_of(dealt.parts[handle.worker], begun)),
            )
            for handle in handles
        ]
        self._fixed = dict(zip(members, answer(opened, "open its sources"), strict=True))
        self._keep_snapshots(pins)
        self._registry.ask_all(handles, "start")

    def step(self, *, until_s: float | None = None) -> None:
        """Handle the workers' reports and what follows from them; wait a while if there are none."""
        self.wake.clear()
        self._registry.check_ended()
        if self._setup.wiring.streams == "ray":  # calls fail only once Ray calls the node dead
            self._registry.check_nodes(self._registry.handles.values())
        self._continue_joining()
        self._turn()
        if self._suspending and self.coordination.is_steady:
            self._suspending = False
            self._registry.ask_all(list(self._registry.handles.values()), "suspend")
        try:
            came = self._streams.receive(self._wait_s())
        except PeerError as error:
            raise self._registry.root_of(error) from None
        for content in came:
            self._take(content)
        self.coordination.check_deadline()

    def rescale(self, size: int, done: Done) -> None:
        """Rescale to ``size`` workers; ``done`` is called when the rescale has ended or was superseded (R9).

        The youngest workers leave first. `PlanError` if the cluster has no room, or if a leaving worker has to stay.
        """
        check_size(size)
        if not self._setup.autoscaling:
            check_room(size, self._setup.options.needs, but=self._node_watch.silent)
        members = self.coordination.resized(size)
        self.coordination.check_leavers(members, self._fixed)
        self._journal.wanted(size)
        self._send(self.coordination.request(members, done))

    def finish(self) -> None:
        """Make the last snapshot, with the job's result: all input is read and written."""
        assert self.coordination.snapshotting is not None
        self.coordination.snapshotting.finish()
        self._is_ending = True

    def drain(self) -> None:
        """Stop the sources, so that the job finishes."""
        self._draining = True
        self._registry.ask_all(list(self._registry.handles.values()), "drain")

    @property
    def all_suspended(self) -> bool:
        """Whether every worker is suspended."""
        return self._all_stand(lambda standing: standing.suspended)

    @property
    def finished(self) -> bool:
        """Whether every worker has finished, with no rescale or snapshot in progress."""
        return self.may_finish and self._all_stand(lambda standing: standing.finished)

    def counts(self) -> dict[str, StepCounts]:
        """Return the last reported counts of each step, over all workers."""
        return self._registry.counts(self.members)

    def pre_commit(self) -> None:
        """Finish all workers: pre-commit, and close all but the transactional writers."""
        self._finish(list(self._registry.handles.values()))
        self._is_ending = True

    def close_before_commit(self) -> None:
        """Do nothing: `pre_commit` has closed them."""

    def close(self) -> None:
        """Close every worker and kill its process, then raise the first error."""
        self.coordination.close()
        joiners = [] if self._startup is None else self._startup.joiners
        handles, self._registry.handles = [*self._registry.handles.values(), *joiners], {}
        self._startup, self._joining = None, None
        failed_s = GIVE_UP_S if self._setup.keeping is None else GO_BACK_S
        there = [handle for handle in handles if handle.is_up and not handle.has_ended]
        try:
            self._close_workers(there, timeout_s=CLOSE_S if self._is_ending else failed_s)
        finally:
            for handle in handles:
                handle.kill()
            if self.transport is not None:
                self.transport.close(linger_s=0.0)

    # Called by the coordination.

    def start(self, start: events.StartWorkers) -> Sequence[Message]:
        """Start the joining workers (R1); `step` continues the start-up."""
        assert self._startup is not None
        self._startup.start_actors(start.workers)
        self._joining = self._join(start, self._startup)
        self.wake.set()
        return []

    def remove_all_but(self, members: Sequence[int]) -> None:
        """Release the workers that have sent Bye (R8). Their pre-commits wait for the next commit."""
        leavers = [handle for handle in self._registry.handles.values() if handle.worker not in members]
        if not leavers:
            return
        numbers = [handle.worker for handle in leavers]
        stay = [handle for handle in self._registry.handles.values() if handle not in leavers]
        self._registry.ask_all(stay, "part_with", numbers)
        for worker in numbers:
            self._streams.disconnect(worker)
        self._finish(leavers)
        self._close_workers(leavers, timeout_s=CLOSE_S)
        for handle in leavers:
            handle.kill()
            self._registry.remove(handle)
        _LOG.info("workers %s left", numbers)

    # Internals.

    @property
    def _streams(self) -> Transport:
        if self.transport is None:
            raise InternalError("a run has no streams before `begin`")
        return self.transport

    def _resumed(self, dealt: PartAssignment) -> tuple[RestorePoint | None, Mapping[str, Mapping[Part, RestoredPart]]]:
        """Return what workers restore, without data they do not need, and the positions of the parts."""
        resumption = None if self._begun is None else self._begun.resumption
        if resumption is None:
            return None, {}
        parts = listed(dealt.parts)
        lighter = replace(resumption.manifest, sinks={}, pins={})
        return replace(resumption.opened(self._plan, parts), manifest=lighter), resumption.begun(parts)

    def _keep_snapshots(self, pins: Mapping[str, Any]) -> None:
        keeping, begun = self._setup.keeping, self._begun
        if keeping is not None and begun is not None:
            background = ThreadBackground(self.wake)
            self.coordination.keep_snapshots(begun, keeping.snapshots, background, self.commit, pins, self._result)

    def _turn(self) -> None:
        """Advance the snapshots. A slow commit in the driver blocks this thread, and counts as progress."""
        began_s = self._clock.monotonic_s()
        self._send(self.coordination.turn())
        if self._clock.monotonic_s() - began_s > TURN_S:
            self.coordination.got_on()
        made = self.snapshots
        if made is not None and made.last is not None:
            self._journal.completed(made.last)

    def _wait_s(self) -> float:
        if (self.finished and not self._is_ending) or self.suspended:
            return 0.0
        now_s = self._clock.monotonic_s()
        return min([TURN_S, *(max(0.0, due_s - now_s) for due_s in self.coordination.due_s())])

    def _join(self, start: events.StartWorkers, startup: WorkerStartup) -> Iterator[None]:
        """Start and connect joining workers, step by step (R1). A failure before connecting cancels the rescale."""
        try:
            yield from startup.build(start, draining=self._draining, got_on=self.coordination.got_on)
        except MalstromError as error:
            _LOG.warning("the rescale is cancelled: %s", error)
            self._joining = None
            startup.give_up()
            self._send(self.coordination.handle(events.RescaleCalledOff(error)))
            return
        yield from startup.connect()
        _LOG.info("workers %s joined", list(start.workers))
        for worker in start.workers:
            self._send(self.coordination.handle(Connected(worker)))

    def _continue_joining(self) -> None:
        joining = self._joining
        if joining is None:
            return
        try:
            next(joining)
        except StopIteration:
            if self._joining is joining:  # the next request may already have replaced it
                self._joining = None

    def _take(self, content: Content) -> None:
        match content:
            case WorkerStatus():
                self._registry.record(content)
            case WorkerCounts():
                self._registry.record(content)
                self.coordination.got_on()
            case Saved():
                self._was_saved(content)
            case _:
                report: Any = content
                self._send(self.coordination.handle(events.ReportReceived(report)))

    def _was_saved(self, saved: Saved) -> None:
        """Note that a worker has saved its state. A leaving worker reports this twice: its stream may be lost."""
        if self._saved.get(saved.worker) != saved.snapshot and self.coordination.snapshotting is not None:
            self._saved[saved.worker] = saved.snapshot
            self.coordination.snapshotting.saved(saved)

    def _send(self, messages: Sequence[Message]) -> None:
        for receiver, content in messages:
            self._streams.send(receiver, [content])

    def _all_stand(self, as_wanted: Callable[[WorkerStatus], bool]) -> bool:
        return self._registry.all_stand(self.members, self.coordination.version, as_wanted)

    def _finish(self, handles: Sequence[WorkerHandle]) -> None:
        self._registry.finish(handles, self.commit.contexts, self._has_left, FINISH_S)

    def _has_left(self, end: WorkerOutcome) -> None:
        if end.saved is not None:
            self._was_saved(end.saved)
        self.commit.add(end.payloads)

    def _close_workers(self, handles: Sequence[WorkerHandle], *, timeout_s: float) -> None:
        asked = [(handle, handle.ask("close")) for handle in handles]
        await_answers(asked, "close", timeout_s=timeout_s, look=lambda: self._registry.check_nodes(handles))
