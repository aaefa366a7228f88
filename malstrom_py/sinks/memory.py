"""``Memory``: a sink that keeps rows in memory, to be read when the job has ended. For tests, notebooks, small jobs.

Rule: rows are in the order of their arrival. Writers in one process share a counter; between processes, only a key's
rows are ordered, by the version of the routing table under which they were written.

Rule (S8): what may have been in a store is data, never code: there, rows are in the form of the codec at rest.
"""

from __future__ import annotations

import itertools
import logging
import pickle
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Final

from malstrom_py.capture import frames
from malstrom_py.codec import Codec, TypeTable
from malstrom_py.data.batch import Batch
from malstrom_py.errors import CodecError, SinkError, lasting
from malstrom_py.errors.text import describe_error
from malstrom_py.sinks.base import BaseTransactionalSink, BaseTransactionalWriter, CommitContext, SnapshotId
from malstrom_py.worker_context import WorkerInfo


class Memory(BaseTransactionalSink):
    """Keeps the committed rows: ``items``, the values in order of arrival; ``by_key``, key -> values in order.

    Transactional: a job that fails leaves no rows, and a new run of the job starts empty. With snapshots, the rows of a
    snapshot appear at its commit, and stay when the job is restored from it or a later one. If workers are other
    processes, the rows are in the manifests until the commit, which brings them to this object in the program that
    started the job: they must be values that a snapshot can hold. If another program started the job, this object holds
    only what was committed in this program.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job, out = mp.Job("docs"), Memory()
    >>> job.source("words", sources.Memory(["ant", "bee", "asp"])).key_by("letter", lambda w: w[0]).sink("out", out)
    >>> _ = mp.run(job)
    >>> out.items, out.by_key
    (['ant', 'bee', 'asp'], {'a': ['ant', 'asp'], 'b': ['bee']})
    """

    commits_in_driver = True

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.by_key: dict[Any, list[Any]] = {}
        self._staged: dict[bytes, _Staged] | None = {}
        self._committed: set[tuple[str, str, SnapshotId]] = set()
        self._types: TypeTable | None = None
        # Orders the rows of a key that one worker wrote before the key moved, and another worker after that.
        self._arrivals = itertools.count()

    def __getstate__(self) -> dict[str, Any]:
        """Copy the sink to another process without its rows; the payloads of the copy carry new rows."""
        return {"items": [], "by_key": {}, "_staged": None, "_committed": set(), "_types": self._types}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._arrivals = itertools.count()

    def use_types(self, types: TypeTable) -> None:
        """Store rows of these classes too."""
        self._types = types

    def open(self, worker: WorkerInfo) -> _MemoryWriter:
        return _MemoryWriter(self._staged, worker, self._arrivals, Codec(self._types))

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        known = (context.job, context.step, context.snapshot)
        if known in self._committed:
            return
        self._committed.add(known)
        arrived = [row for payload in payloads for row in self._taken(context, payload)]
        for _, _, batch in sorted(arrived, key=itemgetter(0, 1)):
            self.items.extend(batch.values)
            if batch.keys is not None:
                for key, value in zip(batch.keys, batch.values, strict=True):
                    self.by_key.setdefault(key, []).append(value)

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            if self._staged is not None:
                self._staged.pop(payload, None)

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        if self._staged is not None:
            for payload, (snapshot, _) in list(self._staged.items()):
                if snapshot not in committed:
                    del self._staged[payload]
        if not committed:
            self.items, self.by_key = [], {}
            self._committed.clear()

    def _taken(self, context: CommitContext, payload: bytes) -> list[_Arrived]:
        if payload.startswith(_STORED):
            return _decoded(payload[len(_STORED) :], Codec(self._types), context.step)
        if payload.startswith(_PICKLED):
            return _unpickled(context, payload[len(_PICKLED) :])
        _, arrived = (self._staged or {}).pop(payload, (None, []))
        return arrived


_STORED: Final = b"stored:"
"""The prefix of a payload that contains rows in the form of the codec at rest."""

_PICKLED: Final = b"rows:"
"""The prefix of a payload that contains pickled rows. Earlier versions kept them in manifests too."""

_log = logging.getLogger("malstrom_py.sinks.memory")

_Arrived = tuple[int, int, Batch]
"""A batch, with the version of the routing table and its number in the order of arrival."""

_Staged = tuple[SnapshotId, list[_Arrived]]
"""The pre-committed batches of one writer, with their snapshot."""


def _encoded(written: Sequence[_Arrived], codec: Codec, step: str) -> bytes:
    rows = [(version, number, frames.encode(batch, codec, step)) for version, number, batch in written]
    return codec.encode_at_rest(rows, step=step)


def _decoded(stored: bytes, codec: Codec, step: str) -> list[_Arrived]:
    try:
        rows = codec.decode_at_rest(stored, step=step)
        return [(version, number, frames.decode(memoryview(batch), codec)) for version, number, batch in rows]
    except CodecError:
        raise
    except Exception as error:
        raise SinkError(
            f"the rows of sinks.Memory in the snapshot are damaged ({describe_error(error)}): resume from another one"
        ) from error


def _pickled(written: Sequence[_Arrived]) -> bytes:
    import cloudpickle

    try:
        rows: bytes = cloudpickle.dumps(written, protocol=5)
    except Exception as error:
        raise SinkError(
            f"sinks.Memory sends its rows to the program that started the job, and a row cannot be pickled "
            f"({describe_error(error)}): map it to plain values before the sink"
        ) from error
    return rows


def _unpickled(context: CommitContext, rows: bytes) -> list[_Arrived]:
    """Return the rows of a worker of this job, which has run the user's functions anyway; never those of a store."""
    if context.stored:
        _log.warning(
            "job %s, step %s: snapshot %s holds pickled rows, of an earlier version or of a user who can write "
            "the store. A pickle may run code, so sinks.Memory leaves these rows out; the state of the job is restored",
            context.job,
            context.step,
            context.snapshot,
        )
        return []
    arrived: list[_Arrived] = pickle.loads(rows)
    return arrived


class _MemoryWriter(BaseTransactionalWriter):
    def __init__(
        self, staged: dict[bytes, _Staged] | None, worker: WorkerInfo, arrivals: Iterator[int], codec: Codec
    ) -> None:
        self._version = 0
        self._codec = codec
        self._staged = staged
        self._worker = worker
        self._arrivals = arrivals
        self._written: list[_Arrived] = []

    def write(self, batch: Batch) -> None:
        if batch.keys is not None:
            try:
                set(batch.keys)  # by_key needs hashable keys: fail here, before any row is visible.
            except TypeError:
                raise SinkError(
                    "a key cannot be hashed: return something immutable from key_by, "
                    "for instance a tuple instead of a list"
                ) from None
        self._written.append((self._version, next(self._arrivals), batch))

    def moved(self, version: int) -> None:
        """Note the version of the routing table; in one process the counter alone orders the rows."""
        if self._staged is None:
            self._version = version

    def pre_commit(self, context: CommitContext) -> bytes:
        written, self._written = self._written, []
        if self._staged is None:
            return _STORED + self._stored(written) if context.stored else _PICKLED + _pickled(written)
        # The counter makes the payload unique: a worker may leave, and a new one take its number, within a snapshot.
        payload = f"{context.snapshot}/{self._worker.step}/{self._worker.worker}/{next(self._arrivals)}".encode()
        self._staged[payload] = (context.snapshot, written)
        return payload

    def close(self) -> None:
        self._written = []

    def _stored(self, written: Sequence[_Arrived]) -> bytes:
        try:
            return _encoded(written, self._codec, self._worker.step)
        except CodecError as error:
            text = f"sinks.Memory keeps rows in the snapshot until its commit. {self._blame(written) or error}"
            raise lasting(SinkError(text)) from error

    def _blame(self, written: Sequence[_Arrived]) -> CodecError | None:
        """Return the error that names the key and the type of the row: the first one names the column."""
        for _, _, batch in written:
            keys = [None] * len(batch) if batch.keys is None else batch.keys
            try:
                self._codec.encode_rows_at_rest(list(zip(keys, batch.values, strict=True)), step=self._worker.step)
            except CodecError as error:
                return error
        return None
