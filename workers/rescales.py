"""The requests to rescale one job: which is being carried out, which wait, and what each of them came to (R9)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from malstrom_py.workers.coordinator_machine import CoordinatorMachine
from malstrom_py.workers.rescale_report import RescaleReport

Done = Callable[[RescaleReport], None]
"""Told once, when a request has ended."""


@dataclass(frozen=True, slots=True)
class _Request:
    members: tuple[int, ...]
    asked_s: float
    done: Done


@dataclass(frozen=True, slots=True)
class _Before:
    """The job as a rescale found it."""

    version: int
    table: tuple[int, ...]
    parts: dict[tuple[str, str], int]

    @classmethod
    def of(cls, machine: CoordinatorMachine) -> _Before:
        return cls(machine.version, machine.table, dict(machine.parts))


class Rescales:
    """The requests to the coordinator ``machine``. The last one wins; those that it overtook end with it."""

    def __init__(self, machine: CoordinatorMachine) -> None:
        self._machine = machine
        self._running: list[_Request] = []
        self._waiting: list[_Request] = []
        self._before = _Before.of(machine)

    def asked(self, members: tuple[int, ...], now_s: float, done: Done) -> None:
        """A request has come. To be told before the coordinator is."""
        request = _Request(members, now_s, done)
        if self._running:
            self._waiting.append(request)
        else:
            self._running, self._before = [request], _Before.of(self._machine)

    def ended(self, now_s: float) -> None:
        """The coordinator has ended the rescale that was under way, and goes on to the last request that waits."""
        before, machine = self._before, self._machine
        report = RescaleReport(
            members=machine.members,
            version=machine.version,
            moves=machine.version - before.version,
            slots=sum(was != now for was, now in zip(before.table, machine.table, strict=True)),
            parts=sum(worker != before.parts[part] for part, worker in machine.parts.items()),
            duration_s=0.0,
        )
        ended, self._running, self._waiting = self._running, self._waiting, []
        self._before = _Before.of(machine)
        for request in ended:
            overtaken = None if request is ended[-1] else len(ended[-1].members)
            request.done(replace(report, duration_s=now_s - request.asked_s, superseded_by=overtaken))
