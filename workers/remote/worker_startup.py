"""Starts the processes of workers, builds the workers and connects them: the first workers, and those that join later.

Rule: nothing here blocks: `advance` goes as far as the replies allow. Every wait has a deadline, and fails early if the
machines no longer have enough room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from malstrom_py.clock import Clock
from malstrom_py.errors import DeadlineError
from malstrom_py.workers.coordinator.worker_group import ANSWER_S, StartGroup, late_reply
from malstrom_py.workers.remote.worker_handle import Machines, WorkerHandle, WorkerProcesses
from malstrom_py.workers.remote.worker_setup import WorkerSetup
from malstrom_py.workers.transport.base import Transport
from malstrom_py.workers.transport.messages import COORDINATOR, Reach, Welcome

LOOK_S: Final = 1.0
"""How often the room is checked."""

BUILD_S: Final = 600.0
"""The timeout for opening sinks and restoring state in the first workers. Joiners have the rest of their start's."""


class StartupPhase(StrEnum):
    """The phase of a start."""

    STARTING = "starting"
    BUILDING = "building"
    CONNECTING = "connecting"
    CONNECTED = "connected"


@dataclass(frozen=True, slots=True)
class StartupParts:
    """What a start needs. ``plan``: packed and shared; ``notify`` is called, in any thread, when a worker
    is up or has ended.
    """

    setup: WorkerSetup
    plan: Any
    processes: WorkerProcesses
    streams: Transport
    clock: Clock
    notify: Callable[[], None]
    machines: Machines


class WorkerStartup:
    """The start of the workers of ``start``, beside the workers ``present``. None is started on a silent node."""

    def __init__(self, start: StartGroup, parts: StartupParts, present: Mapping[int, WorkerHandle]) -> None:
        self.start = start
        self.phase = StartupPhase.STARTING
        self._parts = parts
        self._present = present
        self._avoided = parts.machines.silent
        self._began_s = self._look_s = parts.clock.monotonic_s()
        self._until_s = self._began_s + parts.setup.start_timeout_s
        self._awaited: set[int] = set()
        self.handles = {worker: self._new_handle(worker) for worker in start.workers}

    def replied(self, worker: int) -> None:
        """Record that ``worker`` is built, or has connected."""
        self._awaited.discard(worker)

    def advance(self) -> bool:
        """Go as far as possible. Return whether all are connected, in both directions (R1).

        Raises:
            MalstromError: a worker has failed or died, or a deadline has passed.
        """
        if self.phase is StartupPhase.STARTING and self._are_up():
            self._build()
        if self.phase is StartupPhase.BUILDING and self._have_replied():
            self._connect()
        if self.phase is StartupPhase.CONNECTING and self._have_replied():
            self.phase = StartupPhase.CONNECTED
        return self.phase is StartupPhase.CONNECTED

    def give_up(self) -> None:
        """Kill the workers."""
        for handle in self.handles.values():
            if self.phase is not StartupPhase.STARTING:
                self._parts.streams.disconnect(handle.worker)
            handle.kill()

    def _build(self) -> None:
        setup = self._parts.setup
        for handle in self.handles.values():
            handle.run()
        self.phase = StartupPhase.BUILDING
        if not self.start.joins:
            self._until_s = self._parts.clock.monotonic_s() + BUILD_S
        for worker, handle in self.handles.items():
            self._parts.streams.connect(worker, handle.address)
            self._parts.streams.send(worker, [self.start.build(worker, setup.incarnation)])
        self._awaited = set(self.handles)

    def _connect(self) -> None:
        self.phase = StartupPhase.CONNECTING
        self._until_s = self._parts.clock.monotonic_s() + ANSWER_S
        addresses = {worker: handle.address for worker, handle in self.handles.items()}
        everyone = {**{worker: handle.address for worker, handle in self._present.items()}, **addresses}
        for worker in self._present:
            self._parts.streams.send(worker, [Welcome(addresses)])
        for worker in self.handles:
            others = {other: address for other, address in everyone.items() if other not in {worker, COORDINATOR}}
            self._parts.streams.send(worker, [Reach(others)])
        self._awaited = set(everyone)

    def _have_replied(self) -> bool:
        clock = self._parts.clock
        if self._awaited and clock.monotonic_s() >= self._until_s:
            what = "reach the others" if self.phase is StartupPhase.CONNECTING else "open its sinks"
            if self.phase is StartupPhase.BUILDING and not self.start.joins:
                what = "open its sinks and take over its state"
            began_s = self._until_s - ANSWER_S if self.phase is StartupPhase.CONNECTING else self._began_s
            raise late_reply(sorted(self._awaited), what, round(self._until_s - began_s, 1))
        return not self._awaited

    def _are_up(self) -> bool:
        if all(handle.is_up for handle in self.handles.values()):
            return True
        parts, deadline_s, now_s = self._parts, self._parts.setup.start_timeout_s, self._parts.clock.monotonic_s()
        if now_s >= self._until_s:
            missing = [str(handle.worker) for handle in self.handles.values() if not handle.is_up]
            raise DeadlineError(
                f"worker {', '.join(missing)} of job {parts.setup.job!r} did not start within {deadline_s:g} s: "
                f"{parts.machines.why_late(len(self._present) + len(self.handles))}",
                wait="the start of workers",
                deadline_s=deadline_s,
            )
        if now_s >= self._look_s:
            self._look_s = now_s + LOOK_S
            parts.machines.check_lost_room(len(self._present) + len(self.handles))
        self._start_elsewhere()
        return False

    def _new_handle(self, worker: int) -> WorkerHandle:
        parts = self._parts
        process = parts.processes.take(worker, self._avoided)
        return WorkerHandle(process, parts.setup, parts.plan, worker, parts.streams.address, parts.notify)

    def _start_elsewhere(self) -> None:
        """Replace workers that may be on a silent node. The machine of a worker is known only once it is up."""
        if self._parts.machines.silent <= self._avoided:
            return
        self._avoided = self._avoided | self._parts.machines.silent
        for worker, handle in self.handles.items():
            if not handle.is_up or handle.node in self._avoided:
                handle.kill()
                self.handles[worker] = self._new_handle(worker)
