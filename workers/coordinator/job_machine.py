"""The machine of a run: moves, snapshots and the planned stop, with one `handle`. Pure.

It has two parts: `CoordinatorMachine` for moves and barriers, `SnapshotMachine` for manifests and commits. What one
part needs of the other passes inside (`SnapshotWanted`, `BarrierBegun`, `CutMade`), so the shell feeds an event and
executes effects, and carries nothing between the parts. Every change is in STOPS and SNAPSHOTS; nothing here does I/O.

One snapshot at a time, in the order of S3: all artefacts are durable before the manifest is written, the manifest is
durable before sinks commit, and sinks have committed before the next barrier is injected. A manifest names whole
chains: the artefacts of this snapshot after the earlier ones (S2, S5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from malstrom_py.builder.plan import Plan, ancestors
from malstrom_py.errors import InternalError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.manifest import Artefact, Manifest, PartImage, PlanImage
from malstrom_py.workers.coordinator import machine as moves
from malstrom_py.workers.coordinator.machine import (
    BarrierBegun,
    CoordinatorMachine,
    CutMade,
    SnapshotWanted,
    Topology,
)
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


class SnapshotPhase(StrEnum):
    """The phase of the current snapshot; how far its barrier is, is the other part's."""

    IDLE = "idle"
    SAVING = "saving"
    COMMITTING = "committing"
    PUBLISHING = "publishing"


SNAPSHOTS: Final = {
    (SnapshotPhase.IDLE, "wanted"): SnapshotPhase.SAVING,
    (SnapshotPhase.SAVING, "all saved"): SnapshotPhase.COMMITTING,
    (SnapshotPhase.COMMITTING, "manifest stored"): SnapshotPhase.PUBLISHING,
    (SnapshotPhase.PUBLISHING, "sinks have committed"): SnapshotPhase.IDLE,
}
"""All changes of the phase of a snapshot. A failed one ends the run, which restarts from the snapshot before (S6)."""


@dataclass(frozen=True, slots=True)
class SnapshotStarted:
    """Snapshot ``snapshot`` starts. ``last``: workers stop after its barrier."""

    snapshot: SnapshotId
    last: bool = False


@dataclass(frozen=True, slots=True)
class ManifestStored:
    """The manifest is durable, and so is the snapshot."""


@dataclass(frozen=True, slots=True)
class SinksCommitted:
    """All sinks have committed the output of the snapshot."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """``artefact`` has the content of ``chain`` and replaces it (S2)."""

    chain: tuple[Artefact, ...]
    artefact: Artefact


_OfSnapshot = SnapshotStarted | Saved | ManifestStored | SinksCommitted | Compacted
_SnapshotEvent = _OfSnapshot | BarrierBegun | CutMade


@dataclass(frozen=True, slots=True)
class StoreManifest:
    """Complete ``manifest`` with the payloads of sinks and the times, and write it."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class CommitSinks:
    """Let sinks commit: the snapshot is durable."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class Completed:
    """The snapshot is complete. ``long``: the chains to compact."""

    snapshot: SnapshotId
    long: tuple[tuple[Artefact, ...], ...]


SnapshotEffect = SnapshotWanted | StoreManifest | CommitSinks | Completed

Chains = dict[tuple[str, int], tuple[Artefact, ...]]
"""(step, worker) -> its artefacts, the full one first."""


class SnapshotMachine:
    """The machine for the snapshots of one incarnation of ``job``; the first manifest has number ``sequence``.

    ``chain_max``: the number of deltas above which a chain is compacted. ``parent``: the snapshot that the job resumes
    from, and ``chains``: those of its chains that workers may continue.
    """

    def __init__(
        self,
        job: str,
        plan: PlanImage,
        *,
        incarnation: int,
        sequence: int,
        chain_max: int,
        parent: SnapshotId | None = None,
        chains: Mapping[tuple[str, int], tuple[Artefact, ...]] | None = None,
    ) -> None:
        self.phase = SnapshotPhase.IDLE
        self.parent = parent
        self._job = job
        self._plan = plan
        self._incarnation = incarnation
        self._sequence = sequence
        self._chain_max = chain_max
        self._chains: Chains = dict(chains or {})
        self._snapshot = SnapshotId("")
        self._awaited: frozenset[int] = frozenset()
        self._saved: dict[int, Saved] = {}
        self._cut_made = False

    def handle(self, event: _SnapshotEvent) -> list[SnapshotEffect]:
        """Take one event and return the effects, in order."""
        match event:
            case SnapshotStarted():
                self._to("wanted")
                self._snapshot, self._saved, self._cut_made = event.snapshot, {}, False
                # No batch may come before the last barrier: the next one may fail, and it stops all workers anyway.
                return [SnapshotWanted(event.snapshot, self.parent, last=event.last, packs=not event.last)]
            case BarrierBegun():
                self._awaited = frozenset(event.members)
                return []
            case CutMade():
                self._require(event.snapshot == self._snapshot, f"a cut for {event.snapshot}")
                self._cut_made = True
                return self._maybe_commit()
            case Saved():
                return self._worker_saved(event)
            case ManifestStored():
                self._to("manifest stored")
                self._sequence += 1
                self.parent = self._snapshot
                return [CommitSinks(self._snapshot)]
            case SinksCommitted():
                self._to("sinks have committed")
                long = (chain for chain in self._chains.values() if len(chain) > self._chain_max)
                return [Completed(self._snapshot, tuple(long))]
            case Compacted():
                return self._compacted(event)

    def paths(self) -> set[str]:
        """Return the paths of the artefacts that the next manifest may name."""
        return {artefact.path for chain in self._chains.values() for artefact in chain}

    def _worker_saved(self, saved: Saved) -> list[SnapshotEffect]:
        self._require(
            self.phase is SnapshotPhase.SAVING and saved.snapshot == self._snapshot, f"{saved.snapshot} was saved"
        )
        self._require(saved.worker in self._awaited, f"worker {saved.worker} is not one of the snapshot")
        self._require(saved.worker not in self._saved, f"worker {saved.worker} has saved it twice")
        self._saved[saved.worker] = saved
        return self._maybe_commit()

    def _maybe_commit(self) -> list[SnapshotEffect]:
        if not self._cut_made or self._saved.keys() < self._awaited:
            return []
        self._to("all saved")
        self._chains = self._linked()
        return [StoreManifest(self._manifest())]

    def _linked(self) -> Chains:
        """Return the chains with the new artefacts appended, without the chains of workers that have left."""
        chains: Chains = {}
        for saved in self._saved.values():
            for artefact in saved.artefacts:
                place = (artefact.operator, artefact.partition)
                # What was packed ahead of the barrier in full comes before its own changes.
                before = chains.get(place) or self._chains.get(place, ())
                if artefact.kind == "full":
                    chains[place] = (artefact,)
                else:
                    self._require(bool(before), f"a delta of {artefact.path} without the artefact before it")
                    chains[place] = (*before, artefact)
        for place, chain in self._chains.items():
            if place[1] in self._awaited:
                chains.setdefault(place, chain)  # unchanged since the last snapshot
        return chains

    def _manifest(self) -> Manifest:
        return Manifest(
            job=self._job,
            id=self._snapshot,
            sequence=self._sequence,
            incarnation=self._incarnation,
            created="",
            parent=self.parent,
            workers=len(self._awaited),
            artefacts=tuple(artefact for _, chain in sorted(self._chains.items()) for artefact in chain),
            sources=self._merged(lambda saved: saved.sources, lambda image: PartImage(*image)),
            parts=self._merged(lambda saved: saved.parts, lambda state: state),
            frontiers=self._frontiers(),
            sinks={},
            plan=self._plan,
        )

    def _merged(
        self, of: Callable[[Saved], Mapping[str, Mapping[str, Any]]], made: Callable[[Any], Any]
    ) -> dict[str, dict[str, Any]]:
        """Return the images of all workers by step and part. No part is on two workers."""
        merged: dict[str, dict[str, Any]] = {}
        for saved in self._saved.values():
            for step, images in of(saved).items():
                here = merged.setdefault(step, {})
                for part, image in images.items():
                    self._require(part not in here, f"part {part!r} of {step!r} is at two workers")
                    here[part] = made(image)
        return merged

    def _frontiers(self) -> dict[str, int]:
        first, *others = self._saved.values()
        for other in others:
            self._require(other.frontiers == first.frontiers, "workers have passed different epochs (T3)")
        return dict(first.frontiers)

    def _compacted(self, event: Compacted) -> list[SnapshotEffect]:
        """S2: replace what was compacted in the next manifest, unless its chain has been removed or restarted."""
        place = (event.artefact.operator, event.artefact.partition)
        now, length = self._chains.get(place, ()), len(event.chain)
        first = now.index(event.chain[0]) if event.chain[0] in now else 0
        if now[first : first + length] == event.chain:
            self._chains[place] = (*now[:first], event.artefact, *now[first + length :])
        return []

    def _to(self, what: str) -> None:
        key = (self.phase, what)
        self._require(key in SNAPSHOTS, f"{what} is not expected")
        self.phase = SNAPSHOTS[key]

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise InternalError(f"snapshot {self._snapshot or 'not started'}, {self.phase}: {what}")


Event = moves.Event | _OfSnapshot

Effect = (
    moves.StartWorkers | moves.Send | moves.Ended | BarrierBegun | CutMade | StoreManifest | CommitSinks | Completed
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

    def handle(self, event: Event | BarrierBegun | CutMade) -> list[Effect]:
        """Take one event and return the effects, in order. What one part needs of the other is an event, too."""
        effects: list[Effect] = []
        for effect in self._of_part(event):
            if isinstance(effect, SnapshotWanted):
                effects += self.handle(effect)
                continue
            effects.append(effect)
            if isinstance(effect, BarrierBegun | CutMade) and self.snapshots is not None:
                effects += self.handle(effect)
        return effects

    def stop_to(self, what: str) -> None:
        """Change the planned stop."""
        key = (self.stop, what)
        if key not in STOPS:
            raise InternalError(f"the planned stop is {self.stop}: {what} is not expected")
        self.stop = STOPS[key]

    def _of_part(self, event: Event | BarrierBegun | CutMade) -> list[Effect | SnapshotWanted]:
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
    upstream = {
        exit: {step.name for step in ancestors(plan.steps, {exit})} for region in regions for exit in region.exits
    }
    return Topology(
        exchanges=tuple(upstream),
        regions={region.name: region.exits for region in regions if region.entries},
        sources={
            source: tuple(exit for exit in region.exits if source in upstream[exit])
            for region in regions
            for source in region.sources
        },
    )
