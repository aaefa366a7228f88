"""Makes tests/vectors/snapshot-1: snapshots of a small job in format 1. All later versions must load them.

Run ``python -m tests.vectors.golden_snapshot FOLDER`` to make them elsewhere. After a version with this format has been
released, the folder never changes: a new format gets another folder.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from malstrom_py import partitioners
from malstrom_py.codec import Codec
from malstrom_py.data.messages import AbsBarrier, Collect
from malstrom_py.rescale.partitioners import partitioner_of
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.local_store import LocalStore
from malstrom_py.snapshot.log import JobStart, path_of, start_bytes
from malstrom_py.snapshot.manifest import Artefact, Kind, Manifest, PartImage, PlanImage, StepImage, artefact_path
from malstrom_py.state.artefact import merged
from malstrom_py.state.keyed_state import KeyedState

FOLDER: Final = Path(__file__).with_name("snapshot-1")
JOB: Final = "orders"
SLOTS: Final = 8
IDS: Final = tuple(
    SnapshotId(f"20261122T0422{second:02}123456Z-{token}")
    for second, token in ((10, "5e6f7a8b"), (20, "9c0d1e2f"), (30, "1a2b3c4d"))
)

STATE: Final[dict[Any, Any]] = {
    "lamp": 3,
    "chair": 12.5,
    ("north", 7): {"pieces": (1, 2), "since": None},
    7: ["seven", b"\x07"],
    None: True,
    "bed": 2**70,
    "desk": 4,
}
"""What "totals" keeps in the newest snapshot, by key."""

TIMES: Final[dict[Any, list[int]]] = {"lamp": [1_700_000_000_000], "waiting": [5, 6]}
"""When keys of it wake."""

PLAN: Final = PlanImage(
    SLOTS,
    {
        "read": StepImage("source"),
        "epochs": StepImage("generate_epochs"),
        "item": StepImage("key_by", partitioner="stable_hash"),
        "totals": StepImage("stateful_op", keyed=True, stateful=True, migrate="shop.jobs:in_pieces"),
        "out": StepImage("sink"),
    },
)


class Worker:
    """One worker's state of "totals", and its last saved changes."""

    def __init__(self, number: int, checkpointer: StoreCheckpointer) -> None:
        self.number = number
        self.chain: list[Artefact] = []
        self.data: list[bytes] = []
        self.state = KeyedState("totals", Codec())
        self.state.track(slots_of)
        self._checkpointer = checkpointer

    def keep(self, values: dict[Any, Any]) -> None:
        self.state.note(values)
        self.state.values.update(values)

    def save(self, id: SnapshotId, parent: SnapshotId | None) -> None:
        kind: Kind = "full" if parent is None else "delta"
        data = self.state.artefact(AbsBarrier(id, None, parent))  # type: ignore[arg-type]  # it is not asked
        self._save(id, kind, data)

    def compact(self, id: SnapshotId) -> None:
        data = merged(self.data)
        self.chain, self.data = [], []
        self._save(id, "full", data, compacted=True)

    def _save(self, id: SnapshotId, kind: Kind, data: bytes, *, compacted: bool = False) -> None:
        keep = self._checkpointer
        save = keep.save_compacted if compacted else keep.save_snapshot if kind == "full" else keep.save_delta
        digest = save(id, "totals", self.number, data)
        path = artefact_path(id, "totals", self.number, kind, compacted=compacted)
        self.chain.append(Artefact("totals", self.number, kind, id, path, len(data), digest))
        self.data.append(data)
        assert digest == hashlib.sha256(data).hexdigest()


def slots_of(keys: Sequence[Any]) -> Sequence[int]:
    """Return the slots of ``keys`` in this job."""
    return partitioner_of(partitioners.stable_hash, "item").bind(SLOTS, step="item").slots_of(list(keys))


def make(folder: Path) -> None:
    """Make the snapshots in ``folder``: a start, a full snapshot, two deltas, the first chain made into one."""
    store = LocalStore(folder)
    checkpointer = StoreCheckpointer(store, JOB)
    created = "2026-11-22T04:22:00+00:00"
    store.create(f"{JOB}/{path_of(1)}", start_bytes(JobStart(1, 1, "latest", created, "00ff00ff00ff00ff"), JOB))
    workers = [Worker(number, checkpointer) for number in range(2)]

    def owner_of(key: Any) -> Worker:
        return workers[slots_of([key])[0] * len(workers) // SLOTS]

    def keep(values: dict[Any, Any]) -> None:
        for key, value in values.items():
            owner_of(key).keep({key: value})

    keep({"lamp": 1, "chair": 12.5, "gone": 1, None: False, "bed": 2**70, 7: ["seven", b"\x07"]})
    commit(checkpointer, workers, 0)
    # Each key is in another slot, because the order of the keys of a slot in a delta differs between processes.
    keep({"lamp": 3, None: True, ("north", 7): {"pieces": (1, 2), "since": None}})
    owner_of("gone").state.handle(Collect({"gone"}))
    for key, times in TIMES.items():
        owner_of(key).state.note([key])
        for time in times:
            owner_of(key).state.timers.set(key, time)
    commit(checkpointer, workers, 1)
    workers[0].compact(IDS[1])
    keep({"desk": 4})
    commit(checkpointer, workers, 2)
    checkpointer.update_latest(IDS[2])


def commit(checkpointer: StoreCheckpointer, workers: Sequence[Worker], number: int) -> None:
    """Save with the workers, and commit the snapshot of that ``number``."""
    id, parent = IDS[number], IDS[number - 1] if number else None
    for worker in workers:
        worker.save(id, parent)
    days = {f"days/{day}.csv": PartImage({"row": 100 * number + day}, finished=day < number) for day in (1, 2)}
    manifest = Manifest(
        job=JOB,
        id=id,
        sequence=number + 2,
        incarnation=1,
        created=f"2026-11-22T04:22:{10 * (number + 1)}.123456+00:00",
        parent=parent,
        workers=2,
        plan=PLAN,
        artefacts=[one for worker in workers for one in worker.chain],
        sources={"read": days},
        parts={"epochs": {f"read/{part}": (1_700_000_000_000 + number, None) for part in days}},
        frontiers={"item": 1_699_999_999_999 + number},
        sinks={"out": [b'["out-0-%d.parquet"]' % number, b"[]"]},
        pins={"read": {"files": ["days/1.csv", "days/2.csv"]}},
    )
    checkpointer.save_manifest(manifest)
    checkpointer.note_sinks_committed(id)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
