"""Counts the hard cases that a simulated run has met: an easy run proves little."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from malstrom_py.operators.collect import CollectStep
from malstrom_py.operators.enrich.enrich import Enrich
from malstrom_py.operators.event_time import GenerateEpochs
from malstrom_py.operators.keyed import StatefulOperator
from malstrom_py.rescale.channels.channel import Frame
from malstrom_py.rescale.moves.protocol import Bye, OpenSlots, PartHandedOver, PollParts, StateChunk
from malstrom_py.rescale.moves.receiving_machine import ReceivingPhase
from malstrom_py.snapshot.manifest import Manifest
from malstrom_py.workers.engine.snapshot_capture import CapturedState
from malstrom_py.workers.engine.worker import Worker
from malstrom_py.workers.transport.messages import Content

HARD_CASES: Final = {
    "slot held": "a record waited at the new owner of its key, whose state was in flight",
    "epoch held": "a watermark waited for a move",
    "Shipped waited for": "records waited until earlier output of their keys had arrived",
    "parcel before a marker": "state arrived at a worker before it knew of the move",
    "empty slots shipped": "key groups without keys moved",
    "slot in several parcels": "the keys of one key group moved in several chunks",
    "keys moved": "keys with state moved",
    "state sent ahead": "state was sent while its old owner still worked",
    "key confirmed at the cut": "such state was still valid when its key moved",
    "key changed after it went ahead": "such state was no longer valid when its key moved",
    "state ahead of a move that was never made": "a crash came while state was sent ahead",
    "stale copy dropped": "such state of a crashed run was dropped by the next run",
    "rescale requested while state goes ahead": "a rescale request waited for state that was sent ahead, and its move",
    "part moved": "a partition of a source went to another worker",
    "finished part moved": "a partition went to another worker at its end",
    "part waiting for release": "a partition was not read on until its earlier records had arrived",
    "credit at zero": "a sender waited for credit",
    "credit limited by time": "a sender with credit waited, because the receiver is slow",
    "marker in a backlog": "a rescale began under back-pressure",
    "Bye taken": "a worker has left",
    "rescale coalesced": "a rescale was requested during another",
    "slots moved by load": "a rebalance moved key groups",
    "part appeared": "a source that is listed again had a new partition",
    "part appeared inside a rescale": "a source had a new partition during a rescale",
    "request at end of stream": "a rescale was requested at the end of the stream",
    "request with nothing flowing": "a rescale was requested while nothing was in flight",
    "request under back-pressure": "a rescale was requested while workers waited for credit",
    "worker crash": "a worker was lost",
    "worker crash inside a rescale": "a worker was lost during a rescale",
    "coordinator crash": "the coordinator was lost",
    "coordinator crash inside a rescale": "the coordinator was lost during a rescale",
    "stale frame dropped": "a batch of a crashed run was dropped by the next run",
    "stale letter dropped": "a control message of a crashed run was dropped by the next run",
}
"""Cases that a large number of runs must meet, each at least once -> what happened in such a run."""

SNAPSHOT_CASES: Final = {
    "snapshot completed": "a snapshot was committed",
    "snapshot inside a rescale": "the barrier of a snapshot passed between two moves of a rescale",
    "snapshot wanted while state goes ahead": "a snapshot waited for state that was sent ahead, and its move",
    "crash before any snapshot": "a crash came before the first snapshot",
    "crash with a snapshot in flight": "a crash came during a snapshot",
    "crash between manifest and sink commit": "a snapshot was committed, its sinks were not",
    "crash during recovery": "the job crashed again while it restarted",
    "stopped after a last snapshot": "the job was stopped as planned, and restarted",
    "manifest of a run that died before it knew": "the job resumed from a committed snapshot that no run knew",
    "zombie write fenced": "a lost run tried to commit after the next one had started",
    "restored at more workers": "the job resumed with more workers",
    "restored at fewer workers": "the job resumed with fewer workers",
    "part restored on another worker": "a partition resumed on another worker",
    "new part in a snapshot": "a new partition was saved",
    "new part in no snapshot at a crash": "a new partition was lost, and found again",
    "new part restored": "a new partition was restored",
    "idle part restored": "a partition was restored of a worker whose partitions were all idle",
    "timer restored": "a step had timers when it was lost",
    "enrich in flight restored": "a step awaited calls of enrich when it was lost",
    "collect buffer restored": "a step had collected values when it was lost",
    "delta restored": "state was put together from the keys that had changed",
    "compaction used in a restore": "state came from a chain of changes made into one",
}
"""The same of runs with snapshots."""


class RequestedWorkers(Protocol):
    """The workers of a run that gets a rescale request."""

    @property
    def quiet(self) -> bool: ...

    @property
    def backlogged(self) -> bool: ...


def _parts_in(manifest: Manifest) -> list[tuple[str, str]]:
    return [(step, part) for step, parts in manifest.sources.items() for part in parts]


class Coverage:
    """``hits``: hard case -> how often it was met."""

    def __init__(self) -> None:
        self.hits: Counter[str] = Counter()
        self.known: str | None = None
        """The last snapshot that the previous run knew to be complete."""
        self._readers: dict[str, dict[tuple[str, str], int]] = {}
        self._idle: dict[str, bool] = {}
        self._from: str = ""
        self._new: set[tuple[str, str]] = set()
        self._new_saved: set[tuple[str, str]] = set()

    def hit(self, case: str, times: int = 1) -> None:
        """Count ``case``."""
        self.hits[case] += times

    def appeared(self, source: str, parts: Iterable[str], *, is_moving: bool) -> None:
        """Count new ``parts`` of ``source``."""
        for part in parts:
            self._new.add((source, part))
            self.hit("part appeared")
            self.hit("part appeared inside a rescale", int(is_moving))

    def asked(self, phase: str, workers: RequestedWorkers) -> None:
        """Count the cases of a rescale request in a ``phase`` of the coordinator."""
        if phase != "steady":
            self.hit("rescale coalesced")
        if phase == "copying":
            self.hit("rescale requested while state goes ahead")
        if workers.quiet:
            self.hit("request with nothing flowing")
        if workers.backlogged:
            self.hit("request under back-pressure")

    def arrives(self, worker: Worker | None, content: Content) -> None:
        """Count the cases of a message that is delivered to ``worker``, or to the coordinator."""
        match content:
            case StateChunk():
                self._parcel(worker, content)
            case OpenSlots() if worker is not None and worker.region_input(content.region).held_rows:
                self.hit("Shipped waited for")
            case PartHandedOver():
                self.hit("finished part moved" if content.position.is_finished else "part moved")
            case PollParts():
                self.hit("part waiting for release")
            case Frame(control=Bye()):
                self.hit("Bye taken")

    def stepped(self, worker: Worker) -> None:
        """Count the cases of a step of ``worker``."""
        full = worker.backlogged
        if full:
            self.hit("credit at zero")
        for step in worker.operators.values():
            if isinstance(step, StatefulOperator) and step.state.counted_ahead[1]:
                self.hit("key changed after it went ahead")
        for region_input in worker.inputs:
            if region_input.held_rows:
                self.hit("slot held")
            if region_input.machine.holds_epochs:
                self.hit("epoch held")
            if full and region_input.machine.phase is ReceivingPhase.MARKING:
                self.hit("marker in a backlog")
            if full and region_input.waits_for_time:
                self.hit("credit limited by time")

    def cut(self, worker: Worker, cut: CapturedState) -> None:
        """Count the cases of a state image of ``worker``."""
        readers = self._readers.setdefault(cut.snapshot, {})
        readers.update({(step, part): worker.id for step, parts in cut.sources.items() for part in parts})
        saved = {(step, part) for step, parts in cut.sources.items() for part in parts} & self._new
        self.hit("new part in a snapshot", len(saved - self._new_saved))
        self._new_saved |= saved
        epochs = [step for step in worker.operators.values() if isinstance(step, GenerateEpochs)]
        self._idle[cut.snapshot] = self._idle.get(cut.snapshot, False) or any(step.idle for step in epochs)

    def resumed(self, manifest: Manifest, workers: int, *, again: bool) -> None:
        """Count the cases of a run that resumes from ``manifest``; ``again``: after an earlier run."""
        self._from = manifest.id
        if again and manifest.id != self.known:
            self.hit("manifest of a run that died before it knew")
        if workers != manifest.workers:
            self.hit(f"restored at {'more' if workers > manifest.workers else 'fewer'} workers")
        if any(artefact.kind == "delta" for artefact in manifest.artefacts):
            self.hit("delta restored")
        if any(".compacted." in artefact.path for artefact in manifest.artefacts):
            self.hit("compaction used in a restore")
        restored = self._new.intersection(_parts_in(manifest))
        self.hit("new part restored", len(restored))
        self.hit("new part in no snapshot at a crash", len(self._new - restored))
        self._new = restored
        if self._idle.get(manifest.id):
            self.hit("idle part restored")

    def opened(self, workers: Iterable[Worker], readers: Mapping[tuple[str, str], int]) -> None:
        """Count the cases of restored workers; ``readers``: which worker reads which part."""
        before = self._readers.get(self._from, {})
        moved = sum(worker != before.get(part, worker) for part, worker in readers.items())
        self.hit("part restored on another worker", moved)
        for step in (step for worker in workers for step in worker.operators.values()):
            if isinstance(step, StatefulOperator) and len(step.state.timers):
                self.hit("timer restored")
            if isinstance(step, CollectStep) and step.keys:
                self.hit("collect buffer restored")
            if isinstance(step, Enrich) and step.awaiting:
                self.hit("enrich in flight restored")

    def _parcel(self, worker: Worker | None, parcel: StateChunk) -> None:
        if parcel.ahead:
            self.hit("state sent ahead")
            return
        if parcel.confirmed:
            self.hit("key confirmed at the cut")
        if worker is not None and worker.region_input(parcel.region).machine.phase is ReceivingPhase.STEADY:
            self.hit("parcel before a marker")
        if not (parcel.states or parcel.confirmed):
            self.hit("empty slots shipped")
        else:
            self.hit("keys moved")
        if not parcel.slots:
            self.hit("slot in several parcels")
