"""The interface between the coordinator and the workers of a run, which are local, on Ray, or simulated.

Rule: a group decides nothing. It starts and ends workers, delivers orders in order, and returns what has arrived for
the coordinator; all decisions are in `Coordinator`, the same for every group.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from malstrom_py.workers.coordinator.machine import RescaleCalledOff
from malstrom_py.workers.coordinator.recovery import RestorePoint, RunStart
from malstrom_py.workers.engine.snapshot_capture import CapturedState
from malstrom_py.workers.reports.figures import WorkerFigures
from malstrom_py.workers.reports.result import StepCounts
from malstrom_py.workers.transport.messages import Build, Content


class NothingToDo(Exception):
    """No worker of a group in this process has anything to do, now or later."""


@dataclass(frozen=True, slots=True)
class StartGroup:
    """Start ``workers``, built with ``members``, ``table`` and ``version``, and connect them with all workers (R1).

    ``restored`` and ``beginning``: as in `Build`, for the first workers of a run, which are members already.
    """

    workers: tuple[int, ...]
    members: tuple[int, ...]
    table: tuple[int, ...] = field(repr=False)
    version: int
    restored: RestorePoint | None = field(default=None, repr=False)
    beginning: tuple[str, ...] = ()

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

    def begin(self, begun: RunStart | None) -> None:
        """Prepare for the run that ``begun`` describes; None without snapshots."""
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


class RunJournal(Protocol):
    """The notes of a run for the coordinator that replaces this one."""

    def has_begun(self, began_from: str | None = None) -> None:
        """Record that the job was claimed, to resume from this snapshot."""
        ...

    def wanted(self, workers: int) -> None:
        """Record the requested number of workers."""
        ...

    def completed(self, snapshot: str) -> None:
        """Record the last complete snapshot."""
        ...


class _NoJournal:
    def has_begun(self, began_from: str | None = None) -> None:
        """Nothing outlives this process."""

    def wanted(self, workers: int) -> None:
        """Nothing outlives this process."""

    def completed(self, snapshot: str) -> None:
        """Nothing outlives this process."""


NO_JOURNAL: Final[RunJournal] = _NoJournal()
"""The journal of a coordinator that is not replaced."""
