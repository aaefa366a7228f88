"""All workers of one run in one process: steps them in turn and carries what they have for each other.

Deterministic: the same job, input, clock and number of workers give the same steps, unless a step awaits calls that
take as long as they take. While it does, a clock other than the system's stands still.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

from malstrom_py.clock import Clock, SystemClock
from malstrom_py.codec import Codec
from malstrom_py.errors import InternalError
from malstrom_py.operators.write_sink import WriteSink
from malstrom_py.plan import Plan
from malstrom_py.rescale.placement import first_table
from malstrom_py.workers.batching import Batching
from malstrom_py.workers.graph import Membership
from malstrom_py.workers.result import StepCounts, merged_counts
from malstrom_py.workers.worker import Outgoing, Worker

_WATCH_S: Final = 1.0
"""How long nothing may come back before the workers are asked again: what they await has deadlines of its own."""

_NAP_S: Final = 0.01
"""The same where the clock does not say how long nothing is due."""


class Crew:
    """``workers`` workers over one plan."""

    def __init__(self, plan: Plan, *, workers: int, batching: Batching, clock: Clock, checks: bool = False) -> None:
        members = range(workers)
        table = first_table(plan.slots, members)
        self._clock = clock
        self._wake = threading.Event()
        self._workers = [
            Worker(
                plan,
                Membership(worker, members, table),
                batching=batching,
                clock=clock,
                codec=Codec(plan.types),
                checks=checks,
                wake=self._wake,
            )
            for worker in members
        ]

    def open(self) -> None:
        """Open the sinks of every worker, then deal the parts of the sources and open these."""
        for worker in self._workers:
            worker.open_sinks()
        parts = self._workers[0].list_parts([worker.id for worker in self._workers])
        for worker in self._workers:
            self._deliver(worker.open_sources(parts[worker.id]))

    def step(self, *, until_s: float | None = None) -> None:
        """Step every worker once; when none has anything to do, let the time pass until one has, or ``until_s``."""
        busy = False
        for worker in self._workers:
            done, outgoing = worker.step()
            busy = busy or bool(done or outgoing)
            self._deliver(outgoing)
        if not busy and not self.finished and not any(worker.ready for worker in self._workers):
            due_s = [due for worker in self._workers if (due := worker.due_s()) is not None]
            awaiting = any(worker.awaiting for worker in self._workers)
            if not due_s and not awaiting:
                raise InternalError("no worker has anything to do, yet the job has not finished")
            now_s = self._clock.monotonic_s()
            waits_s = [due - now_s for due in (*due_s, *(() if until_s is None else (until_s,)))]
            if awaiting:
                self._await(waits_s)
            elif min(waits_s) > 0:
                self._clock.sleep_s(min(waits_s))

    def _await(self, waits_s: Iterable[float]) -> None:
        """Wait until something has come back that a step awaits, or something else is due."""
        # What is overdue is not done although nobody is busy: it waits for a region that is full of what is awaited.
        due_s = [wait_s for wait_s in waits_s if wait_s > 0]
        timeout_s = min([_WATCH_S, *due_s]) if isinstance(self._clock, SystemClock) else _NAP_S
        if self._wake.wait(timeout_s):
            self._wake.clear()

    @property
    def finished(self) -> bool:
        """Whether every worker has."""
        return all(worker.finished for worker in self._workers)

    @property
    def sinks(self) -> list[WriteSink]:
        """The sink steps of all workers."""
        return [sink for worker in self._workers for sink in worker.sinks]

    def counts(self) -> dict[str, StepCounts]:
        """What each step has done so far, on all workers together."""
        return merged_counts([worker.counts() for worker in self._workers])

    def rows_in(self, step: str) -> int:
        """How many records a step has taken so far, on all workers together."""
        return sum(worker.rows_in(step) for worker in self._workers)

    def close_before_commit(self) -> None:
        """Close all but the transactional writers of every worker."""
        _each(worker.close_before_commit for worker in self._workers)

    def close(self) -> None:
        """Close every worker; the first error is raised when all have been closed."""
        _each(worker.close for worker in self._workers)

    def _deliver(self, outgoing: list[Outgoing]) -> None:
        for receiver, message in outgoing:
            self._workers[receiver].receive(message)


def _each(closings: Iterable[Callable[[], None]]) -> None:
    errors: list[Exception] = []
    for close in closings:
        try:
            close()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
