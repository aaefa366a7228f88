"""The rescale requests of one job: the running one, the waiting ones, and the events and the result of each (R9)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from malstrom_py.errors import MalstromError
from malstrom_py.events import AnyEvent, RescaleBegun, RescaleEnded
from malstrom_py.logs import log
from malstrom_py.rescale.load import imbalance
from malstrom_py.rescale.moves.protocol import Moved, Table
from malstrom_py.workers.coordinator.machine import CoordinatorMachine, CoordinatorPhase
from malstrom_py.workers.reports.job_status import Moving, RescaleReport

_LOG: Final = logging.getLogger("malstrom_py.coordinator")

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

    members: tuple[int, ...]
    version: int
    table: Table
    parts: dict[tuple[str, str], int]
    moved: Moved

    @classmethod
    def of(cls, machine: CoordinatorMachine) -> _Before:
        parts = dict(machine.parts)
        return cls(machine.members, machine.version, machine.table, parts, machine.moved)

    def imbalance(self, machine: CoordinatorMachine) -> tuple[float | None, float | None]:
        """Return the imbalance before and after the rescale by the weights that it was placed by; None without."""
        if (weights := machine.rescale.weights) is None:
            return None, None
        before = imbalance(self.table, self.members, weights)
        return before, imbalance(machine.table, machine.members, weights)


class RescaleRequests:
    """The requests to the coordinator ``machine`` of ``job``. The last one wins; superseded requests end with it.

    ``publish`` is called with the events: each rescale has a beginning and an end. A request during one begins it
    again, with another target.
    """

    def __init__(self, machine: CoordinatorMachine, job: str, publish: Callable[[AnyEvent], None]) -> None:
        self._machine = machine
        self._job = job
        self._publish = publish
        self._running: list[_Request] = []
        self._waiting: list[_Request] = []
        self._before = _Before.of(machine)

    def asked(self, members: tuple[int, ...], now_s: float, done: Done) -> None:
        """Record a request. Call this before the coordinator machine gets it."""
        request, last = _Request(members, now_s, done), (*self._running, *self._waiting)[-1:]
        if not last or len(last[0].members) != len(members):
            self._begin(len(self._machine.members), len(members))
        if not self._running:
            self._before = _Before.of(self._machine)
        waits = self._running and not self._machine.nothing_moves
        (self._waiting if waits else self._running).append(request)

    @property
    def next_members(self) -> tuple[int, ...]:
        """The members once all requests so far are granted."""
        # Requests that came while a barrier passes begin after it.
        asked = self._waiting or (self._running if self._machine.nothing_moves else [])
        return asked[-1].members if asked else self._machine.target

    @property
    def moving(self) -> Moving | None:
        """The progress of the current rescale; None if nothing moves."""
        before, machine = self._before, self._machine
        if machine.phase not in {CoordinatorPhase.COPYING, CoordinatorPhase.MOVING}:
            return None
        done, moved = _changed(before.table, machine.table), machine.moved.since(before.moved)
        return Moving(
            move=machine.version - before.version + 1,
            slots=done,
            of_slots=done + _changed(machine.table, machine.rescale.table),
            keys=moved.keys,
            bytes=moved.bytes,
        )

    def report(self, now_s: float) -> RescaleReport:
        """Return the report of the rescale that has ended, since its first request."""
        before, machine = self._before, self._machine
        moved, (imbalance_before, imbalance_after) = machine.moved.since(before.moved), before.imbalance(machine)
        return RescaleReport(
            members=machine.members,
            version=machine.version,
            moves=machine.version - before.version,
            slots=_changed(before.table, machine.table),
            parts=sum(worker != before.parts.get(part, worker) for part, worker in machine.parts.items()),
            duration_s=now_s - self._running[0].asked_s if self._running else 0.0,
            keys=moved.keys,
            bytes=moved.bytes,
            imbalance_before=imbalance_before,
            imbalance_after=imbalance_after,
            bytes_ahead=moved.ahead,
        )

    def ended(self, now_s: float, error: MalstromError | None = None) -> None:
        """Answer the requests of the rescale that has ended; the waiting requests become the running ones.

        ``error``: the rescale was called off, and with it the requests that it superseded.
        """
        report = self.report(now_s)
        ended, self._running, self._waiting = self._running, self._waiting, []
        workers, self._before = len(self._before.members), _Before.of(self._machine)
        if ended:
            self._publish_ended(report, error)
            if error is None:
                self._log_ended(workers, report)
        for request in ended:
            if error is not None:
                request.done(error)
                continue
            overtaken = None if request is ended[-1] else len(ended[-1].members)
            request.done(replace(report, duration_s=now_s - request.asked_s, superseded_by=overtaken))

    def _begin(self, workers: int, target: int) -> None:
        text = "job %s begins to rescale from %d to %d workers"
        log(
            _LOG,
            logging.DEBUG,
            text,
            *(self._job, workers, target),
            job=self._job,
            workers_from=workers,
            workers=target,
        )
        self._publish(RescaleBegun(workers, target))

    def _publish_ended(self, report: RescaleReport, error: MalstromError | None) -> None:
        moved = (report.slots, report.parts, report.keys, report.bytes, report.duration_s)
        loads = (report.imbalance_before, report.imbalance_after)
        self._publish(RescaleEnded(len(report.members), "" if error is None else str(error), *moved, *loads))
        if self._running:
            self._begin(len(report.members), len(self._running[-1].members))

    def _log_ended(self, workers: int, report: RescaleReport) -> None:
        """Log a rescale from this number of workers, with the time since its first request."""
        by_load = ""
        if report.imbalance_before is not None and report.imbalance_after is not None:
            by_load = (
                f"; the most loaded worker has {report.imbalance_after:.2f} times the mean load, and had "
                f"{report.imbalance_before:.2f} times"
            )
        log(
            _LOG,
            logging.INFO,
            "job %s has been rescaled from %d to %d workers: %d key groups and %d partitions moved, with %d keys and "
            "%d bytes of state, in %d moves and %.3f s%s",
            *(self._job, workers, len(report.members), report.slots, report.parts, report.keys, report.bytes),
            *(report.moves, report.duration_s, by_load),
            job=self._job,
            workers_from=workers,
            workers=len(report.members),
            slots=report.slots,
            parts=report.parts,
            keys=report.keys,
            bytes=report.bytes,
            moves=report.moves,
            duration_s=round(report.duration_s, 3),
        )


def _changed(before: Table, after: Table) -> int:
    """Return the number of slots whose owner differs."""
    return sum(was != now for was, now in zip(before, after, strict=True))
