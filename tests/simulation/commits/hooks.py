"""The points of a life: calls of its sink, of its store of snapshots, and of the file system by its sink.

`Truth` notes what the sink was given and has pre-committed, which manifests are durable, and which commits returned.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from malstrom_py.connectors.lake import table
from malstrom_py.data.batch import Batch
from malstrom_py.local_files import RunLock
from malstrom_py.object_stores import Bucket
from malstrom_py.sinks import output_record
from malstrom_py.sinks.base import CommitContext, SnapshotId, TransactionalSink, TransactionalWriter
from malstrom_py.snapshot.log import FOLDER, JobStart, entry_of
from malstrom_py.snapshot.manifest import Manifest
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.worker_context import WorkerInfo
from malstrom_py.workers.engine import snapshot_capture
from tests.simulation.commits.lives import at, doing, life_here, on_disk

STEP: Final = "out"

Row = tuple[int, int, int]
"""The number of a record, its key, and how many records of the key have been seen with it."""


def row_of(value: Any) -> Row:
    """Return a row of the sink as a tuple."""
    return int(value["n"]), int(value["key"]), int(value["seen"])


class Truth:
    """What must be visible: of durable manifests, which payloads name which rows."""

    def __init__(self) -> None:
        self.pre_committed: dict[tuple[str, bytes], list[Row]] = defaultdict(list)
        self.durable: dict[str, list[Row]] = {}
        self.committed: set[str] = set()
        self.final: str | None = None

    def became_durable(self, manifest: Manifest) -> None:
        """Note the rows of a manifest that is durable now."""
        payloads = set(manifest.sinks.get(STEP, ()))
        rows = [row for payload in payloads for row in self.pre_committed[manifest.id, payload]]
        self.durable[manifest.id] = rows
        if manifest.result is not None:
            self.final = manifest.id


class WatchedStore(MemoryStore):
    """A store whose operations are points. ``truth`` hears of durable manifests."""

    def __init__(self, job: str, truth: Truth) -> None:
        super().__init__()
        self._job = job
        self._truth = truth

    def put(self, path: str, data: bytes) -> None:
        with doing("store"):
            super().put(path, data)

    def create(self, path: str, data: bytes) -> bool:
        content = None
        if path.startswith(f"{self._job}/{FOLDER}/"):
            content = entry_of(data, job=self._job, sequence=int(path[-17:-5])).content
        with doing("claim" if isinstance(content, JobStart) else "manifest"):
            is_new = super().create(path, data)
            if is_new and isinstance(content, Manifest):
                self._truth.became_durable(content)
        return is_new

    def get(self, path: str) -> bytes:
        with doing("store"):
            return super().get(path)

    def list(self, folder: str) -> list[str]:
        with doing("store"):
            return super().list(folder)

    def delete(self, path: str) -> None:
        with doing("store"):
            super().delete(path)


class WatchedSink:
    """``sink``, whose calls are points."""

    def __init__(self, sink: TransactionalSink, truth: Truth) -> None:
        self._sink = sink
        self._truth = truth

    def __getattr__(self, name: str) -> Any:
        if name in {"_sink", "_truth"}:
            raise AttributeError(name)
        return getattr(self._sink, name)

    def open(self, worker: WorkerInfo) -> WatchedWriter:
        with doing("open"):
            return WatchedWriter(self._sink.open(worker), self._truth)

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        with doing("commit"):
            self._sink.commit(context, payloads)
            self._truth.committed.add(context.snapshot)

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        with doing("abort"):
            self._sink.abort(context, payloads)

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        with doing("recover"):
            self._sink.recover(context, committed)


class WatchedWriter:
    """``writer``, whose calls are points."""

    def __init__(self, writer: TransactionalWriter, truth: Truth) -> None:
        self._writer = writer
        self._truth = truth
        self._rows: list[Row] = []

    def __getattr__(self, name: str) -> Any:
        if name == "_writer":
            raise AttributeError(name)
        return getattr(self._writer, name)

    def write(self, batch: Batch) -> None:
        with doing("write"):
            self._rows += map(row_of, batch.values)
            self._writer.write(batch)

    def pre_commit(self, context: CommitContext) -> bytes:
        with doing("pre_commit"):
            payload = self._writer.pre_commit(context)
            self._truth.pre_committed[context.snapshot, payload] += self._rows
            self._rows = []
        return payload

    def close(self) -> None:
        with doing("close"):
            self._writer.close()


_DISK: Final = ("link", "mkdir", "rename", "replace", "rmdir", "unlink")


_REQUESTS: Final = ("copy", "create", "delete", "get", "list", "stat", "upload")
"""The requests of an object store."""


@contextmanager
def watched_disk() -> Iterator[None]:
    """Make points of what lives change in the file system and ask of object stores; nothing waits for the disk, nor
    before a store is asked again.
    """
    hold: Callable[..., None] = RunLock.hold

    def noted(lock: RunLock, *, shared: bool) -> None:
        life = life_here()
        if life is not None:
            if life.is_dead:
                at("lock", "before")
            life.locks.append(lock)
        hold(lock, shared=shared)

    requests: dict[str, Any] = {name: on_disk(getattr(Bucket, name)) for name in _REQUESTS}
    patches: dict[str, Any] = {name: on_disk(getattr(os, name)) for name in _DISK}
    with (
        mock.patch.multiple(os, fsync=lambda descriptor: None, **patches),
        mock.patch.object(snapshot_capture, "sleep"),
        mock.patch.object(table, "_PAUSE_S", 0.0),
        mock.patch.object(output_record, "_PAUSE_S", 0.0),
        mock.patch.object(RunLock, "hold", noted),
        mock.patch.multiple(Bucket, **requests),
    ):
        yield
