"""Snapshots in the simulator: background work, store and sink commits that the schedule delays, reorders or tears.

Rule: pending writes are executed in any order; each is done, or torn by a crash between two operations of the store.
Pending writes of a dead run may still be executed, before or after the next run claims the job, as by a process that
does not know that it was replaced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, Final, NoReturn, TypeVar

from malstrom_py.errors import FencedError, SinkError, SnapshotError
from malstrom_py.snapshot.store import Range, Store, read_ranges
from malstrom_py.workers.coordinator.job_machine import SnapshotPhase
from malstrom_py.workers.coordinator.recovery import SnapshotUse
from malstrom_py.workers.coordinator.sink_commits import SinkCommits
from malstrom_py.workers.coordinator.snapshot_coordinator import SnapshotCoordinator
from malstrom_py.workers.engine.background import Done
from malstrom_py.workers.reports.job_status import SnapshotStatus
from malstrom_py.workers.simulator.simulated_job import SimulatedJob, Work

T = TypeVar("T")


class SimulatedBackground:
    """A background that executes a piece of work when the schedule selects it.

    >>> background, results = SimulatedBackground(), []
    >>> background.submit(lambda: 6 * 7, results.append)
    >>> background.turn(), background.pending
    (False, 1)
    >>> background.do(0)
    >>> background.turn(), results
    (True, [42])
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Work, Done]] = []
        self._back: deque[tuple[Done, Any]] = deque()

    @property
    def pending(self) -> int:
        """The number of pieces whose result is not delivered."""
        return len(self._waiting) + len(self._back)

    @property
    def waiting(self) -> int:
        """The number of pieces not executed."""
        return len(self._waiting)

    @property
    def is_back(self) -> bool:
        """Whether `turn` has a result to deliver."""
        return bool(self._back)

    def submit(self, work: Callable[[], T], done: Callable[[T | BaseException], None], *, urgent: bool = True) -> None:
        """Queue ``work``."""
        self._waiting.append((work, done))

    def do(self, number: int) -> None:
        """Execute one of the queued pieces. A crash may tear it."""
        work, done = self._waiting.pop(number)
        try:
            result = work()
        except SnapshotError as error:
            result = error
        self._back.append((done, result))

    def turn(self) -> bool:
        """Deliver the results, and return whether there were any."""
        delivered = bool(self._back)
        while self._back:
            done, result = self._back.popleft()
            done(result)
        return delivered

    def close(self) -> None:
        """Drop all results."""
        self._back.clear()

    def left(self) -> list[Work]:
        """Return the pieces not executed."""
        return [work for work, _ in self._waiting]


def run_orphaned_write(work: Work) -> bool:
    """Execute a write of a dead run, and return whether it was fenced."""
    try:
        work()
    except FencedError:
        return True
    except SnapshotError:
        return False
    return False


class SimulatedStore:
    """``store``; ``before`` is called before each operation.

    >>> from malstrom_py.snapshot.store import MemoryStore
    >>> calls = []
    >>> store = SimulatedStore(MemoryStore(), lambda: calls.append("operation"))
    >>> store.put("log/1.json", b"one")
    >>> store.get("log/1.json"), calls
    (b'one', ['operation', 'operation'])
    """

    def __init__(self, store: Store, before: Callable[[], None]) -> None:
        self._store = store
        self._before = before

    def put(self, path: str, data: bytes) -> None:
        """Write ``data`` to ``path``."""
        self._before()
        self._store.put(path, data)

    def create(self, path: str, data: bytes) -> bool:
        """Write ``data`` to ``path`` unless it exists."""
        self._before()
        return self._store.create(path, data)

    def get(self, path: str) -> bytes:
        """Return the content of ``path``."""
        self._before()
        return self._store.get(path)

    def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        """Return ranges of the content of ``path``."""
        self._before()
        return read_ranges(self._store, path, ranges)

    def list(self, folder: str) -> list[str]:
        """Return the paths below ``folder``."""
        self._before()
        return self._store.list(folder)

    def delete(self, path: str) -> None:
        """Delete ``path``."""
        self._before()
        self._store.delete(path)

    def __repr__(self) -> str:
        return repr(self._store)


_OUTLIVES: Final = 0.1
"""The probability that a dead run writes before a store operation of a starting run."""


class SimulatedCommits(SinkCommits):
    """Sink commits of a run that may crash: then it discards nothing."""

    is_lost = False

    def abort(self) -> list[SinkError]:
        """Discard uncommitted output, unless the run has crashed."""
        if not self.is_lost:
            return super().abort()
        for snapshot, step in list(self._held):
            self._release(snapshot, step)
        return []


class SimulatedSnapshots:
    """The snapshots of the present run of ``job``, as ``snapshot_use`` says."""

    def __init__(self, job: SimulatedJob, snapshot_use: SnapshotUse) -> None:
        self.background = SimulatedBackground()
        self.is_recovery = job.incarnation > 1
        self.dead_writes = job.dead_writes
        store = SimulatedStore(snapshot_use.snapshots.store(), self._before)
        self.snapshot_use = replace(snapshot_use, snapshots=replace(snapshot_use.snapshots, uri=store))
        self._schedule = job.schedule
        self._coverage = job.coverage
        self._begins = False
        self._is_dead = False
        self._tears_in = 0
        self._tear: Callable[[], NoReturn] | None = None

    @property
    def writes(self) -> list[Hashable]:
        """The writes that can happen now, of this run and of dead runs."""
        mine = [("write", number) for number in range(self.background.waiting)]
        return [*mine, *(("dead write", number) for number in range(len(self.dead_writes)))]

    def write(self, write: Hashable) -> None:
        """Execute one of the `writes`."""
        assert isinstance(write, tuple)
        kind, number = write
        if kind == "write":
            self.background.do(number)
        else:
            self._outlive(number)

    def begins(self) -> None:
        """Note that the run begins."""
        self._begins = True

    def has_begun(self) -> None:
        """Note that the run has begun, which cancels a crash during its beginning."""
        self._begins, self._tear = False, None

    def tear(self, operations: int, tear: Callable[[], NoReturn]) -> None:
        """Crash the run after so many more operations of its store."""
        self._tears_in, self._tear = operations, tear

    def is_time(self, when: str, snapshotting: SnapshotCoordinator) -> bool:
        """Return whether the moment of a `ScheduledCrash` has come."""
        phase, background = snapshotting.phase, self.background
        match when:
            case "saving":
                return phase is not SnapshotPhase.IDLE
            case "storing":
                return phase is SnapshotPhase.COMMITTING and background.waiting > 0
            case "stored":
                return phase is SnapshotPhase.COMMITTING and background.is_back
            case "kept":
                return snapshotting.status.last is not None
        return True

    def stopped(self, snapshots: SnapshotStatus | None) -> None:
        """Record that the run was stopped: its pending clean-up is done later, or never."""
        self._is_dead = True
        self._coverage.hit("stopped after a last snapshot")
        self._coverage.known = None if snapshots is None else snapshots.last
        self._leave()

    def lost(self, snapshotting: SnapshotCoordinator | None) -> None:
        """Record that the run died: its pending writes are done later, or never."""
        self._is_dead = True
        hit = self._coverage.hit
        if self._begins and self.is_recovery:
            hit("crash during recovery")
        if snapshotting is not None:
            last = snapshotting.status.last
            if last is None:
                hit("crash before any snapshot")
            if snapshotting.phase is not SnapshotPhase.IDLE:
                hit("crash with a snapshot in flight")
            there = snapshotting.checkpointer.list_checkpoints()
            if there and there[-1] != last:
                hit("crash between manifest and sink commit")
            self._coverage.known = last
        self._leave()

    def _leave(self) -> None:
        for work in self.background.left():
            fate = self._schedule.one_of(("never", "now", "later", "later"))
            if fate == "now":
                run_orphaned_write(work)
            elif fate == "later":
                self.dead_writes.append(work)

    def _before(self) -> None:
        """Before each operation of the store."""
        if self._is_dead:
            return
        if self._begins and self.dead_writes and self._schedule.happens(_OUTLIVES):
            self._outlive(self._schedule.one_of(range(len(self.dead_writes))))
        if self._tear is None:
            return
        if self._tears_in == 0:
            tear, self._tear = self._tear, None
            tear()
        self._tears_in -= 1

    def _outlive(self, number: int) -> None:
        if run_orphaned_write(self.dead_writes.pop(number)):
            self._coverage.hit("zombie write fenced")
