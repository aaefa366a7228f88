"""Snapshots for tests: a small job of one step on two workers, and the actions of its coordinator."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.log import JobStart
from malstrom_py.snapshot.manifest import Artefact, Kind, Manifest, PartImage, PlanImage, StepImage
from malstrom_py.snapshot.verification import faults_of

JOB = "orders"
PLAN = PlanImage(64, {"read": StepImage("source"), "totals": StepImage("sum", keyed=True, stateful=True)})


def artefact(
    id: SnapshotId, data: bytes, *, kind: Kind = "full", operator: str = "totals", worker: int = 0
) -> Artefact:
    path = f"artefacts/{id}/{operator}-{worker}.{kind}"
    return Artefact(operator, worker, kind, id, path, len(data), hashlib.sha256(data).hexdigest())


def manifest(id: SnapshotId, claim: JobStart, sequence: int, artefacts: Sequence[Artefact] = ()) -> Manifest:
    return Manifest(
        job=JOB,
        id=id,
        sequence=sequence,
        incarnation=claim.incarnation,
        created="2026-11-22T04:22:42+00:00",
        workers=2,
        plan=PLAN,
        artefacts=tuple(artefacts),
        sources={"read": {"a": PartImage(7), "b": PartImage({"row": 3}, finished=True)}},
        frontiers={"totals": 1_000},
        sinks={"out": (b"rows-of-0", b"rows-of-1")},
    )


@dataclass
class Start:
    """One start of the job: takes snapshots one after the other, as its coordinator and its workers do."""

    checkpointer: StoreCheckpointer
    now_s: float = 1e9
    resume: str = "latest"
    claim: JobStart = field(init=False)
    sequence: int = field(init=False)
    last: Manifest | None = field(init=False, default=None)
    ids: list[SnapshotId] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.claim = self.checkpointer.claim(self.now_s, resume=self.resume)
        self.sequence = self.claim.sequence

    def new_id(self) -> SnapshotId:
        self.now_s += 10
        return self.checkpointer.next_id(self.now_s)

    def save(self, id: SnapshotId, contents: Sequence[bytes], *, delta: bool = False) -> list[Artefact]:
        """Save the state of each worker, or its changes; return all artefacts that the manifest lists."""
        chains = list(self.last.artefacts) if delta and self.last is not None else []
        for worker, data in enumerate(contents):
            saved = self.checkpointer.save_delta if delta else self.checkpointer.save_snapshot
            mine = artefact(id, data, kind="delta" if delta else "full", worker=worker)
            assert saved(id, "totals", worker, data) == mine.sha256
            chains.append(mine)
        return chains

    def commit(self, made: Manifest) -> Manifest:
        """Commit, as the coordinator does after all workers have reported."""
        self.checkpointer.save_manifest(made)
        self.checkpointer.update_latest(made.id)
        self.checkpointer.note_sinks_committed(made.id)
        self.sequence, self.last = made.sequence, made
        self.ids.append(made.id)
        return made

    def take(self, *contents: bytes, delta: bool = False) -> Manifest:
        """Take one snapshot, from beginning to end."""
        id = self.new_id()
        return self.commit(manifest(id, self.claim, self.sequence + 1, self.save(id, contents, delta=delta)))


def restored(checkpointer: StoreCheckpointer, found: Manifest) -> dict[tuple[str, int], list[bytes]]:
    """Read the state as the workers of the next start do, with every digest verified."""
    assert list(faults_of(checkpointer, found)) == []
    chains: dict[tuple[str, int], list[bytes]] = {}
    for key, chain in found.chains().items():
        chains[key] = [checkpointer.load_artifact(one.path) for one in chain]
    return chains
