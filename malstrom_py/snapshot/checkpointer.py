"""The checkpointer: writes, finds and reads the snapshots of one job, in any store.

Rule: a snapshot exists once its entry in the log exists, and that entry is created after everything it lists. Nothing
is visible before, and nothing is needed afterwards (S3). Workers save and load artefacts; only the coordinator claims,
commits and prunes.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from malstrom_py.errors import FencedError, SnapshotError
from malstrom_py.errors.text import count_others
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot import log
from malstrom_py.snapshot.ids import id_of_start, is_snapshot_id, next_snapshot_id
from malstrom_py.snapshot.log import JobStart, Log, LogEntry
from malstrom_py.snapshot.manifest import Kind, Manifest, artefact_path, manifest_bytes
from malstrom_py.snapshot.retention import ARTEFACTS, COMMITS, Pruned, Pruning, files_of
from malstrom_py.snapshot.store import Range, Store, joined, place_of, put_pieces, read_ranges
from malstrom_py.snapshot.verification import faults_of
from malstrom_py.validation import check_name

T = TypeVar("T")

LATEST: Final = "_latest"
_TRIES: Final = 100


@runtime_checkable
class Checkpointer(Protocol):
    """Protocol: the storage of the snapshots of one job. `Snapshots` makes one for a folder or an object store.

    Pass your own as ``Snapshots(checkpointer=…)`` to keep snapshots elsewhere, such as in a database. The coordinator
    calls it from several threads. On Ray each worker has a copy, sent by cloudpickle, or calls the factory. Test it
    with ``malstrom_py.testing.contracts.check_checkpointer``. Data is durable when a saving method returns.
    ``now_s``: seconds since 1970.

    A failure to write, read or find something is a `SnapshotError` that names it and the remedy. A start that a newer
    one has fenced off gets a `FencedError`.

    Optional: ``load_ranges(path, ranges)`` returns the bytes from ``start`` to ``end`` of each range of an artefact, in
    order, as a list. Each worker of a job that resumes then reads only the state that it owns.

    >>> from malstrom_py.snapshot.store import MemoryStore
    >>> isinstance(StoreCheckpointer(MemoryStore(), "orders"), Checkpointer)
    True
    """

    def claim(self, now_s: float, *, resume: str = log.LATEST) -> JobStart:
        """Record a start of the job under the next number of the log, with the next incarnation; fence older starts.

        ``resume``: the snapshot to resume from: "latest", "none" or an id.
        """
        ...

    def next_id(self, now_s: float) -> SnapshotId:
        """Return an id that is larger than all ids ever saved here, committed or not, and later than all claims.

        `malstrom_py.snapshot.ids.next_snapshot_id` makes one from the largest existing id, such as `id_of_start`.
        """
        ...

    def save_snapshot(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        """Save all keyed state of ``operator`` on worker ``partition``; return its SHA-256 in hex.

        Its path is ``artefact_path(id, operator, partition, "full")`` of `malstrom_py.snapshot.manifest`.
        """
        ...

    def save_delta(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        """Save the changes since the parent snapshot; the path ends with ``.delta``."""
        ...

    def save_compacted(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        """Save a compacted chain that ends with snapshot ``id``; the path ends with ``.compacted.full``."""
        ...

    def save_manifest(self, manifest: Manifest) -> None:
        """Commit a snapshot whose artefacts are saved, under ``manifest.sequence``, the next number of the log.

        `FencedError`: a newer start has taken that number. `SnapshotError`: another snapshot has it, it is not the next
        number, the id is not the largest, or an artefact is missing. Saving the same manifest again succeeds.
        After a `SnapshotError` it is unknown whether the manifest is saved: retry with the same manifest, or restart.
        """
        ...

    def load_manifest(self, id: SnapshotId) -> Manifest:
        """Return the manifest of one snapshot."""
        ...

    def load_artifact(self, path: str) -> bytes:
        """Return the bytes of one artefact. The caller verifies their digest."""
        ...

    def update_latest(self, id: SnapshotId) -> None:
        """Record the newest snapshot, as a hint."""
        ...

    def read_latest(self) -> SnapshotId | None:
        """Return the snapshot of the hint, or the newest if the hint is invalid. None: no snapshot exists."""
        ...

    def latest_hint(self) -> SnapshotId | None:
        """Return the hint of `update_latest`, whether its snapshot exists or not; None: missing or damaged."""
        ...

    def list_checkpoints(self) -> list[SnapshotId]:
        """Return the snapshots whose manifest can be read, oldest first."""
        ...

    def delete_checkpoint(self, id: SnapshotId) -> None:
        """Remove one snapshot and the files that only it needs.

        `SnapshotError`: another snapshot needs its artefacts, or it is the last entry of the log.
        """
        ...

    def sinks_committed(self, id: SnapshotId) -> bool:
        """Return whether `note_sinks_committed` has recorded that all sinks have committed a snapshot."""
        ...

    def note_sinks_committed(self, id: SnapshotId) -> None:
        """Record that all sinks have committed a snapshot."""
        ...

    def prune(self, keep: int, grace_s: float, now_s: float, *, spare: Collection[str] = ()) -> Pruned:
        """Remove all that neither the newest ``keep`` whole snapshots nor the savepoints need; return what was removed.

        Kept are claims, artefacts at the paths in ``spare``, which the next snapshot will list, and artefacts of no
        snapshot that are younger than ``grace_s``. `malstrom_py.snapshot.retention.Pruning` selects what to remove.
        """
        ...

    def entries(self) -> list[LogEntry]:
        """Return the log, starts and snapshots, oldest first; an entry that cannot be read has a ``fault``."""
        ...

    def files(self) -> list[str]:
        """Return the sorted paths of all files: artefacts, and ``commits/<id>`` where sinks have committed."""
        ...


class StoreCheckpointer(Checkpointer):
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
        """Snapshots written or verified by this object, whose digests are not verified again at each pruning."""

    def artefact_path(self, id: SnapshotId, operator: str, partition: int, kind: Kind) -> str:
        """Return the path of an artefact of `save_snapshot` ("full") or `save_delta` ("delta")."""
        return artefact_path(id, operator, partition, kind)

    def next_id(self, now_s: float) -> SnapshotId:
        contents = [entry.content for entry in self.entries()]
        used = [content.id for content in contents if isinstance(content, Manifest)]
        used += [id_of_start(content.created) for content in contents if isinstance(content, JobStart)]
        used += [SnapshotId(parts[1]) for parts in (path.split("/") for path in self.files()) if len(parts) > 1]
        return next_snapshot_id(now_s, max(filter(is_snapshot_id, used), default=None))

    def claim(self, now_s: float, *, resume: str = log.LATEST) -> JobStart:
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
                        f"{place_of(self.store)} replaced a file that it was asked to create only if missing, so two "
                        f"starts of job {self.job!r} could both commit. Use a store that has conditional writes"
                    )
                return claim
        raise SnapshotError(
            f"job {self.job!r}: {_TRIES} times in a row another start of the job took over in "
            f"{place_of(self.store)}: find out "
            f"what starts the job repeatedly"
        )

    def save_snapshot(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        return self._save(artefact_path(id, operator, partition, "full"), [data])

    def save_delta(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        return self._save(artefact_path(id, operator, partition, "delta"), [data])

    def save_compacted(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        return self._save(artefact_path(id, operator, partition, "full", compacted=True), [data])

    def save_manifest(self, manifest: Manifest) -> None:
        what = f"job {self.job!r}: snapshot {manifest.id}"
        try:
            data = manifest_bytes(manifest)
        except ValueError as error:
            raise SnapshotError(f"{what} is not committed: {error}") from error
        self._check_place(what, manifest)
        if not self._log.append(manifest.sequence, data):
            raise self._taken(what, manifest)
        self.note_whole(manifest.id)

    def load_manifest(self, id: SnapshotId) -> Manifest:
        entries = self._log.entries()
        for entry in reversed(entries):
            if entry.manifest is not None and entry.manifest.id == id:
                return entry.manifest
        there = ", ".join(entry.manifest.id for entry in entries if entry.manifest) or "none"
        faults = log.joined_faults(entries)
        raise SnapshotError(
            f"job {self.job!r} has no snapshot {id} in {place_of(self.store)}; its snapshots are: {there}{faults}"
        )

    def load_artifact(self, path: str) -> bytes:
        return self._loaded(path, self.store.get)

    def load_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        """Return ranges of the bytes of one artefact."""
        return self._loaded(path, lambda full: read_ranges(self.store, full, ranges))

    def update_latest(self, id: SnapshotId) -> None:
        self.store.put(self._full(LATEST), f"{id}\n".encode("ascii"))

    def read_latest(self) -> SnapshotId | None:
        there = self.list_checkpoints()
        hint = self.latest_hint()
        return hint if hint in there else there[-1] if there else None

    def latest_hint(self) -> SnapshotId | None:
        try:
            text = self.store.get(self._full(LATEST)).decode("ascii", "replace").strip()
        except FileNotFoundError:
            return None
        return SnapshotId(text) if is_snapshot_id(text) else None

    def list_checkpoints(self) -> list[SnapshotId]:
        return [entry.manifest.id for entry in self.entries() if entry.manifest is not None]

    def delete_checkpoint(self, id: SnapshotId) -> None:
        mine = self.load_manifest(id)
        entries = self.entries()
        if mine.sequence == entries[-1].sequence:
            raise SnapshotError(
                f"job {self.job!r}: snapshot {id} is the newest, from which the job would resume: it can be removed "
                f"when there is a newer one"
            )
        others = [entry.manifest for entry in entries if entry.manifest is not None and entry.manifest.id != id]
        for other in others:
            if any(artefact.snapshot == id for artefact in other.artefacts):
                raise SnapshotError(
                    f"job {self.job!r}: snapshot {other.id} needs artefacts of {id}: remove {other.id} first, or call "
                    f"prune, which removes only what no snapshot needs"
                )
        self._remove([mine], files_of(mine, others, self.files()))

    def sinks_committed(self, id: SnapshotId) -> bool:
        try:
            self.store.get(self._full(f"{COMMITS}/{id}"))
        except FileNotFoundError:
            return False
        return True

    def note_sinks_committed(self, id: SnapshotId) -> None:
        """Record that all sinks have committed a snapshot, as a hint: they may be asked to commit again."""
        self.store.put(self._full(f"{COMMITS}/{id}"), b"committed\n")

    def prune(self, keep: int, grace_s: float, now_s: float, *, spare: Collection[str] = ()) -> Pruned:
        pruning = Pruning(self.entries(), self.files(), self._is_whole, keep=keep)
        dropped = pruning.snapshots()
        files = [path for path in pruning.files(dropped, made_before_s=now_s - grace_s) if path not in spare]
        self._remove(dropped, files)
        return Pruned(tuple(manifest.id for manifest in dropped), tuple(files))

    def entries(self) -> list[LogEntry]:
        return self._log.entries()

    def entry_after(self, sequence: int) -> LogEntry | None:
        """Return the entry of the log that follows ``sequence``, if any."""
        return self._log.read(sequence + 1)

    def files(self) -> list[str]:
        folder = f"{self.job}/"
        return [path.removeprefix(folder) for path in self.store.list(self.job)]

    def note_whole(self, id: SnapshotId) -> None:
        """Note that all artefacts of a snapshot have been written or verified, so that pruning need not read them."""
        with self._lock:
            self._whole.add(id)

    def _loaded(self, path: str, read: Callable[[str], T]) -> T:
        if not path.startswith(f"{ARTEFACTS}/"):
            raise SnapshotError(f"job {self.job!r}: {path!r} is not the path of an artefact")
        try:
            return read(self._full(path))
        except FileNotFoundError:
            raise SnapshotError(f"{path} is missing") from None

    def save_pieces(
        self,
        id: SnapshotId,
        operator: str,
        partition: int,
        kind: Kind,
        pieces: Iterable[bytes],
        *,
        compacted: bool = False,
    ) -> str:
        """Do as `save_snapshot` or `save_delta`, of data in ``pieces``. ``compacted``: as `save_compacted`, also of a
        delta.
        """
        return self._save(artefact_path(id, operator, partition, kind, compacted=compacted), pieces)

    def _save(self, path: str, pieces: Iterable[bytes]) -> str:
        digest = hashlib.sha256()

        def digested() -> Iterator[bytes]:
            for piece in pieces:
                digest.update(piece)
                yield piece

        put_pieces(self.store, self._full(path), digested())
        return digest.hexdigest()

    def _full(self, path: str) -> str:
        return f"{self.job}/{path}"

    def _check_place(self, what: str, manifest: Manifest) -> None:
        """`SnapshotError` unless ``manifest`` is the next in the log, all its artefacts exist, and its id is new."""
        if manifest.job != self.job:
            raise SnapshotError(f"{what} is of job {manifest.job!r}, and cannot be committed here")
        files = self.files()
        missing = {artefact.path for artefact in manifest.artefacts}.difference(files)
        if missing:
            raise SnapshotError(
                f"{what} is not committed: {min(missing)} is missing, and {count_others(len(missing) - 1)}"
            )
        numbers = log.sequences_in(files)
        if manifest.sequence in numbers:
            return  # `append` finds out whether this manifest or another entry has the number
        if numbers[-1:] != [manifest.sequence - 1]:
            raise SnapshotError(
                f"{what} is not committed: its log does not end with entry {manifest.sequence - 1}, so another program "
                f"has changed files in {place_of(self.store)}. Restart the job"
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
                f"job {self.job!r}: incarnation {manifest.incarnation} cannot commit snapshot {manifest.id}, because "
                f"incarnation {content.incarnation} has taken over. End this incarnation; the newer one resumes from "
                f"the last snapshot"
            )
        return SnapshotError(
            f"{what} is not committed: entry {manifest.sequence} of the log was taken after this start of the job had "
            f"read the log. Restart the job"
        )

    def _is_whole(self, manifest: Manifest) -> bool:
        with self._lock:
            known = manifest.id in self._whole
        return known or not any(faults_of(self, manifest))

    def _remove(self, snapshots: Collection[Manifest], files: Collection[str]) -> None:
        """Remove the entries of the log first: a file that no entry lists may be missing, a listed file may not."""
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


def save_pieces(
    checkpointer: Checkpointer,
    id: SnapshotId,
    operator: str,
    partition: int,
    kind: Kind,
    pieces: Callable[[], Iterable[bytes]],
    *,
    compacted: bool = False,
) -> tuple[str, int]:
    """Save an artefact in the ``pieces`` that each call yields; they are joined for a checkpointer of the user. Return
    its digest and its bytes.
    """
    size = 0

    def measured() -> Iterator[bytes]:
        nonlocal size
        for piece in pieces():
            size += len(piece)
            yield piece

    if isinstance(checkpointer, StoreCheckpointer):
        sha256 = checkpointer.save_pieces(id, operator, partition, kind, measured(), compacted=compacted)
    else:
        save = checkpointer.save_delta if kind == "delta" else checkpointer.save_snapshot
        sha256 = (checkpointer.save_compacted if compacted else save)(id, operator, partition, joined(measured()))
    return sha256, size
