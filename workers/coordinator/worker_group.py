"""The interface between the coordinator and the workers of a run, which are local, on Ray, or simulated; and the orders
whose replies the coordinator waits for, when workers start, part with others, and finish.

Rule: a group decides nothing. It starts and ends workers, delivers orders in order, and returns what has arrived for
the coordinator; all decisions are in `Coordinator`, the same for every group. Every wait for a reply has a deadline.
What else arrives during a wait is kept, in order, and handled in the next step.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from malstrom_py.clock import Clock
from malstrom_py.errors import DeadlineError, MalstromError, PeerError
from malstrom_py.sinks.base import CommitContext
from malstrom_py.workers.coordinator.machine import RescaleCalledOff
from malstrom_py.workers.coordinator.recovery import RestorePoint, RunStart
from malstrom_py.workers.engine.snapshot_capture import CapturedState
from malstrom_py.workers.reports.error_transfer import failure_of
from malstrom_py.workers.reports.figures import WorkerFigures
from malstrom_py.workers.reports.result import StepCounts
from malstrom_py.workers.transport.messages import (
    Build,
    Connected,
    Content,
    Finish,
    Finished,
    OpenSources,
    OrderFailed,
    Parted,
    PartWith,
    SourcesOpened,
)

TURN_S: Final = 0.5
"""The longest wait between two checks for the end of a worker; any event ends the wait."""

ANSWER_S: Final = 120.0
"""The timeout of a reply, which waits for the end of the worker's current step and its user functions."""

FINISH_S: Final = 600.0
"""The timeout of pre-commits."""

SETTLE_S: Final = 10.0
"""How long the other workers may continue to pre-commit once one of them has failed."""

_NAP_S: Final = 0.05

R = TypeVar("R", SourcesOpened, Parted, Finished)


class NothingToDo(Exception):
    """No worker of a group in this process has anything to do, now or later."""


@dataclass(frozen=True, slots=True)
class StartGroup:
    """Start ``workers``, built with ``members``, ``table`` and ``version``, and connect them with all workers (R1).

    ``restored`` and ``beginning``: as in `Build`, for the first workers of a run, which are members already.
    ``parameters``: the values of those that were set.
    """

    workers: tuple[int, ...]
    members: tuple[int, ...]
    table: tuple[int, ...] = field(repr=False)
    version: int
    restored: RestorePoint | None = field(default=None, repr=False)
    beginning: tuple[str, ...] = ()
    parameters: Mapping[str, Any] | None = field(default=None, hash=False)

    @property
    def joins(self) -> bool:
        """Whether the workers join a job that runs."""
        return self.workers != self.members

    def build(self, worker: int, incarnation: int) -> Build:
        """Return the order to build ``worker``."""
        here = {worker, *self.members}
        return Build(
            worker,
            self.members,
            self.table,
            self.version,
            incarnation,
            tuple(other for other in self.workers if other not in here),
            self.restored,
            self.beginning,
            self.parameters,
        )


Arrived = Content | CapturedState | RescaleCalledOff
"""What a group returns to the coordinator: messages of workers; from workers of this process their captured state,
which the coordinator saves; `Connected` for each started worker, or `RescaleCalledOff` if a start has failed."""


class WorkerGroup(Protocol):
    """The workers of a run. One thread uses it."""

    @property
    def wake(self) -> threading.Event:
        """An event that ends `wait`; any thread may set it."""
        ...

    @property
    def busy(self) -> bool:
        """Whether the last `receive` has let a worker of this process work, so that there may be more to do now."""
        ...

    @property
    def at_work(self) -> bool:
        """Whether a worker has worked, awaited a call or was being started in the last `receive`."""
        ...

    @property
    def workers(self) -> Sequence[int]:
        """The workers that orders can be sent to: members, connected joiners, and leavers until `remove`."""
        ...

    def begin(self, start: RunStart | None) -> None:
        """Prepare for the run of ``start``; None without snapshots."""
        ...

    def start(self, start: StartGroup) -> None:
        """Start workers. `Connected` arrives for each, or `RescaleCalledOff` once.

        The first workers of a run process data after `Start`, joiners immediately.
        """
        ...

    def send(self, worker: int, content: Content) -> None:
        """Send an order to ``worker``, after all earlier ones."""
        ...

    def arrived(self) -> Sequence[Arrived]:
        """Return what has arrived, without waiting. The loss of a worker is left to `receive`."""
        ...

    def receive(self) -> Sequence[Arrived]:
        """Let the workers of this process take a step, and return what has arrived, without waiting.

        Raises:
            MalstromError: a worker is lost or has failed: the error nearest to the root.
        """
        ...

    def wait(self, wait_s: float | None, *, pending: bool = False) -> None:
        """Wait until a worker has work or something has arrived, at most ``wait_s``.

        ``pending``: a background task of the coordinator will set ``wake``.

        Raises:
            MalstromError: as `receive`.
            NothingToDo: there is nothing to wait for.
        """
        ...

    def check_room(self, size: int, *, now: bool = False) -> None:
        """Raise `PlanError` if there is no room for ``size`` workers. ``now``: count no nodes that may yet come."""
        ...

    def counts(self) -> Mapping[int, Mapping[str, StepCounts]]:
        """Return the last known counts of each worker."""
        ...

    def figures(self) -> Mapping[int, WorkerFigures]:
        """Return the last known figures of each worker."""
        ...

    def finished(self, members: Sequence[int], version: int) -> bool:
        """Return whether all ``members`` have finished, as of ``version`` of the table."""
        ...

    def suspended(self, members: Sequence[int], version: int) -> bool:
        """Return whether all ``members`` are suspended, as of ``version`` of the table."""
        ...

    def fixed(self) -> Mapping[int, str]:
        """Return the workers with a source that can only be read there, and that source."""
        ...

    def remove(self, workers: Sequence[int]) -> None:
        """Close ``workers``, which have finished, and end them. Raise the first error."""
        ...

    def close(self, *, failed: bool) -> None:
        """Close all workers and end them, then raise the first error. ``failed``: do not wait for them long."""
        ...


class WorkerCalls:
    """The calls to the workers of ``group``.

    All raise:
        DeadlineError: a worker has not replied in time.
        MalstromError: a worker is lost or has failed.
    """

    def __init__(self, group: WorkerGroup, clock: Clock) -> None:
        self._group = group
        self._clock = clock
        self.kept: deque[Arrived] = deque()
        """What has arrived during a call and is not handled."""

    def take_kept(self) -> list[Arrived]:
        """Return what has arrived during calls, and keep it no longer."""
        kept = list(self.kept)
        self.kept.clear()
        return kept

    def await_connected(self, count: int) -> None:
        """Wait for the first workers. Their group has the deadlines."""
        while count:
            for content in self._arrived(TURN_S):
                if isinstance(content, RescaleCalledOff):
                    raise content.error
                count -= isinstance(content, Connected)

    def open_sources(self, orders: Mapping[int, OpenSources]) -> None:
        """Let each worker open the parts of its order."""
        self._send(orders)
        self._await_replies(SourcesOpened, orders, "open its sources", ANSWER_S, into={})

    def part(self, members: Sequence[int], leavers: Sequence[int]) -> None:
        """Let ``members`` close their connections to ``leavers``."""
        self._send(dict.fromkeys(members, PartWith(tuple(leavers))))
        self._await_replies(Parted, members, "part with the leavers", ANSWER_S, into={})

    def finish(
        self, workers: Sequence[int], contexts: Mapping[str, CommitContext], keep: Callable[[Finished], None]
    ) -> None:
        """Let ``workers`` pre-commit in ``contexts``, and close all but the transactional writers.

        ``keep`` is called with each reply, also with those of the others if one fails. Then the first error is raised.
        """
        ended: dict[int, Finished] = {}
        self._send(dict.fromkeys(workers, Finish(contexts)))
        try:
            self._await_replies(Finished, workers, "make durable what it has written", FINISH_S, into=ended)
        except MalstromError as error:
            lost = error.peer if isinstance(error, PeerError) else None
            self._settle([worker for worker in workers if worker != lost], ended)
            raise
        finally:
            for end in ended.values():
                keep(end)
        for end in ended.values():
            if end.error is not None:
                raise failure_of(end.worker, end.error) if isinstance(end.error, bytes) else end.error

    def _settle(self, workers: Sequence[int], ended: dict[int, Finished]) -> None:
        """Wait a little for the pre-commits of the others, which are to be discarded."""
        until_s = self._clock.monotonic_s() + SETTLE_S
        while any(worker not in ended for worker in workers) and self._clock.monotonic_s() < until_s:
            came = self._group.arrived()
            ended.update({end.worker: end for end in came if isinstance(end, Finished)})
            if not came:
                self._clock.sleep_s(_NAP_S)

    def _send(self, orders: Mapping[int, Content]) -> None:
        for worker, order in orders.items():
            self._group.send(worker, order)

    def _await_replies(
        self, kind: type[R], workers: Iterable[int], what: str, timeout_s: float, *, into: dict[int, R]
    ) -> None:
        """Wait for a reply of this ``kind`` of each of the ``workers``, and put it ``into`` the replies."""
        until_s = self._clock.monotonic_s() + timeout_s
        while missing := [worker for worker in workers if worker not in into]:
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0:
                raise late_reply(missing, what, timeout_s)
            for content in self._arrived(min(TURN_S, left_s)):
                if isinstance(content, kind):
                    into[content.worker] = content
                elif isinstance(content, OrderFailed):
                    raise failure_of(content.worker, content.error)
                else:
                    self.kept.append(content)

    def _arrived(self, wait_s: float) -> Sequence[Arrived]:
        """Return what has arrived, after a wait of at most ``wait_s`` if that is nothing."""
        if came := self._group.arrived():
            return came
        self._group.wait(wait_s)
        return self._group.receive()


def late_reply(workers: Sequence[int], what: str, timeout_s: float) -> DeadlineError:
    """Return the error for ``workers`` that have not replied in time."""
    return DeadlineError(
        f"worker {', '.join(map(str, workers))} did not {what} within {timeout_s:g} s: see its log for "
        f"the function that takes so long",
        wait=what,
        deadline_s=timeout_s,
    )


class RunJournal:
    """The notes of a run for the coordinator that replaces this one; here there is none, so nothing is noted."""

    def has_begun(self, began_from: str | None = None) -> None:
        """Record that the job was claimed, to resume from this snapshot."""

    def wanted(self, workers: int) -> None:
        """Record the requested number of workers."""

    def completed(self, snapshot: str) -> None:
        """Record the last complete snapshot."""
