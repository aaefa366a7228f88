"""The wrapper of a user's checkpointer: it checks every result and turns every failure into a `SnapshotError`.

Rule: an exception of the user's code never leaves unchanged, every returned value has the promised type, and a save
succeeds only if the digest or the manifest matches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeVar

from malstrom_py.errors import MalstromError, PlanError, SnapshotError
from malstrom_py.errors.text import describe_error
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot import log
from malstrom_py.snapshot.checkpointer import Checkpointer
from malstrom_py.snapshot.ids import is_snapshot_id
from malstrom_py.snapshot.log import JobStart, LogEntry
from malstrom_py.snapshot.manifest import Manifest, manifest_bytes
from malstrom_py.snapshot.retention import Pruned
from malstrom_py.snapshot.store import Range, ranges_of

T = TypeVar("T")

_ENTRIES: Final = "a list of LogEntry"


class CheckedCheckpointer(Checkpointer):
    """A `Checkpointer` of ``job`` that calls ``inner`` and checks its results."""

    def __init__(self, inner: Checkpointer, job: str) -> None:
        if isinstance(inner, type) or not isinstance(inner, Checkpointer):
            missing = [name for name in methods() if not callable(getattr(inner, name, None))]
            raise PlanError(
                f"snapshots: checkpointer must be an mp.Checkpointer, or a function that makes one from a job's "
                f"name, got "
                f"{type(inner).__name__}, which lacks {', '.join(missing) or 'an instance'}"
            )
        self._inner = inner
        self._job = job

    def claim(self, now_s: float, *, resume: str = log.LATEST) -> JobStart:
        self.entries()  # checks first that the log is not of another job, whose start would be fenced off
        claim: object = self._done("claim", lambda: self._inner.claim(now_s, resume=resume))
        if not isinstance(claim, JobStart):
            raise self._wrong("claim", "a JobStart", claim)
        for name, number in (("incarnation", claim.incarnation), ("sequence", claim.sequence)):
            if type(number) is not int:
                raise self._wrong("claim", "a JobStart", number, f"a JobStart with {name} of type ")
        return claim

    def next_id(self, now_s: float) -> SnapshotId:
        id = self._done("next_id", lambda: self._inner.next_id(now_s))
        if not is_snapshot_id(id):
            end = " that does not have the form of an id" if isinstance(id, str) else ""
            raise self._wrong("next_id", "an id, such as next_snapshot_id makes", id, end=end)
        return id

    def save_snapshot(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        return self._saved("save_snapshot", self._inner.save_snapshot, id, operator, partition, data)

    def save_delta(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        return self._saved("save_delta", self._inner.save_delta, id, operator, partition, data)

    def save_compacted(self, id: SnapshotId, operator: str, partition: int, data: bytes) -> str:
        return self._saved("save_compacted", self._inner.save_compacted, id, operator, partition, data)

    def save_manifest(self, manifest: Manifest) -> None:
        try:
            manifest.check()
        except ValueError as error:
            raise SnapshotError(f"{self._who}: snapshot {manifest.id} is not committed: {error}") from error
        self._done("save_manifest", lambda: self._inner.save_manifest(manifest))
        # After this method returns the sinks commit, which cannot be undone.
        if _stored(self.load_manifest(manifest.id)) != _stored(manifest):
            raise SnapshotError(
                f"{self._who}: save_manifest has changed snapshot {manifest.id}: load_manifest returns a different "
                f"manifest"
            )

    def load_manifest(self, id: SnapshotId) -> Manifest:
        manifest: object = self._done("load_manifest", lambda: self._inner.load_manifest(id))
        if not isinstance(manifest, Manifest):
            raise self._wrong("load_manifest", "a Manifest", manifest)
        return manifest

    def load_artifact(self, path: str) -> bytes:
        """Return the bytes of one artefact; database drivers may return a memoryview or bytearray."""
        data: object = self._done("load_artifact", lambda: self._inner.load_artifact(path))
        return self._bytes("load_artifact", "bytes", data)

    def load_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        """Return ranges of the bytes of one artefact, cut from all of it if the user's class has no such method."""
        load = getattr(self._inner, "load_ranges", None)
        if load is None:
            return ranges_of(self.load_artifact(path), ranges)
        what, found = "a list of bytes, one for each range", self._done("load_ranges", lambda: load(path, ranges))
        if not isinstance(found, list | tuple) or len(found) != len(ranges):
            raise self._wrong("load_ranges", what, found)
        return [self._bytes("load_ranges", what, data) for data in found]

    def update_latest(self, id: SnapshotId) -> None:
        self._done("update_latest", lambda: self._inner.update_latest(id))

    def read_latest(self) -> SnapshotId | None:
        return self._id_or_none("read_latest", self._done("read_latest", self._inner.read_latest))

    def latest_hint(self) -> SnapshotId | None:
        return self._id_or_none("latest_hint", self._done("latest_hint", self._inner.latest_hint))

    def list_checkpoints(self) -> list[SnapshotId]:
        ids = self._list("list_checkpoints", self._done("list_checkpoints", self._inner.list_checkpoints), str)
        return [SnapshotId(id) for id in ids]

    def delete_checkpoint(self, id: SnapshotId) -> None:
        self._done("delete_checkpoint", lambda: self._inner.delete_checkpoint(id))

    def sinks_committed(self, id: SnapshotId) -> bool:
        noted: object = self._done("sinks_committed", lambda: self._inner.sinks_committed(id))
        if not isinstance(noted, int):  # bool is a subclass, and some databases have no bool
            raise self._wrong("sinks_committed", "True or False", noted)
        return bool(noted)

    def note_sinks_committed(self, id: SnapshotId) -> None:
        self._done("note_sinks_committed", lambda: self._inner.note_sinks_committed(id))

    def prune(self, keep: int, grace_s: float, now_s: float, *, spare: Collection[str] = ()) -> Pruned:
        pruned: object = self._done("prune", lambda: self._inner.prune(keep, grace_s, now_s, spare=spare))
        if not isinstance(pruned, Pruned):
            raise self._wrong("prune", "a Pruned", pruned)
        return pruned

    def entries(self) -> list[LogEntry]:
        """Return the log. `SnapshotError`: it is the log of another job."""
        entries = self._list("entries", self._done("entries", self._inner.entries), LogEntry)
        for entry in entries:
            if type(entry.sequence) is not int:
                raise self._wrong("entries", _ENTRIES, entry.sequence, "an entry with a sequence of type ")
            if not isinstance(entry.content, Manifest | JobStart | None):
                raise self._wrong("entries", _ENTRIES, entry.content, "an entry with a content of type ")
            if entry.manifest is not None and entry.manifest.job != self._job:
                raise SnapshotError(
                    f"{self._who} keeps snapshots of job {entry.manifest.job!r}: a checkpointer is for one job. Give "
                    f"each job its own, or a function that makes one from the job's name"
                )
        return entries

    def files(self) -> list[str]:
        return self._list("files", self._done("files", self._inner.files), str)

    def note_whole(self, id: SnapshotId) -> None:
        """Note that a snapshot has been verified, if the user's class has this method of `StoreCheckpointer`."""
        note = getattr(self._inner, "note_whole", None)
        if note is not None:
            self._done("note_whole", lambda: note(id))

    @property
    def _who(self) -> str:
        return f"job {self._job!r}: {self!r}"

    def _saved(
        self,
        method: str,
        save: Callable[[SnapshotId, str, int, bytes], str],
        id: SnapshotId,
        operator: str,
        partition: int,
        data: bytes,
    ) -> str:
        digest: object = self._done(method, lambda: save(id, operator, partition, data))
        if not isinstance(digest, str):
            raise self._wrong(method, "a digest as text", digest)
        if digest != hashlib.sha256(data).hexdigest():
            raise SnapshotError(
                f"{self._who}: {method} of step {operator!r} on worker {partition} returned a digest that is not the "
                f"SHA-256, in hex, of the {len(data)} bytes to save"
            )
        return digest

    def _id_or_none(self, method: str, id: object) -> SnapshotId | None:
        if id is not None and not isinstance(id, str):
            raise self._wrong(method, "an id as text, or None", id)
        return None if id is None else SnapshotId(id)

    def _bytes(self, method: str, what: str, data: object) -> bytes:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise self._wrong(method, what, data)
        return bytes(data)

    def _list(self, method: str, given: object, of: type[T]) -> list[T]:
        what = f"a list of {of.__name__}"
        if not isinstance(given, list | tuple):
            raise self._wrong(method, what, given)
        for item in given:
            if not isinstance(item, of):
                raise self._wrong(method, what, item, "one with an item of type ")
        return list(given)

    def _wrong(self, method: str, what: str, got: object, start: str = "", *, end: str = "") -> SnapshotError:
        return SnapshotError(f"{self._who}: {method} returns {what}, got {start}{type(got).__name__}{end}")

    def _done(self, method: str, work: Callable[[], T]) -> T:
        try:
            return work()
        except MalstromError:
            raise
        except Exception as error:
            raise SnapshotError(f"{self._who}: {method} failed with {describe_error(error)}") from error

    def __repr__(self) -> str:
        """Return only the name of the class: the repr of a user's object may contain a password."""
        return type(self._inner).__qualname__


def _stored(manifest: Manifest) -> bytes | None:
    """Return ``manifest`` in its stored form, in which a list equals a tuple; None if it is invalid."""
    try:
        return manifest_bytes(manifest)
    except (MalstromError, ValueError):
        return None


def methods() -> list[str]:
    """Return the sorted names of the methods of a `Checkpointer`.

    >>> methods()[:3]
    ['claim', 'delete_checkpoint', 'entries']
    """
    return sorted(name for name in vars(Checkpointer) if not name.startswith("_"))
