"""``Memory``: a sink whose rows can be looked at when the job is done. For tests, notebooks and small jobs.

Rule: rows stand in the order in which they arrived, as far as there is one. Writers in one process share a count;
between processes a key's rows are ordered by the version of the routing table under which they were written.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Final

from malstrom_py.batches import Batch
from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.worker_info import WorkerInfo


class Memory:
    """Keeps what the job committed: ``items``, the values as they arrived; ``by_key``, key -> values in order.

    Transactional: a job that fails leaves nothing here, and a job that is run again starts empty. Where workers are
    other processes the rows reach this object, in the program that started the job, at the commit.

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
        self._staged: dict[bytes, list[_Arrived]] | None = {}
        # A key may have been written by one worker, and by another since it moved there.
        self._arrivals = itertools.count()

    def __getstate__(self) -> dict[str, Any]:
        """A copy, for a worker in another process, takes no rows along; what it pre-commits carries them."""
        return {"items": [], "by_key": {}, "_staged": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._arrivals = itertools.count()

    def open(self, worker: WorkerInfo) -> _MemoryWriter:
        return _MemoryWriter(self._staged, worker, self._arrivals)

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        arrived = [row for payload in payloads for row in self._taken(payload)]
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
            self._staged.clear()
        self.items, self.by_key = [], {}

    def _taken(self, payload: bytes) -> list[_Arrived]:
        if payload.startswith(_ROWS):
            # It comes from a worker of this very job, which runs the user's own functions.
            rows: list[_Arrived] = pickle.loads(payload[len(_ROWS) :])
            return rows
        return (self._staged or {}).pop(payload, [])


_ROWS: Final = b"rows:"
"""What a payload begins with that carries its rows."""

_Arrived = tuple[int, int, Batch]
"""A batch, with the version of the table and its number among all that arrived."""


class _MemoryWriter:
    def __init__(self, staged: dict[bytes, list[_Arrived]] | None, worker: WorkerInfo, arrivals: Iterator[int]) -> None:
        self._version = 0
        self._staged = staged
        self._worker = worker
        self._arrivals = arrivals
        self._written: list[_Arrived] = []

    def write(self, batch: Batch) -> None:
        if batch.keys is not None:
            try:
                set(batch.keys)  # by_key will need them; told here, before anything is visible
            except TypeError:
                raise SinkError(
                    "a key cannot be hashed: return something immutable from key_by, "
                    "for instance a tuple instead of a list"
                ) from None
        self._written.append((self._version, next(self._arrivals), batch))

    def moved(self, version: int) -> None:
        """In one process the count alone tells the order."""
        if self._staged is None:
            self._version = version

    def pre_commit(self, context: CommitContext) -> bytes:
        payload = f"{context.snapshot}/{self._worker.step}/{self._worker.worker}".encode()
        written, self._written = self._written, []
        if self._staged is None:
            import cloudpickle

            try:
                rows: bytes = cloudpickle.dumps(written, protocol=5)
            except Exception as error:
                raise SinkError(
                    f"sinks.Memory brings its rows to the program that started the job, and one of them cannot be "
                    f"pickled ({type(error).__name__}: {error}): map it to plain values before the sink"
                ) from error
            return _ROWS + rows
        self._staged[payload] = written
        return payload

    def close(self) -> None:
        self._written = []
