"""How one run of a simulated job is kept: what it writes, and what is written by runs before it that are dead.

Rule: between any two operations of the store somebody else may write, or the run die, while it begins as while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Final, NoReturn

from malstrom_py.errors import SinkError
from malstrom_py.workers.beginning import Keeping
from malstrom_py.workers.chance import Chance
from malstrom_py.workers.commit import SinkCommits
from malstrom_py.workers.job_status import SnapshotStatus
from malstrom_py.workers.simulated_background import SimulatedBackground, Work, outlived
from malstrom_py.workers.simulated_store import SimulatedStore
from malstrom_py.workers.snapshot_machine import Phase
from malstrom_py.workers.snapshotting import Snapshotting
from malstrom_py.workers.witness import Witness

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
            self._let_go(snapshot, step)
        return []


class SimulatedSaving:
    """Keeps one run as ``keeping`` says. ``dead_writes``: what earlier runs have left; ``is_recovery``: there were
    some.
    """

    def __init__(
        self, keeping: Keeping, chance: Chance, witness: Witness, dead_writes: list[Work], *, is_recovery: bool
    ) -> None:
        self.background = SimulatedBackground()
        self.is_recovery = is_recovery
        self.dead_writes = dead_writes
        store = SimulatedStore(keeping.snapshots.store(), self._before)
        self.keeping = replace(keeping, snapshots=replace(keeping.snapshots, uri=store))
        self._chance = chance
        self._witness = witness
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

    def is_time(self, when: str, snapshotting: Snapshotting) -> bool:
        """Whether the moment of a `Crash` has come."""
        phase, background = snapshotting.phase, self.background
        match when:
            case "saving":
                return phase is not Phase.IDLE
            case "storing":
                return phase is Phase.COMMITTING and background.waiting > 0
            case "stored":
                return phase is Phase.COMMITTING and background.is_back
            case "kept":
                return snapshotting.status.last is not None
        return True

    def stopped(self, snapshots: SnapshotStatus | None) -> None:
        """The run has been stopped: what it was about to tidy up is tidied up yet, or never."""
        self._is_dead = True
        self._witness.hit("stopped behind a last snapshot")
        self._witness.known = None if snapshots is None else snapshots.last
        self._leave()

    def lost(self, snapshotting: Snapshotting | None) -> None:
        """The run has died: what it was about to write may be written yet, or never."""
        self._is_dead = True
        hit = self._witness.hit
        if self._begins and self.is_recovery:
            hit("crash during recovery")
        if snapshotting is not None:
            last = snapshotting.status.last
            if last is None:
                hit("crash before any snapshot")
            if snapshotting.phase is not Phase.IDLE:
                hit("crash with a snapshot in flight")
            there = snapshotting.checkpointer.list_checkpoints()
            if there and there[-1] != last:
                hit("crash between manifest and sink commit")
            self._witness.known = last
        self._leave()

    def _leave(self) -> None:
        for work in self.background.left():
            fate = self._chance.one_of(("never", "at once", "later", "later"))
            if fate == "at once":
                outlived(work)
            elif fate == "later":
                self.dead_writes.append(work)

    def _before(self) -> None:
        """Before each operation of the store."""
        if self._is_dead:
            return
        if self._begins and self.dead_writes and self._chance.happens(_OUTLIVES):
            self._outlive(self._chance.one_of(range(len(self.dead_writes))))
        if self._tear is None:
            return
        if self._tears_in == 0:
            tear, self._tear = self._tear, None
            tear()
        self._tears_in -= 1

    def _outlive(self, number: int) -> None:
        if outlived(self.dead_writes.pop(number)):
            self._witness.hit("zombie write fenced")
