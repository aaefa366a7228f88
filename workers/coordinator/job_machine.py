"""The machine of a run: moves, snapshots and the planned stop, with one `handle`. Pure.

It has two parts: `CoordinatorMachine` for moves and barriers, `SnapshotMachine` for manifests and commits. What one
part needs of the other passes inside (`PackAhead`, `StatePacked`, `SnapshotWanted`, `BarrierBegun`, `CutMade`), so
the shell feeds an event and executes effects, and carries nothing between the parts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from malstrom_py.builder.plan import Plan
from malstrom_py.errors import InternalError
from malstrom_py.rescale.moves.protocol import PackAhead
from malstrom_py.workers.coordinator import machine as moves
from malstrom_py.workers.coordinator import snapshot_machine as snapshots
from malstrom_py.workers.coordinator.machine import (
    BarrierBegun,
    CoordinatorMachine,
    CutMade,
    SnapshotWanted,
    StatePacked,
    Topology,
)
from malstrom_py.workers.coordinator.snapshot_machine import SnapshotMachine, SnapshotStarted
from malstrom_py.workers.transport.messages import Saved


class PlannedStop(StrEnum):
    """How far the planned end of a run has got."""

    NONE = "none"
    DRAINING = "draining"
    SUSPEND_WANTED = "suspend wanted"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESULT_WANTED = "result wanted"
    SAVING_RESULT = "saving result"
    FINISHED = "finished"


STOPS: Final = {
    (PlannedStop.NONE, "drain"): PlannedStop.DRAINING,
    (PlannedStop.NONE, "suspend"): PlannedStop.SUSPEND_WANTED,
    (PlannedStop.SUSPEND_WANTED, "begin"): PlannedStop.SUSPENDING,
    (PlannedStop.SUSPENDING, "done"): PlannedStop.SUSPENDED,
    (PlannedStop.NONE, "finish"): PlannedStop.RESULT_WANTED,
    (PlannedStop.DRAINING, "finish"): PlannedStop.RESULT_WANTED,
    (PlannedStop.RESULT_WANTED, "begin"): PlannedStop.SAVING_RESULT,
    (PlannedStop.SAVING_RESULT, "done"): PlannedStop.FINISHED,
}
"""All changes of the planned stop.

``begin``: with snapshots the last one has started, after which no other starts; without, workers have their order.
``done``: the last snapshot is committed and noted.
"""

SUSPENDS: Final = frozenset({PlannedStop.SUSPEND_WANTED, PlannedStop.SUSPENDING, PlannedStop.SUSPENDED})
"""The workers stop, or have stopped, and the job resumes later."""

ENDS: Final = frozenset({PlannedStop.RESULT_WANTED, PlannedStop.SAVING_RESULT, PlannedStop.FINISHED})
"""Everything is read and written."""

ENDED: Final = ENDS | {PlannedStop.SUSPENDED}
"""The job has ended as planned."""

WANTED: Final = frozenset({PlannedStop.SUSPEND_WANTED, PlannedStop.RESULT_WANTED})
"""The next snapshot is the last one."""

OPEN: Final = WANTED | {PlannedStop.NONE, PlannedStop.DRAINING}
"""A snapshot may begin."""

_SnapshotEvent = (
    SnapshotStarted
    | Saved
    | snapshots.ManifestStored
    | snapshots.SinksCommitted
    | snapshots.Compacted
    | StatePacked
    | BarrierBegun
    | CutMade
)
Event = (
    moves.Event | SnapshotStarted | Saved | snapshots.ManifestStored | snapshots.SinksCommitted | snapshots.Compacted
)

Effect = (
    moves.StartWorkers
    | moves.Send
    | moves.Ended
    | BarrierBegun
    | CutMade
    | snapshots.StoreManifest
    | snapshots.CommitSinks
    | snapshots.Completed
)
"""At `BarrierBegun` and `CutMade` the shell notes the time, and the id under which sinks pre-commit from now on."""


class JobMachine:
    """The machine of a run; ``snapshots`` is None for a job without.

    >>> from malstrom_py.rescale.moves.move_sizing import Pacing
    >>> topology = moves.Topology((), {}, {})
    >>> machine = JobMachine(CoordinatorMachine(topology, members=[0], table=(0,), parts={}, pacing=Pacing.of(1)))
    >>> machine.stop_to("suspend")
    >>> machine.stop
    <PlannedStop.SUSPEND_WANTED: 'suspend wanted'>
    """

    def __init__(self, moves: CoordinatorMachine) -> None:
        self.moves = moves
        self.snapshots: SnapshotMachine | None = None
        self.stop = PlannedStop.NONE

    def handle(self, event: Event) -> list[Effect]:
        """Take one event and return the effects, in order."""
        return self._between(event)

    def stop_to(self, what: str) -> None:
        """Change the planned stop."""
        key = (self.stop, what)
        if key not in STOPS:
            raise InternalError(f"the planned stop is {self.stop}: {what} is not expected")
        self.stop = STOPS[key]

    def _between(self, event: Event | StatePacked | BarrierBegun | CutMade) -> list[Effect]:
        """Take one event, also of the other part, and return the effects for the shell."""
        effects: list[Effect] = []
        for effect in self._of_part(event):
            if isinstance(effect, PackAhead | StatePacked | SnapshotWanted):
                effects += self._between(effect)
                continue
            effects.append(effect)
            if isinstance(effect, BarrierBegun | CutMade) and self.snapshots is not None:
                effects += self._between(effect)
        return effects

    def _of_part(
        self, event: Event | StatePacked | BarrierBegun | CutMade
    ) -> list[Effect | PackAhead | StatePacked | SnapshotWanted]:
        if not isinstance(event, _SnapshotEvent):
            effects = self.moves.handle(event)
            self.moves.check()
            return [*effects]
        if self.snapshots is None:
            raise InternalError(f"{type(event).__name__} in a job without snapshots")
        return [*self.snapshots.handle(event)]


def topology_of(plan: Plan) -> Topology:
    """Return the exchanges of ``plan``, the regions that exchanges feed, and the sources.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sinks, sources
    >>> job = mp.Job("docs")
    >>> numbers = job.source("numbers", sources.Memory([1, 2])).key_by("parity", lambda n: n % 2)
    >>> numbers.sum("total").sink("out", sinks.Memory())
    >>> topology_of(job.plan()).sources
    {'numbers': ('parity',)}
    """
    regions = plan.regions
    downstream = _downstream(plan)
    return Topology(
        exchanges=tuple(exit for region in regions for exit in region.exits),
        regions={region.name: region.exits for region in regions if region.entries},
        sources={
            source: tuple(exit for exit in region.exits if exit in downstream[source])
            for region in regions
            for source in region.sources
        },
    )


def _downstream(plan: Plan) -> dict[str, set[str]]:
    """Return for each step all steps downstream, also those after another exchange."""
    found: dict[str, set[str]] = {step.name: {step.name} for step in plan.steps}
    for step in reversed(plan.steps):
        for ref in step.inputs:
            found[ref.step] |= found[step.name]
    return found
