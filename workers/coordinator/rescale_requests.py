"""The rescale requests of one job: the running one, the waiting ones, and the result of each (R9)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from malstrom_py.errors import MalstromError
from malstrom_py.rescale.moves.placement import rebalanced
from malstrom_py.rescale.moves.protocol import Table
from malstrom_py.workers.coordinator.machine import CoordinatorMachine, CoordinatorPhase
from malstrom_py.workers.reports.job_status import Moving, RescaleReport

Done = Callable[[RescaleReport | MalstromError], None]
"""A callback that gets the result of a request: its report, or why it was called off."""


@dataclass(frozen=True, slots=True)
class _Request:
    members: tuple[int, ...]
    asked_s: float
    done: Done


@dataclass(frozen=True, slots=True)
class _Before:
    """The state of the job before a rescale."""

    version: int
    table: Table
    parts: dict[tuple[str, str], int]
    keys: int
    bytes: int

    @classmethod
    def of(cls, machine: CoordinatorMachine) -> _Before:
        return cls(machine.version, machine.table, dict(machine.parts), machine.keys_moved, machine.bytes_moved)


class RescaleRequests:
    """The requests to the coordinator ``machine``. The last one wins; superseded requests end with it."""

    def __init__(self, machine: CoordinatorMachine) -> None:
        self._machine = machine
        self._running: list[_Request] = []
        self._waiting: list[_Request] = []
        self._before = _Before.of(machine)

    def asked(self, members: tuple[int, ...], now_s: float, done: Done) -> None:
        """Record a request. Call this before the coordinator machine gets it."""
        request = _Request(members, now_s, done)
        if not self._running:
            self._before = _Before.of(self._machine)
        waits = self._running and not self._machine.nothing_moves
        (self._waiting if waits else self._running).append(request)

    @property
    def moving(self) -> Moving | None:
        """The progress of the current rescale; None if nothing moves."""
        before, machine = self._before, self._machine
        if machine.phase is not CoordinatorPhase.MOVING:
            return None
        done = _changed(before.table, machine.table)
        return Moving(
            move=machine.version - before.version + 1,
            slots=done,
            of_slots=done + _changed(machine.table, rebalanced(machine.table, machine.target)),
            keys=machine.keys_moved - before.keys,
            bytes=machine.bytes_moved - before.bytes,
        )

    def report(self, now_s: float) -> RescaleReport:
        """Return the report of the rescale that has ended, since its first request."""
        before, machine = self._before, self._machine
        return RescaleReport(
            members=machine.members,
            version=machine.version,
            moves=machine.version - before.version,
            slots=_changed(before.table, machine.table),
            parts=sum(worker != before.parts[part] for part, worker in machine.parts.items()),
            duration_s=now_s - self._running[0].asked_s if self._running else 0.0,
            keys=machine.keys_moved - before.keys,
            bytes=machine.bytes_moved - before.bytes,
        )

    def ended(self, now_s: float, error: MalstromError | None = None) -> None:
        """Answer the requests of the rescale that has ended; the waiting requests become the running ones.

        ``error``: the rescale was called off, and with it the requests that it superseded.
        """
        report = self.report(now_s)
        ended, self._running, self._waiting = self._running, self._waiting, []
        self._before = _Before.of(self._machine)
        for request in ended:
            if error is not None:
                request.done(error)
                continue
            overtaken = None if request is ended[-1] else len(ended[-1].members)
            request.done(replace(report, duration_s=now_s - request.asked_s, superseded_by=overtaken))


def _changed(before: Table, after: Table) -> int:
    """Return the number of slots whose owner differs."""
    return sum(was != now for was, now in zip(before, after, strict=True))
