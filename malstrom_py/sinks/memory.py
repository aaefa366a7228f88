"""``Memory``: a sink whose rows can be looked at when the job is done. For tests, notebooks and small jobs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from malstrom_py.batches import Batch
from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.worker_info import WorkerInfo


class Memory:
    """Keeps what the job committed: ``items``, the values as they arrived; ``by_key``, key -> values in order.

    Transactional: a job that fails leaves nothing here, and a job that is run again starts empty.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job, out = mp.Job("docs"), Memory()
    >>> job.source("words", sources.Memory(["ant", "bee", "asp"])).key_by("letter", lambda w: w[0]).sink("out", out)
    >>> _ = mp.run(job)
    >>> out.items, out.by_key
    (['ant', 'bee', 'asp'], {'a': ['ant', 'asp'], 'b': ['bee']})
    """

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.by_key: dict[Any, list[Any]] = {}
        self._staged: dict[bytes, list[_Arrived]] = {}
        # A key may have been written by one worker, and by another since it moved there.
        self._arrivals = itertools.count()

    def open(self, worker: WorkerInfo) -> _MemoryWriter:
        return _MemoryWriter(self._staged, worker, self._arrivals)

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        arrived = [pair for payload in payloads for pair in self._staged.pop(payload, [])]
        for _, batch in sorted(arrived, key=itemgetter(0)):
            self.items.extend(batch.values)
            if batch.keys is not None:
                for key, value in zip(batch.keys, batch.values, strict=True):
                    self.by_key.setdefault(key, []).append(value)

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            self._staged.pop(payload, None)

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        self._staged.clear()
        self.items, self.by_key = [], {}


_Arrived = tuple[int, Batch]
"""A batch, and its number among all that arrived."""


class _MemoryWriter:
    def __init__(self, staged: dict[bytes, list[_Arrived]], worker: WorkerInfo, arrivals: Iterator[int]) -> None:
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
        self._written.append((next(self._arrivals), batch))

    def pre_commit(self, context: CommitContext) -> bytes:
        payload = f"{context.snapshot}/{self._worker.step}/{self._worker.worker}".encode()
        self._staged[payload] = self._written
        self._written = []
        return payload

    def close(self) -> None:
        self._written = []
