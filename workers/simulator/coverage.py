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

HARD_CASES: Final = (
    "slot held",
    "epoch held",
    "Shipped waited for",
    "parcel before a marker",
    "empty slots shipped",
    "slot in several parcels",
    "keys moved",
    "state sent ahead",
    "key confirmed at the cut",
    "key changed after it went ahead",
    "state ahead of a move that was never made",
    "stale copy dropped",
    "rescale requested while state goes ahead",
    "part moved",
    "finished part moved",
    "part waiting for release",
    "credit at zero",
    "credit limited by time",
    "marker in a backlog",
    "Bye taken",
    "rescale coalesced",
    "slots moved by load",
    "part appeared",
    "part appeared inside a rescale",
    "request at end of stream",
    "request with nothing flowing",
    "request under back-pressure",
    "worker crash",
    "worker crash inside a rescale",
    "coordinator crash",
    "coordinator crash inside a rescale",
    "stale frame dropped",
    "stale letter dropped",
)
"""Cases that a large number of runs must meet, each at least once."""

SNAPSHOT_CASES: Final = (
    "snapshot completed",
    "snapshot inside a rescale",
    "snapshot wanted while state goes ahead",
    "crash before any snapshot",
    "crash with a snapshot in flight",
    "crash between manifest and sink commit",
    "crash during recovery",
    "stopped after a last snapshot",
    "manifest of a run that died before it knew",
    "zombie write fenced",
    "restored at more workers",
    "restored at fewer workers",
    "part restored on another worker",
    "new part in a snapshot",
    "new part in no snapshot at a crash",
    "new part restored",
    "idle part restored",
    "timer restored",
    "enrich in flight restored",
    "collect buffer restored",
    "delta restored",
    "compaction used in a restore",
)
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
            case OpenSlots() if worker is not None and worker.feed(content.region).held_rows:
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
        for feed in worker.feeds:
            if feed.held_rows:
                self.hit("slot held")
            if feed.machine.holds_epochs:
                self.hit("epoch held")
            if full and feed.machine.phase is ReceivingPhase.MARKING:
                self.hit("marker in a backlog")
            if full and feed.waits_for_time:
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
        if worker is not None and worker.feed(parcel.region).machine.phase is ReceivingPhase.STEADY:
            self.hit("parcel before a marker")
        if not (parcel.states or parcel.confirmed):
            self.hit("empty slots shipped")
        else:
            self.hit("keys moved")
        if not parcel.slots:
            self.hit("slot in several parcels")
