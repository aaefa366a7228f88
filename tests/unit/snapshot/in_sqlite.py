"""A checkpointer as a user writes one: the snapshots of a job in one SQLite database, without a base class of ours."""

from __future__ import annotations

import hashlib
import pickle
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from malstrom_py import FencedError, SnapshotError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.ids import is_snapshot_id, next_snapshot_id
from malstrom_py.snapshot.log import JobStart, LogEntry
from malstrom_py.snapshot.manifest import Kind, Manifest, artefact_path
from malstrom_py.snapshot.retention import Pruned, Pruning, files_of

_TABLES = """
CREATE TABLE IF NOT EXISTS log (sequence INTEGER PRIMARY KEY, content BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, data BLOB NOT NULL);
"""


class SqliteCheckpointer:
    """The snapshots of ``job`` in a separate database in ``folder``."""

    def __init__(self, folder: Path, job: str) -> None:
        self._path = folder / f"{job}.db"
        with closing(sqlite3.connect(self._path, timeout=60.0)) as database:
            database.executescript(_TABLES)

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """Open one exclusive writing transaction."""
        with closing(sqlite3.connect(self._path, timeout=60.0, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            yield database
            database.execute("COMMIT")

    def claim(self, now_s: float, *, resume: str = "latest") -> JobStart:
        with self._database() as database:
            log = _log_of(database)
            starts = [entry.content.incarnation for entry in log if isinstance(entry.content, JobStart)]
            claim = JobStart(max(starts, default=0) + 1, log[-1].sequence + 1 if log else 1, resume)
            database.execute("INSERT INTO log VALUES (?, ?)", (claim.sequence, pickle.dumps(claim)))
        return claim

    def next_id(self, now_s: float) -> SnapshotId:
        used = [manifest.id for manifest in self._manifests()]
        used += [SnapshotId(path.split("/")[1]) for path in self.files() if "/" in path]
        return next_snapshot_id(now_s, max(filter(is_snapshot_id, used), default=None))

    def save_snapshot(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        return self._save(artefact_path(id, operator, partition, "full"), data)

    def save_delta(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        return self._save(artefact_path(id, operator, partition, "delta"), data)

    def save_compacted(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        kind: Kind = "full"
        return self._save(artefact_path(id, operator, partition, kind, compacted=True), data)

    def save_manifest(self, manifest: Manifest) -> None:
        with self._database() as database:
            log, files = _log_of(database), _files_of(database)
            there = next((entry.content for entry in log if entry.sequence == manifest.sequence), None)
            if there == manifest:
                return
            if there is not None and there.incarnation > manifest.incarnation:
                raise FencedError(f"incarnation {there.incarnation} has taken over")
            last = log[-1].sequence if log else 0
            largest = max((entry.manifest.id for entry in log if entry.manifest is not None), default="")
            missing = [one.path for one in manifest.artefacts if one.path not in files]
            if there is not None or manifest.sequence != last + 1 or manifest.id <= largest or missing:
                raise SnapshotError(f"snapshot {manifest.id} is not committed: the log ends with {last}; {missing}")
            database.execute("INSERT INTO log VALUES (?, ?)", (manifest.sequence, pickle.dumps(manifest)))

    def load_manifest(self, id: SnapshotId) -> Manifest:
        for manifest in self._manifests():
            if manifest.id == id:
                return manifest
        raise SnapshotError(f"{self._path} does not have snapshot {id}")

    def load_artifact(self, path: str) -> bytes:
        data = self._read(path) if path.startswith("artefacts/") else None
        if data is None:
            raise SnapshotError(f"{self._path} does not have artefact {path!r}")
        return data

    def update_latest(self, id: SnapshotId) -> None:
        self._save("_latest", id.encode())

    def read_latest(self) -> SnapshotId | None:
        there, hint = self.list_checkpoints(), self.latest_hint()
        return hint if hint in there else there[-1] if there else None

    def latest_hint(self) -> SnapshotId | None:
        data = self._read("_latest")
        return None if data is None else SnapshotId(data.decode())

    def list_checkpoints(self) -> list[SnapshotId]:
        return [manifest.id for manifest in self._manifests()]

    def delete_checkpoint(self, id: SnapshotId) -> None:
        mine, entries = self.load_manifest(id), self.entries()
        others = [entry.manifest for entry in entries if entry.manifest is not None and entry.manifest.id != id]
        needed = any(artefact.snapshot == id for other in others for artefact in other.artefacts)
        if needed or entries[-1].sequence == mine.sequence:
            raise SnapshotError(f"snapshot {id} is needed")
        self._remove([mine], files_of(mine, others, self.files()))

    def sinks_committed(self, id: SnapshotId) -> bool:
        return self._read(f"commits/{id}") is not None

    def note_sinks_committed(self, id: SnapshotId) -> None:
        self._save(f"commits/{id}", b"committed")

    def prune(self, keep: int, grace_s: float, now_s: float, *, spare: Collection[str] = ()) -> Pruned:
        pruning = Pruning(self.entries(), self.files(), lambda manifest: True, keep=keep)
        dropped = pruning.snapshots()
        files = [path for path in pruning.files(dropped, made_before_s=now_s - grace_s) if path not in spare]
        self._remove(dropped, files)
        return Pruned(tuple(manifest.id for manifest in dropped), tuple(files))

    def entries(self) -> list[LogEntry]:
        with self._database() as database:
            return _log_of(database)

    def files(self) -> list[str]:
        with self._database() as database:
            return _files_of(database)

    def _manifests(self) -> list[Manifest]:
        return [entry.manifest for entry in self.entries() if entry.manifest is not None]

    def _save(self, path: str, data: bytes) -> str:
        with self._database() as database:
            database.execute("INSERT OR REPLACE INTO files VALUES (?, ?)", (path, data))
        return hashlib.sha256(data).hexdigest()

    def _read(self, path: str) -> bytes | None:
        with self._database() as database:
            row = database.execute("SELECT data FROM files WHERE path = ?", (path,)).fetchone()
        return None if row is None else bytes(row[0])

    def _remove(self, snapshots: Collection[Manifest], files: Collection[str]) -> None:
        with self._database() as database:
            database.executemany("DELETE FROM log WHERE sequence = ?", [(one.sequence,) for one in snapshots])
            database.executemany("DELETE FROM files WHERE path = ?", [(path,) for path in files])

    def __repr__(self) -> str:
        return f"SqliteCheckpointer({str(self._path)!r})"


def _log_of(database: sqlite3.Connection) -> list[LogEntry]:
    rows = database.execute("SELECT sequence, content FROM log ORDER BY sequence")
    return [LogEntry(sequence, pickle.loads(content)) for sequence, content in rows]


def _files_of(database: sqlite3.Connection) -> list[str]:
    return [path for (path,) in database.execute("SELECT path FROM files ORDER BY path")]
