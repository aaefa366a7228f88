"""The workers of a run in other processes, a `WorkerGroup`: starts, reaches, watches and ends them.

Rule: batches, orders and replies travel over the streams between the processes.
Each run has streams with its own incarnation number, so messages of an earlier run are dropped. Of all failures the one
nearest to the root is raised: a user's error before a death, a death before a lost stream.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from malstrom_py.builder.plan import Plan
from malstrom_py.clock import Clock
from malstrom_py.errors import InternalError, MalstromError, PeerError
from malstrom_py.workers.coordinator.machine import RescaleCalledOff
from malstrom_py.workers.coordinator.recovery import RunStart
from malstrom_py.workers.coordinator.worker_group import TURN_S, Arrived, StartGroup
from malstrom_py.workers.engine.worker_loop import Wake
from malstrom_py.workers.remote.packed_plan import pack_plan
from malstrom_py.workers.remote.worker_handle import Machines, WorkerHandle, WorkerProcesses, await_ends
from malstrom_py.workers.remote.worker_setup import WorkerSetup
from malstrom_py.workers.remote.worker_startup import StartupParts, StartupPhase, WorkerStartup
from malstrom_py.workers.reports.error_transfer import failure_of
from malstrom_py.workers.reports.figures import WorkerFigures
from malstrom_py.workers.reports.result import StepCounts
from malstrom_py.workers.transport.base import Transport
from malstrom_py.workers.transport.messages import (
    COORDINATOR,
    Built,
    Close,
    Connected,
    Content,
    OrderFailed,
    Reached,
    SourcesOpened,
    Start,
    WorkerCounts,
    WorkerStatus,
)

CLOSE_S: Final = 60.0
"""How long finished workers may take to close before their processes are killed."""

GIVE_UP_S: Final = 3.0
"""The same after a failure, which every caller sees within ten seconds."""

GO_BACK_S: Final = 1.0
"""The same before a restart from the last snapshot, which begins within ten seconds."""

ROOT_S: Final = 2.0
"""How long a lost stream waits for the failure that caused it."""

_LOG: Final = logging.getLogger("malstrom_py.coordinator")


class RemoteWorkers:
    """The workers of ``plan`` in a run that is configured by ``setup``, on ``machines``, in ``processes`` that may
    outlive the run.
    """

    def __init__(
        self, setup: WorkerSetup, plan: Plan, clock: Clock, machines: Machines, processes: WorkerProcesses
    ) -> None:
        self.wake = Wake()
        self.busy = self.at_work = False
        self.has_started = False
        """Whether the first workers were all there."""
        self.transport: Transport | None = None
        self._worked = False
        self._setup = setup
        self._plan = plan
        self._clock = clock
        self._machines = machines
        self._processes = processes
        self._packed: Any = None
        self._handles: dict[int, WorkerHandle] = {}
        self._startup: WorkerStartup | None = None
        self._arrived: list[Arrived] = []
        self._standings: dict[int, WorkerStatus] = {}
        self._counts: dict[int, Mapping[str, StepCounts]] = {}
        self._figures: dict[int, WorkerFigures] = {}
        self._fixed: dict[int, str] = {}

    @property
    def workers(self) -> list[int]:
        return list(self._handles)

    def begin(self, start: RunStart | None) -> None:
        if start is not None:
            self._setup = replace(self._setup, incarnation=start.incarnation)
        # The number of this end is the coordinator's.
        self.wake.transport = self.transport = self._setup.wiring.end(COORDINATOR, incarnation=self._setup.incarnation)

    def start(self, start: StartGroup) -> None:
        if self._packed is None:
            self._packed = self._machines.share(pack_plan(self._plan))
        parts = StartupParts(
            self._setup, self._packed, self._processes, self._streams, self._clock, self.wake.set, self._machines
        )
        self._startup = WorkerStartup(start, parts, self._handles)
        self._processes.kill_kept()  # a run of fewer workers leaves some
        self.wake.set()

    def send(self, worker: int, content: Content) -> None:
        self._streams.send(worker, [content])

    def arrived(self) -> Sequence[Arrived]:
        try:
            self._take(self._streams.receive(0.0))
        except PeerError:
            """`receive` raises it again."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def receive(self) -> Sequence[Arrived]:
        self.wake.clear()
        self._check_ended()
        self._take(self._received(0.0))
        if self._startup is not None:
            self._go_on_starting(self._startup)
        self.at_work, self._worked = self._worked, False
        arrived, self._arrived = self._arrived, []
        return arrived

    def wait(self, wait_s: float | None, *, pending: bool = False) -> None:
        if not self._arrived:
            self._take(self._received(TURN_S if wait_s is None else min(TURN_S, wait_s)))

    def check_room(self, size: int, *, now: bool = False) -> None:
        self._machines.check_room(size, now=now)

    def counts(self) -> dict[int, Mapping[str, StepCounts]]:
        return {worker: self._counts.get(worker, {}) for worker in self._handles}

    def figures(self) -> dict[int, WorkerFigures]:
        return {worker: figures for worker in self._handles if (figures := self._figures.get(worker)) is not None}

    def finished(self, members: Sequence[int], version: int) -> bool:
        return self._all_stand(members, version, lambda standing: standing.finished)

    def suspended(self, members: Sequence[int], version: int) -> bool:
        return self._all_stand(members, version, lambda standing: standing.suspended)

    def fixed(self) -> dict[int, str]:
        return {worker: source for worker, source in self._fixed.items() if source and worker in self._handles}

    def remove(self, workers: Sequence[int]) -> None:
        leavers = [self._handles[worker] for worker in workers]
        for handle in leavers:
            self._streams.send(handle.worker, [Close()])
            self._streams.disconnect(handle.worker)
        await_ends(leavers, CLOSE_S, lambda: self._check_nodes(leavers))
        for handle in leavers:
            handle.kill()
            del self._handles[handle.worker]
            self._counts.pop(handle.worker, None)
            self._figures.pop(handle.worker, None)
            self._standings.pop(handle.worker, None)
        _LOG.debug("workers %s left", list(workers))

    def close(self, *, failed: bool) -> None:
        startup, self._startup = self._startup, None
        joiners = {} if startup is None else startup.handles
        there = [] if startup is None or startup.phase is StartupPhase.STARTING else list(joiners.values())
        there = [handle for handle in [*self._handles.values(), *there] if handle.is_up and not handle.has_ended]
        handles, self._handles = [*self._handles.values(), *joiners.values()], {}
        keeps = failed and self._setup.snapshot_use is not None  # only a job with snapshots has another run
        if keeps:
            self._replace_lost(handles)
        try:
            for handle in there:
                self._streams.send(handle.worker, [Close()])
            await_ends(
                there, (GO_BACK_S if keeps else GIVE_UP_S) if failed else CLOSE_S, lambda: self._check_nodes(there)
            )
        finally:
            for handle in handles:
                if keeps and handle.survives and handle.node not in self._machines.silent:
                    self._processes.keep(handle.worker, handle.release())
                else:
                    handle.kill()
            if self.transport is not None:
                self.transport.close(linger_s=0.0)

    def _replace_lost(self, handles: Iterable[WorkerHandle]) -> None:
        """Start processes for the workers that are lost, which takes longer than all else before the next run."""
        for handle in handles:
            if handle.has_ended and not handle.survives:
                self._processes.replace(handle.worker, self._machines.silent)

    # Internals.

    @property
    def _streams(self) -> Transport:
        if self.transport is None:
            raise InternalError("a run has no streams before `begin`")
        return self.transport

    def _all_stand(self, members: Sequence[int], version: int, as_wanted: Callable[[WorkerStatus], bool]) -> bool:
        found = [self._standings.get(worker) for worker in members]
        return all(standing is not None and standing.version == version and as_wanted(standing) for standing in found)

    def _received(self, wait_s: float) -> Sequence[Content]:
        """Return what comes over the streams. The loss of a worker is raised as its root error."""
        try:
            return self._streams.receive(wait_s)
        except PeerError as error:
            startup = self._startup
            if error.peer is not None:
                self._streams.disconnect(error.peer)  # the others are still heard until the run has ended
            if startup is not None and error.peer in startup.handles:
                self._start_failed(startup, error)
                return []
            raise self._root_of(error, self._handles) from None

    def _take(self, came: Iterable[Content]) -> None:
        """Record what is for this group, and keep the rest for the coordinator."""
        for content in came:
            match content:
                case WorkerStatus():
                    self._standings[content.worker] = content
                    if content.finished:
                        self._fixed.pop(content.worker, None)
                case WorkerCounts():
                    self._counts[content.worker] = content.counts
                    self._figures[content.worker] = content.figures
                    self._worked = True
                case Built() | Reached() if self._startup is not None:
                    self._startup.replied(content.worker)
                case OrderFailed() if self._startup is not None and content.worker in self._startup.handles:
                    self._start_failed(self._startup, failure_of(content.worker, content.error))
                case SourcesOpened():
                    self._fixed[content.worker] = content.fixed
                    self._arrived.append(content)
                case _:
                    self._arrived.append(content)

    def _go_on_starting(self, startup: WorkerStartup) -> None:
        """Start, build and connect workers, as far as possible now (R1)."""
        try:
            self._check_nodes(startup.handles.values())
            for handle in startup.handles.values():
                if handle.has_ended and startup.phase is not StartupPhase.STARTING:
                    raise self._root_of(None, startup.handles)
            is_connected = startup.advance()
        except MalstromError as error:
            self._start_failed(startup, error)
            return
        if startup.phase in {StartupPhase.STARTING, StartupPhase.BUILDING}:
            self._worked = True  # the start has its own deadline
        if not is_connected:
            return
        self._startup = None
        self._handles.update(startup.handles)
        self.has_started = True
        _LOG.debug("workers %s joined", list(startup.start.workers))
        for worker in startup.start.workers:
            if startup.start.joins:
                self.send(worker, Start())
            self._arrived.append(Connected(worker))

    def _start_failed(self, startup: WorkerStartup, error: MalstromError) -> None:
        """End a failed start. Before joiners are connected only they know of the rescale, so the job continues."""
        if startup.phase is StartupPhase.CONNECTING:
            raise error
        if startup.start.joins:
            _LOG.warning("the rescale is cancelled: %s", error)
            startup.give_up()
            self._startup = None
        self._arrived.append(RescaleCalledOff(error))

    def _check_ended(self) -> None:
        """Raise the root error if any worker has ended."""
        if any(handle.has_ended for handle in self._handles.values()):
            raise self._root_of(None, self._handles)

    def _check_nodes(self, handles: Iterable[WorkerHandle]) -> None:
        """Raise `PeerError` if one of ``handles`` is on a silent node."""
        silent = self._machines.silent
        if not silent:
            return
        for handle in handles:
            if handle.node in silent:
                raise PeerError(
                    f"worker {handle.worker} is cut off: its node ({handle.node}) no longer reacts. Check that "
                    f"machine and the network to it",
                    peer=handle.worker,
                )

    def _root_of(self, error: MalstromError | None, handles: Mapping[int, WorkerHandle]) -> MalstromError:
        """Return the error nearest to the root of ``error``, or of the end of one of ``handles``."""
        until_s = self._clock.monotonic_s() + ROOT_S
        while True:
            ends = [end for handle in handles.values() if (end := handle.ended_by()) is not None]
            nearest = min(ends, key=lambda end: end[0], default=None)
            found_root = nearest is not None and nearest[0] == 0
            if found_root or self._clock.monotonic_s() >= until_s:
                break
            self._clock.sleep_s(0.05 if nearest is None or nearest[0] > 1 else ROOT_S / 4)
            if nearest is not None and nearest[0] == 1:
                until_s = 0.0  # a death: check again for a user's error that came first
        if nearest is not None and nearest[0] == 1:
            return self._with_black_box(nearest[1], handles)
        if nearest is not None:
            return nearest[1]
        return error or PeerError(f"the workers of job {self._setup.job!r} have ended before the job did")

    def _with_black_box(self, death: MalstromError, handles: Mapping[int, WorkerHandle]) -> MalstromError:
        """Return the death of a worker, with the content of its black box."""
        peer = death.peer if isinstance(death, PeerError) else None
        handle = None if peer is None else handles.get(peer)
        words = "" if handle is None or handle.node in self._machines.silent else handle.read_black_box()
        return PeerError(f"{death}. When it died, {words}", peer=peer) if words else death
