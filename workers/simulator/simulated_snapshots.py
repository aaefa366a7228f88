"""How one run of a simulated job is kept: what it writes, and what is written by runs before it that are dead.

What a simulated run writes beside its work: each piece waits until its turn has come, and may outlive the run.

Rule: pieces are done in any order, each in one go or torn by a crash. What is left when the run dies may happen yet,
before the next run takes over or behind that, as what a process does that does not know that it is given up.

The store of a simulated job as one run of it sees it: before each operation something else may happen.

Rule: one operation is done, or not; between two of them a run can die, or one that is dead already write.

Rule: between any two operations of the store somebody else may write, or the run die, while it begins as while it runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, Final, NoReturn, TypeVar

from malstrom_py.errors import FencedError, SinkError, SnapshotError
from malstrom_py.snapshot.store import Store
from malstrom_py.workers.coordinator.recovery import SnapshotUse
from malstrom_py.workers.coordinator.sink_commits import SinkCommits
from malstrom_py.workers.coordinator.snapshot_coordinator import SnapshotCoordinator
from malstrom_py.workers.coordinator.snapshot_machine import SnapshotPhase
from malstrom_py.workers.engine.background import Done
from malstrom_py.workers.reports.job_status import SnapshotStatus
from malstrom_py.workers.simulator.coverage import Coverage
from malstrom_py.workers.simulator.random_schedule import RandomSchedule

T = TypeVar("T")

Work = Callable[[], Any]


class SimulatedBackground:
    """Does a piece of work when it is told to.

    >>> background, told = SimulatedBackground(), []
    >>> background.submit(lambda: 6 * 7, told.append)
    >>> background.turn(), background.pending
    (False, 1)
    >>> background.do(0)
    >>> background.turn(), told
    (True, [42])
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Work, Done]] = []
        self._back: deque[tuple[Done, Any]] = deque()

    @property
    def pending(self) -> int:
        """How much of it has not come back."""
        return len(self._waiting) + len(self._back)

    @property
    def waiting(self) -> int:
        """How many pieces nobody has done."""
        return len(self._waiting)

    @property
    def is_back(self) -> bool:
        """Whether `turn` has something to tell."""
        return bool(self._back)

    def submit(self, work: Callable[[], T], done: Callable[[T | BaseException], None], *, urgent: bool = True) -> None:
        """Have ``work`` done."""
        self._waiting.append((work, done))

    def do(self, number: int) -> None:
        """Do one of the pieces that wait. What a crash tears is not done any further."""
        work, done = self._waiting.pop(number)
        try:
            result = work()
        except SnapshotError as error:
            result = error
        self._back.append((done, result))

    def turn(self) -> bool:
        """Tell of what has been done since."""
        told = bool(self._back)
        while self._back:
            done, result = self._back.popleft()
            done(result)
        return told

    def close(self) -> None:
        """Nobody is told of anything any more."""
        self._back.clear()

    def left(self) -> list[Work]:
        """What nobody has done."""
        return [work for work, _ in self._waiting]


def run_orphaned_write(work: Work) -> bool:
    """Do what a run has left that is dead: whether it was fenced off. Nobody asks what else it comes to."""
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
        """Have ``path`` hold ``data``."""
        self._before()
        self._store.put(path, data)

    def create(self, path: str, data: bytes) -> bool:
        """The same, if nothing is there."""
        self._before()
        return self._store.create(path, data)

    def get(self, path: str) -> bytes:
        """What ``path`` holds."""
        self._before()
        return self._store.get(path)

    def list(self, folder: str) -> list[str]:
        """The paths below ``folder``."""
        self._before()
        return self._store.list(folder)

    def delete(self, path: str) -> None:
        """Have ``path`` hold nothing."""
        self._before()
        self._store.delete(path)

    def __repr__(self) -> str:
        return repr(self._store)


_OUTLIVES: Final = 0.1
"""How probable it is that somebody dead writes before an operation of a run that begins."""


class SimulatedCommits(SinkCommits):
    """The same, of a run that may be lost: then nobody is there to discard what it has pre-committed."""

    is_lost = False

    def abort(self) -> list[SinkError]:
        """Discard what is not committed, if somebody is there who does."""
        if not self.is_lost:
            return super().abort()
        for snapshot, step in list(self._held):
            self._release(snapshot, step)
        return []


class SimulatedSnapshots:
    """Keeps one run as ``keeping`` says. ``dead_writes``: what earlier runs have left; ``is_recovery``: there were
    some.
    """

    def __init__(
        self,
        keeping: SnapshotUse,
        chance: RandomSchedule,
        coverage: Coverage,
        dead_writes: list[Work],
        *,
        is_recovery: bool,
    ) -> None:
        self.background = SimulatedBackground()
        self.is_recovery = is_recovery
        self.dead_writes = dead_writes
        store = SimulatedStore(keeping.snapshots.store(), self._before)
        self.keeping = replace(keeping, snapshots=replace(keeping.snapshots, uri=store))
        self._schedule = chance
        self._coverage = coverage
        self._begins = False
        self._is_dead = False
        self._tears_in = 0
        self._tear: Callable[[], NoReturn] | None = None

    @property
    def writes(self) -> list[Hashable]:
        """What can be written now, by this run and by dead ones."""
        mine = [("write", number) for number in range(self.background.waiting)]
        return [*mine, *(("dead write", number) for number in range(len(self.dead_writes)))]

    def write(self, write: Hashable) -> None:
        """Let one of the `writes` happen."""
        assert isinstance(write, tuple)
        kind, number = write
        if kind == "write":
            self.background.do(number)
        else:
            self._outlive(number)

    def begins(self) -> None:
        """The run begins."""
        self._begins = True

    def has_begun(self) -> None:
        """It has: what would have torn its beginning has come too late."""
        self._begins, self._tear = False, None

    def tear(self, operations: int, tear: Callable[[], NoReturn]) -> None:
        """Have the run die before an operation of its store, after so many others."""
        self._tears_in, self._tear = operations, tear

    def is_time(self, when: str, snapshotting: SnapshotCoordinator) -> bool:
        """Whether the moment of a `Crash` has come."""
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
        """The run has been stopped: what it was about to tidy up is tidied up yet, or never."""
        self._is_dead = True
        self._coverage.hit("stopped behind a last snapshot")
        self._coverage.known = None if snapshots is None else snapshots.last
        self._leave()

    def lost(self, snapshotting: SnapshotCoordinator | None) -> None:
        """The run has died: what it was about to write may be written yet, or never."""
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
            fate = self._schedule.one_of(("never", "at once", "later", "later"))
            if fate == "at once":
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
