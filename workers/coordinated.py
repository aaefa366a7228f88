"""What every crew has of its coordination: who works, what moves, which snapshots there are, and what can be asked for.

Rule: how workers are reached is the crew's own; what is decided about them is decided in one place for all crews.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from malstrom_py.clock import Clock
from malstrom_py.plan import Plan
from malstrom_py.workers.commands import SnapshotDone
from malstrom_py.workers.coordination import Coordination
from malstrom_py.workers.job_status import SnapshotStatus
from malstrom_py.workers.rescale_report import Moving
from malstrom_py.workers.result import RunResult, StepCounts


class Coordinated(ABC):
    """A crew that runs ``plan``, as its ``coordination`` has it."""

    coordination: Coordination

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self._plan = plan
        self._clock = clock
        self._started_s = clock.monotonic_s()
        self._suspending = False

    @property
    @abstractmethod
    def all_suspended(self) -> bool:
        """Whether every worker has stopped."""

    @abstractmethod
    def counts(self) -> dict[str, StepCounts]:
        """What each step has done so far, on all workers together."""

    @property
    def members(self) -> tuple[int, ...]:
        """The workers that are there."""
        return self.coordination.members

    @property
    def target(self) -> tuple[int, ...]:
        """The workers that there will be."""
        return self.coordination.target

    @property
    def phase(self) -> str:
        """What the coordinator is about: "steady", "joining", "moving", "leaving" or "barrier"."""
        return self.coordination.phase

    @property
    def moving(self) -> Moving | None:
        """How far the rescale under way has come; None while nothing moves."""
        return self.coordination.moving

    @property
    def snapshots(self) -> SnapshotStatus | None:
        """How it stands with the snapshots; None for a job without."""
        return self.coordination.snapshots

    def snapshot(self, done: SnapshotDone) -> None:
        """Have a snapshot made; ``done`` is told when it stands and sinks have committed it. `SnapshotError` if the job
        has none.
        """
        self.coordination.ask_snapshot(done)

    def savepoint(self, uri: str, done: SnapshotDone) -> None:
        """The same, and have it copied to ``uri``."""
        self.coordination.ask_snapshot(done, copy_to=uri)

    @property
    def kept(self) -> RunResult | None:
        """What the job has come to, once its last snapshot stands."""
        return self.coordination.kept

    def suspend(self) -> None:
        """Have every worker stop, once nothing moves any more (R7): behind all that is on its way, or, if the job has
        snapshots, behind the barrier of one more.
        """
        snapshotting = self.coordination.snapshotting
        if snapshotting is None:
            self._suspending = True
        else:
            snapshotting.ask_last()

    @property
    def suspended(self) -> bool:
        """Whether all have stopped, and the snapshot behind which they were to is committed."""
        snapshotting = self.coordination.snapshotting
        return self.all_suspended if snapshotting is None else snapshotting.has_stopped

    @property
    def may_finish(self) -> bool:
        """Whether nothing moves, and no last barrier is on its way: where it has passed the job is stopped."""
        snapshotting = self.coordination.snapshotting
        return self.coordination.is_steady and not (snapshotting is not None and snapshotting.is_stopping)

    def _result(self) -> RunResult:
        made = 0 if self.snapshots is None else self.snapshots.made
        return RunResult(self._plan.job, self.counts(), self._clock.monotonic_s() - self._started_s, snapshots=made)
