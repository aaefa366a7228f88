"""The contract of sinks: each clause is named by a sink that breaks it, and no earlier clause is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import DataMessage
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.testing import LawError
from malstrom_py.testing.contracts import check_sink
from malstrom_py.worker_context import WorkerInfo
from tests.unit.testing.contracts.tables import CommitsAll, CommitsTwice, Table, TableWriter, again


class ShowsAtOnce(Table):
    def open(self, worker: WorkerInfo) -> TableWriter:
        writer = super().open(worker)
        writer.written = self.rows
        return writer


class ShowsAtPreCommit(Table):
    def open(self, worker: WorkerInfo) -> TableWriter:
        return _ShowingWriter(self, worker.worker)


class _ShowingWriter(TableWriter):
    def pre_commit(self, context: CommitContext) -> Any:
        payload = super().pre_commit(context)
        self.table.commit(context, [payload])
        return payload


class ShowsAtClose(Table):
    def open(self, worker: WorkerInfo) -> TableWriter:
        return _ClosingWriter(self, worker.worker)


class _ClosingWriter(TableWriter):
    def close(self) -> None:
        for payload in list(self.table.staged):
            self.table.rows.extend(self.table.staged[payload])


class NoPayload(Table):
    def open(self, worker: WorkerInfo) -> TableWriter:
        return _SilentWriter(self, worker.worker)


class _SilentWriter(TableWriter):
    def pre_commit(self, context: CommitContext) -> Any:
        super().pre_commit(context)


class CommitsTheFirst(Table):
    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        super().commit(context, payloads[:1])


class Reverses(Table):
    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            self.rows.extend(reversed(self.staged.pop(payload, [])))


class RecoversNothing(CommitsAll):
    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        Table.abort(self, context, payloads)

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        """Clear nothing."""


class Sorts(Table):
    def open(self, worker: WorkerInfo) -> TableWriter:
        return _SortingWriter(self, worker.worker)


class _SortingWriter(TableWriter):
    def write(self, batch: Batch) -> None:
        batch.values.sort(reverse=True)
        super().write(batch)


class Lists:
    """A partitioned sink that keeps its contract."""

    def __init__(self) -> None:
        self.parts: dict[str, list[Any]] = {}

    def assign_part(self, message: DataMessage[Any, Any]) -> Any:
        return f"key-{message.key}"

    def build_part(self, part: str, state: Any) -> ListPart:
        rows = self.parts.setdefault(part, [])
        del rows[state or 0 :]
        return ListPart(rows)

    @property
    def rows(self) -> list[Any]:
        return [row for rows in self.parts.values() for row in rows]


class ListPart:
    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def write(self, batch: Batch) -> None:
        self.rows.extend(batch.values)

    def snapshot(self) -> Any:
        return len(self.rows)

    def close(self) -> None:
        """Do nothing: no resource is open."""


class Wandering(Lists):
    count = 0

    def assign_part(self, message: DataMessage[Any, Any]) -> Any:
        Wandering.count += 1
        return f"part-{Wandering.count}"


class Numbered(Lists):
    def assign_part(self, message: DataMessage[Any, Any]) -> Any:
        return message.key


class Anew(Lists):
    """Opens each part empty, without its earlier rows."""

    def build_part(self, part: str, state: Any) -> ListPart:
        return super().build_part(part, None)


class Objects(Lists):
    def build_part(self, part: str, state: Any) -> ListPart:
        return _ObjectPart(self.parts.setdefault(part, []))


class _ObjectPart(ListPart):
    def snapshot(self) -> Any:
        return object()


class Plainly:
    """A stateless sink."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def build(self, worker: WorkerInfo) -> ListPart:
        return ListPart(self.rows)


class Drops(Plainly):
    def build(self, worker: WorkerInfo) -> ListPart:
        return ListPart([])


@pytest.mark.parametrize("kind", [Table, Lists, Plainly])
def test_a_sink_that_keeps_the_contract_passes(kind: type) -> None:
    check_sink(kind, lambda sink: sink.rows, again=again)


@pytest.mark.parametrize(
    ("kind", "clause"),
    [
        (ShowsAtOnce, "hidden until committed"),
        (ShowsAtPreCommit, "hidden until committed"),
        (ShowsAtClose, "hidden until committed"),
        (NoPayload, "hidden until committed"),
        (CommitsTwice, "commit is idempotent"),
        (CommitsTheFirst, "committed rows are visible"),
        (Reverses, "rows in order"),
        (CommitsAll, "abort leaves nothing"),
        (RecoversNothing, "recover clears"),
        (Sorts, "batches stay unchanged"),
        (Drops, "committed rows are visible"),
        (Wandering, "stable parts"),
        (Numbered, "stable parts"),
        (Objects, "plain position"),
        (Anew, "exact position"),
    ],
)
def test_a_sink_that_breaks_a_clause_is_named_by_it(kind: type, clause: str) -> None:
    with pytest.raises(LawError) as caught:
        check_sink(kind, lambda sink: sink.rows, again=again)
    assert caught.value.law == clause


def test_too_few_values_tell_nothing() -> None:
    with pytest.raises(ValueError, match="at least six"):
        check_sink(Table, lambda sink: sink.rows, values=[1, 2])
