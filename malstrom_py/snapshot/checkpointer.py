"""The checkpointer: what writes, finds and reads the snapshots of one job, over any store.

Rule: a snapshot is there once its entry in the log is, and that is created only after all it lists; nothing before
that is seen by anyone, and nothing after it is needed (S3). Workers save and load artefacts; the coordinator alone
claims, commits and prunes.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Final, Protocol, runtime_checkable

from malstrom_py.errors import FencedError, SnapshotError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot import log
from malstrom_py.snapshot.ids import is_snapshot_id, next_snapshot_id
from malstrom_py.snapshot.log import JobStart, Log, LogEntry
from malstrom_py.snapshot.manifest import Kind, Manifest, artefact_path, manifest_bytes
from malstrom_py.snapshot.retention import ARTEFACTS, COMMITS, Pruned, Pruning, files_of
from malstrom_py.snapshot.store import Store, place_of
from malstrom_py.snapshot.verification import faults_of
from malstrom_py.validation import check_name

LATEST: Final = "_latest"
_TRIES: Final = 100


@runtime_checkable
class Checkpointer(Protocol):
    """Keep the snapshots of one job: a protocol. `Snapshots` makes one for a folder or an object store.

    Pass your own as ``Snapshots(checkpointer=…)`` to keep snapshots elsewhere, such as in a database. The coordinator
    calls it from its thread and from threads of its own; on Ray each worker has a copy, sent by cloudpickle, or calls
    the factory. Hold it against ``malstrom_py.testing.contracts.check_checkpointer``. What is saved is durable when the
    method returns. ``now_s``: seconds since 1970.

    What cannot be written, read or found is a `SnapshotError` that says which, and what to do; a start that a newer one
    has fenced off gets a `FencedError`.

    >>> from malstrom_py.snapshot.store import MemoryStore
    >>> isinstance(StoreCheckpointer(MemoryStore(), "orders"), Checkpointer)
    True
    """

    def claim(self, now_s: float, *, resume: str = log.LATEST) -> JobStart:
        """Take the next number of the log for a start of the job, with the next incarnation: older starts are fenced.

        ``resume``: what this start goes on from: "latest", "none" or the id of a snapshot.
        """
        ...

    def next_id(self, now_s: float) -> SnapshotId:
        """Return an id that is larger than all that were ever saved here, also if they were never committed.

        `malstrom_py.snapshot.ids.next_snapshot_id` makes one from the largest that there is.
        """
        ...

    def save_snapshot(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        """Keep all keyed state of ``operator`` on worker ``partition``; return its SHA-256 in hex.

        Its path is ``artefact_path(id, operator, partition, "full")`` of `malstrom_py.snapshot.manifest`.
        """
        ...

    def save_delta(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        """Keep what has changed since the parent; the end of its path is ``.delta``."""
        ...

    def save_compacted(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        """Keep a chain that ends with snapshot ``id``, made into one; the end of its path is ``.compacted.full``."""
        ...

    def save_manifest(self, manifest: Manifest) -> None:
        """Commit a snapshot whose artefacts are saved, under ``manifest.sequence``, the next number of the log.

        `FencedError`: a newer start has taken that number. `SnapshotError`: it is taken by another snapshot, it is not
        the next, its id is not the largest, or an artefact is missing. The same manifest again is no error.
        After a `SnapshotError` it may be there or not: save the same manifest again until it is, or start again.
        """
        ...

    def load_manifest(self, id: SnapshotId) -> Manifest:
        """Return the manifest of one snapshot."""
        ...

    def load_artifact(self, path: str) -> bytes:
        """Return the bytes of one artefact. The caller compares them with their digest."""
        ...

    def update_latest(self, id: SnapshotId) -> None:
        """Note the newest snapshot, as a hint."""
        ...

    def read_latest(self) -> SnapshotId | None:
        """Return the snapshot of the hint; where that is of no use, the newest. None: there is no snapshot."""
        ...

    def latest_hint(self) -> SnapshotId | None:
        """Return what `update_latest` noted, whether there is such a snapshot or not; None: missing, or damaged."""
        ...

    def list_checkpoints(self) -> list[SnapshotId]:
        """List the snapshots that have a manifest that can be read, the oldest first."""
        ...

    def delete_checkpoint(self, id: SnapshotId) -> None:
        """Remove one snapshot, with what it alone needs.

        `SnapshotError`: another needs what it wrote, or the log ends with it.
        """
        ...

    def sinks_committed(self, id: SnapshotId) -> bool:
        """Return whether `note_sinks_committed` has noted that all sinks have committed a snapshot."""
        ...

    def note_sinks_committed(self, id: SnapshotId) -> None:
        """Note that all sinks have committed a snapshot."""
        ...

    def prune(self, keep: int, grace_s: float, now_s: float, *, spare: Collection[str] = ()) -> Pruned:
        """Remove what neither the newest ``keep`` whole snapshots nor the savepoints need; return what was removed.

        Claims stay. So do artefacts at the paths in ``spare``, which the next snapshot will list, and those of no
        snapshot that are younger than ``grace_s``. `malstrom_py.snapshot.retention.Pruning` decides what can go.
        """
        ...

    def entries(self) -> list[LogEntry]:
        """Return the log, claims and snapshots, oldest first; an entry that cannot be read has a ``fault``."""
        ...

    def files(self) -> list[str]:
        """Return the paths of all that is kept, sorted: artefacts, and ``commits/<id>`` where sinks have committed."""
        ...


class StoreCheckpointer:
    """The `Checkpointer` of ``job`` in ``store``.

    >>> from malstrom_py.snapshot.store import MemoryStore
    >>> checkpointer = StoreCheckpointer(MemoryStore(), "orders")
    >>> claim = checkpointer.claim(now_s=0.0)
    >>> claim.incarnation, claim.sequence, checkpointer.read_latest()
    (1, 1, None)
    """

    def __init__(self, store: Store, job: str) -> None:
        self.store = store
        self.job = check_name(job, "job")
        self._log = Log(store, job)
        self._lock = threading.Lock()
        self._whole: set[SnapshotId] = set()
        """Snapshots that were written here, or have been verified: their digests are not compared at each pruning."""

    def artefact_path(self, id: SnapshotId, operator: str, partition: int, kind: Kind) -> str:
        """Where `save_snapshot` ("full") and `save_delta` ("delta") put an artefact: `Artefact.path`."""
        return artefact_path(id, operator, partition, kind)

    def next_id(self, now_s: float) -> SnapshotId:
        """An id for a new snapshot, larger than all that were ever used here, also by what was never committed."""
        used = [entry.manifest.id for entry in self.entries() if entry.manifest]
        used += [SnapshotId(parts[1]) for parts in (path.split("/") for path in self.files()) if len(parts) > 1]
        return next_snapshot_id(now_s, max(filter(is_snapshot_id, used), default=None))

    def claim(self, now_s: float, *, resume: str = log.LATEST) -> JobStart:
        """Take the next number of the log for a start of the job."""
        created = datetime.fromtimestamp(now_s, UTC).isoformat()
        for _ in range(_TRIES):
            entries = self._log.entries()
            claim = JobStart(
                incarnation=log.next_incarnation(entries),
                sequence=entries[-1].sequence + 1 if entries else 1,
                resume=resume,
                created=created,
                token=secrets.token_hex(8),
            )
            data = log.start_bytes(claim, self.job)
            if self._log.append(claim.sequence, data):
                if not self._log.keeps_what_is_there(claim.sequence, data):
                    raise SnapshotError(
                        f"{place_of(self.store)} replaces what is there, though it is told to write only where nothing "
                        f"is: two starts of job {self.job!r} could both commit. Use a store that has conditional writes"
                    )
                return claim
        raise SnapshotError(
            f"job {self.job!r}: {_TRIES} times another start of it has come first in {place_of(self.store)}: see what "
            f"starts it again and again"
        )

    def save_snapshot(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        """Keep all keyed state of an operator on one worker."""
        return self._save(artefact_path(id, operator, partition, "full"), data)

    def save_delta(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        """Keep what has changed of it."""
        return self._save(artefact_path(id, operator, partition, "delta"), data)

    def save_compacted(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        """Keep a chain made into one."""
        return self._save(artefact_path(id, operator, partition, "full", compacted=True), data)

    def save_manifest(self, manifest: Manifest) -> None:
        """Commit a snapshot."""
        what = f"job {self.job!r}: snapshot {manifest.id}"
        try:
            data = manifest_bytes(manifest)
        except ValueError as error:
            raise SnapshotError(f"{what} is not committed: {error}") from error
        self._check_place(what, manifest)
        if not self._log.append(manifest.sequence, data):
            raise self._taken(what, manifest)
        with self._lock:
            self._whole.add(manifest.id)

    def load_manifest(self, id: SnapshotId) -> Manifest:
        """The manifest of one snapshot."""
        entries = self._log.entries()
        for entry in reversed(entries):
            if entry.manifest is not None and entry.manifest.id == id:
                return entry.manifest
        there = ", ".join(entry.manifest.id for entry in entries if entry.manifest) or "none"
        faults = log.joined_faults(entries)
        raise SnapshotError(
            f"job {self.job!r} has no snapshot {id} in {place_of(self.store)}; there are: {there}{faults}"
        )

    def load_artifact(self, path: str) -> bytes:
        """The bytes of one artefact."""
        if not path.startswith(f"{ARTEFACTS}/"):
            raise SnapshotError(f"job {self.job!r}: {path!r} is no artefact")
        try:
            return self.store.get(self._full(path))
        except FileNotFoundError:
            raise SnapshotError(f"{path} is missing") from None

    def update_latest(self, id: SnapshotId) -> None:
        """Note the newest snapshot."""
        self.store.put(self._full(LATEST), f"{id}\n".encode("ascii"))

    def read_latest(self) -> SnapshotId | None:
        """The snapshot of the hint, or the newest."""
        there = self.list_checkpoints()
        hint = self.latest_hint()
        return hint if hint in there else there[-1] if there else None

    def latest_hint(self) -> SnapshotId | None:
        """What `update_latest` noted."""
        try:
            text = self.store.get(self._full(LATEST)).decode("ascii", "replace").strip()
        except FileNotFoundError:
            return None
        return SnapshotId(text) if is_snapshot_id(text) else None

    def list_checkpoints(self) -> list[SnapshotId]:
        """The snapshots that have a manifest."""
        return [entry.manifest.id for entry in self.entries() if entry.manifest is not None]

    def delete_checkpoint(self, id: SnapshotId) -> None:
        """Remove one snapshot."""
        mine = self.load_manifest(id)
        entries = self.entries()
        if mine.sequence == entries[-1].sequence:
            raise SnapshotError(
                f"job {self.job!r}: snapshot {id} is the last that was written, and is what the job would go on from: "
                f"it can be removed once there is a newer one"
            )
        others = [entry.manifest for entry in entries if entry.manifest is not None and entry.manifest.id != id]
        for other in others:
            if any(artefact.snapshot == id for artefact in other.artefacts):
                raise SnapshotError(
                    f"job {self.job!r}: snapshot {other.id} needs what {id} wrote: remove that one first, or let prune "
                    f"remove what nothing needs"
                )
        self._remove([mine], files_of(mine, others, self.files()))

    def sinks_committed(self, id: SnapshotId) -> bool:
        """Whether it has been noted that all sinks have committed a snapshot."""
        try:
            self.store.get(self._full(f"{COMMITS}/{id}"))
        except FileNotFoundError:
            return False
        return True

    def note_sinks_committed(self, id: SnapshotId) -> None:
        """Note that all sinks have committed a snapshot, as a hint: they may be asked again."""
        self.store.put(self._full(f"{COMMITS}/{id}"), b"committed\n")

    def prune(self, keep: int, grace_s: float, now_s: float, *, spare: Collection[str] = ()) -> Pruned:
        """Remove what is not needed by the newest ``keep`` whole snapshots and the savepoints; what was removed.

        ``grace_s``: how old files are that belong to no snapshot before they go; ``spare``: paths of artefacts that
        the next snapshot will list.
        """
        pruning = Pruning(self.entries(), self.files(), self._is_whole, keep=keep)
        dropped = pruning.snapshots()
        files = [path for path in pruning.files(dropped, made_before_s=now_s - grace_s) if path not in spare]
        self._remove(dropped, files)
        return Pruned(tuple(manifest.id for manifest in dropped), tuple(files))

    def entries(self) -> list[LogEntry]:
        """The log, oldest first."""
        return self._log.entries()

    def files(self) -> list[str]:
        """The paths of all files of the job."""
        folder = f"{self.job}/"
        return [path.removeprefix(folder) for path in self.store.list(self.job)]

    def _save(self, path: str, data: bytes) -> str:
        self.store.put(self._full(path), data)
        return hashlib.sha256(data).hexdigest()

    def _full(self, path: str) -> str:
        return f"{self.job}/{path}"

    def _check_place(self, what: str, manifest: Manifest) -> None:
        """`SnapshotError` if ``manifest`` would not be the next in the log, whole, and with an id of its own."""
        if manifest.job != self.job:
            raise SnapshotError(f"{what} is of job {manifest.job!r}, and cannot be committed here")
        files = self.files()
        missing = {artefact.path for artefact in manifest.artefacts}.difference(files)
        if missing:
            raise SnapshotError(f"{what} is not committed: {min(missing)} is missing, and {len(missing) - 1} others")
        numbers = log.sequences_in(files)
        if manifest.sequence in numbers:
            return  # taken, which is told when it is tried, unless it is this one
        if numbers[-1:] != [manifest.sequence - 1]:
            raise SnapshotError(
                f"{what} is not committed: its log does not end with entry {manifest.sequence - 1}, so somebody has "
                f"changed files in {place_of(self.store)}. Start the job again"
            )
        for number in reversed(numbers):
            entry = self._log.read(number)
            if entry is not None and entry.manifest is not None:
                if entry.manifest.id >= manifest.id:
                    raise SnapshotError(f"{what} is not committed: its id is not after {entry.manifest.id}")
                return

    def _taken(self, what: str, manifest: Manifest) -> SnapshotError:
        entry = self._log.read(manifest.sequence)
        content = None if entry is None else entry.content
        if content is not None and content.incarnation > manifest.incarnation:
            return FencedError(
                f"job {self.job!r}: incarnation {manifest.incarnation} cannot commit snapshot {manifest.id}, for "
                f"incarnation {content.incarnation} has taken over. Let this one end; the newer one goes on from the "
                f"last snapshot"
            )
        return SnapshotError(
            f"{what} is not committed: entry {manifest.sequence} of the log is taken by what this start of the job did "
            f"not know to be there. Start it again"
        )

    def _is_whole(self, manifest: Manifest) -> bool:
        with self._lock:
            known = manifest.id in self._whole
        if not known and not any(faults_of(self, manifest)):
            with self._lock:
                self._whole.add(manifest.id)
            return True
        return known

    def _remove(self, snapshots: Collection[Manifest], files: Collection[str]) -> None:
        """Entries of the log first: what nothing lists any more may be missing, what is listed may not."""
        for manifest in snapshots:
            self._log.remove(manifest.sequence)
        if self.latest_hint() in {manifest.id for manifest in snapshots}:
            self.store.delete(self._full(LATEST))
        for path in files:
            self.store.delete(self._full(path))

    def __repr__(self) -> str:
        return f"StoreCheckpointer({self.store!r}, {self.job!r})"

    def __str__(self) -> str:
        return place_of(self.store)

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self.store, "job": self.job}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]
