"""A transactional sink that keeps its contract; the tests of the contract break it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Self

from malstrom_py.data.batch import Batch
from malstrom_py.sinks.base import CommitContext, SnapshotId, is_left_over
from malstrom_py.worker_context import WorkerInfo


class Target:
    """The target of a table, shared by all writers."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.staged: dict[bytes, list[Any]] = {}
        self.committed: list[str] = []


class TableWriter:
    numbers = itertools.count()

    def __init__(self, table: Table, worker: int) -> None:
        self.table = table
        self.worker = worker
        self.written: list[Any] = []
        self.number = next(self.numbers)

    def write(self, batch: Batch) -> None:
        self.written.extend(batch.values)

    def pre_commit(self, context: CommitContext) -> Any:
        payload = f"{context.snapshot}/{self.number}".encode()
        self.table.staged[payload], self.written = self.written, []
        return payload

    def close(self) -> None:
        """Do nothing: no resource is open."""


class Table:
    """A transactional sink that keeps its contract. Subclasses change one method, or the class of its writers."""

    writer = TableWriter

    def __init__(self, target: Target | None = None) -> None:
        self.target = target or Target()

    def again(self) -> Self:
        """Return a copy, as in another process."""
        return type(self)(self.target)

    @property
    def rows(self) -> list[Any]:
        return self.target.rows

    @property
    def staged(self) -> dict[bytes, list[Any]]:
        return self.target.staged

    def open(self, worker: WorkerInfo) -> TableWriter:
        return self.writer(self, worker.worker)

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            self.rows.extend(self.staged.pop(payload, []))

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            self.staged.pop(payload, None)

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        for payload in list(self.staged):
            if is_left_over(payload.decode().partition("/")[0], context, committed):
                del self.staged[payload]


class CommitsTwice(Table):
    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            self.rows.extend(self.staged.get(payload, []))


class CommitsAll(Table):
    """Publish staged rows of this snapshot or an earlier one."""

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        super().commit(context, [staged for staged in self.staged if staged.decode() < f"{context.snapshot}~"])

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Discard nothing."""


def again(sink: Any) -> Any:
    return sink.again()
