"""What is known of a run from the machines of its coordinator."""

from __future__ import annotations

from collections.abc import Mapping

from malstrom_py.workers.coordinator.job_machine import JobMachine, PlannedStop
from malstrom_py.workers.coordinator.machine import CoordinatorMachine, CoordinatorPhase
from malstrom_py.workers.coordinator.rescale_requests import RescaleRequests
from malstrom_py.workers.coordinator.snapshot_coordinator import SnapshotCoordinator
from malstrom_py.workers.coordinator.source_calls import SourceCalls
from malstrom_py.workers.reports.job_status import Moving, SnapshotStatus
from malstrom_py.workers.reports.result import RunResult


class RunView:
    """The base of `Coordinator`: its machines, and what they know."""

    snapshotting: SnapshotCoordinator | None
    _moves: CoordinatorMachine
    _machine: JobMachine
    _rescales: RescaleRequests
    _source_calls: SourceCalls

    @property
    def members(self) -> tuple[int, ...]:
        """The current workers."""
        return self._moves.members

    @property
    def table(self) -> tuple[int, ...]:
        """The routing table: slot -> worker."""
        return self._moves.table

    @property
    def version(self) -> int:
        """The version of the table."""
        return self._moves.version

    @property
    def target(self) -> tuple[int, ...]:
        """The workers after the current rescale."""
        return self._moves.target

    @property
    def phase(self) -> str:
        """The phase: "steady", "joining", "copying", "moving", "leaving" or "barrier"."""
        return str(self._moves.phase)

    @property
    def is_steady(self) -> bool:
        """Whether no rescale and no barrier is in progress."""
        return self._moves.phase is CoordinatorPhase.STEADY

    @property
    def is_between_moves(self) -> bool:
        """Whether a barrier passes between two moves of a rescale."""
        return self._moves.phase is CoordinatorPhase.BARRIER and self._moves.moves_follow

    @property
    def readers(self) -> Mapping[tuple[str, str], int]:
        """The readers of the movable parts: (source, part) -> worker."""
        return self._moves.parts

    @property
    def moving(self) -> Moving | None:
        """The progress of the current rescale; None if nothing moves."""
        return self._rescales.moving

    def waiting_for(self) -> str:
        """R7: return a description of the missing reports."""
        return self._moves.waiting_for()

    @property
    def snapshots(self) -> SnapshotStatus | None:
        """The status of the snapshots; None for a job without."""
        return None if self.snapshotting is None else self.snapshotting.status

    @property
    def kept(self) -> RunResult | None:
        """The result of the job, once its final snapshot is durable; else None."""
        return None if self.snapshotting is None else self.snapshotting.result

    @property
    def is_saving(self) -> bool:
        """Whether a background task is pending."""
        return self.snapshotting is not None and self.snapshotting.background.pending > 0

    @property
    def is_calling(self) -> bool:
        """Whether a source is being listed again, or is acknowledging."""
        return self._source_calls.pending

    @property
    def may_find_parts(self) -> bool:
        """R13: whether new parts are looked for: not once a stop is planned."""
        return self._machine.stop is PlannedStop.NONE
