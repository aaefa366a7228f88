"""What a worker notices about its sources: first records, ended parts, back-pressure. For the events of the job."""

from __future__ import annotations

from typing import Final

from malstrom_py.clock import Clock
from malstrom_py.events import AnyEvent, BackPressureBegun, BackPressureEnded, Input
from malstrom_py.operators.read_source import ReadSource
from malstrom_py.workers.transport.messages import COORDINATOR, Notice, Outgoing, PartsEnded, WorkerEvent

BACK_PRESSURE_S: Final = 1.0
"""How long a source waits for a backlog before that is an event."""

_REPORTED: Final = -1.0
"""In place of the time since which a source waits: it is reported."""


class SourceNotices:
    """The notices of ``worker`` that have not been sent."""

    def __init__(self, worker: int, clock: Clock) -> None:
        self._worker = worker
        self._clock = clock
        self._ended: dict[str, int] = {}
        self._live: set[str] = set()
        self._held: dict[str, float] = {}
        self.new: list[Notice] = []

    def take(self) -> list[Outgoing]:
        """Return the new notices, for the coordinator."""
        new, self.new = self.new, []
        return [(COORDINATOR, notice) for notice in new]

    def held(self, source: ReadSource) -> None:
        """Note that ``source`` is not read because of a backlog: back-pressure, once it lasts."""
        step, now_s = source.context.step, self._clock.monotonic_s()
        since_s = self._held.setdefault(step, now_s)
        if since_s != _REPORTED and now_s - since_s >= BACK_PRESSURE_S:
            self._held[step] = _REPORTED
            self._event(BackPressureBegun(step, self._worker))

    def polled(self, source: ReadSource, rows: int) -> None:
        """Note that ``source`` was polled, and has returned ``rows`` records. Its parts end with a poll."""
        step = source.context.step
        if self._held and self._held.pop(step, None) == _REPORTED:
            self._event(BackPressureEnded(step, self._worker))
        if rows and step not in self._live:
            self._live.add(step)
            self._event(Input(step, {"worker": self._worker, "rows": rows}))
        if (not rows or source.finished) and len(source.ended) != self._ended.get(step, 0):
            self._ended[step] = len(source.ended)
            self.new.append(PartsEnded(self._worker, step, tuple(source.ended)))

    def _event(self, event: AnyEvent) -> None:
        self.new.append(WorkerEvent(self._worker, event))
