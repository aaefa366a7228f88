"""The contract of sinks: each clause is named by a sink that breaks it, and no earlier clause is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import DataMessage
from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.testing import LawError
from malstrom_py.testing.contracts import check_sink
from malstrom_py.worker_context import WorkerInfo
from tests.unit.testing.contracts.tables import CommitsAll, CommitsTwice, Table, TableWriter, Target, again


class ShowsAtOnce(Table):
    def open(self, worker: WorkerInfo) -> TableWriter:
        writer = super().open(worker)
        writer.written = self.rows
        return writer


class _ShowingWriter(TableWriter):
    def pre_commit(self, context: CommitContext) -> Any:
        payload = super().pre_commit(context)
        self.table.commit(context, [payload])
        return payload


class ShowsAtPreCommit(Table):
    writer = _ShowingWriter


class _ClosingWriter(TableWriter):
    def close(self) -> None:
        for payload in list(self.table.staged):
            self.table.rows.extend(self.table.staged[payload])


class ShowsAtClose(Table):
    writer = _ClosingWriter


class _SilentWriter(TableWriter):
    def pre_commit(self, context: CommitContext) -> Any:
        super().pre_commit(context)


class NoPayload(Table):
    writer = _SilentWriter


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


class _SortingWriter(TableWriter):
    def write(self, batch: Batch) -> None:
        batch.values.sort(reverse=True)
        super().write(batch)


class Sorts(Table):
    writer = _SortingWriter


class _OneSlotWriter(TableWriter):
    last = b""

    def pre_commit(self, context: CommitContext) -> Any:
        self.table.staged.pop(self.last, None)
        self.last = super().pre_commit(context)
        return self.last


class ForgetsItsFirst(Table):
    """Pre-commits into one place, replacing rows that wait there."""

    writer = _OneSlotWriter


class ByWorker(Table):
    """Identifies the writer by the number of its worker."""

    def open(self, worker: WorkerInfo) -> TableWriter:
        writer = super().open(worker)
        writer.number = worker.worker
        return writer


class KnowsTheLastCommit(CommitsTwice):
    """Skips a commit that is not the last one."""

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        if self.target.committed[-1:] != [context.snapshot]:
            self.target.committed.append(context.snapshot)
            super().commit(context, payloads)


class KnowsItsOwnCommits(CommitsTwice):
    """Keeps the committed snapshots in the object."""

    def __init__(self, target: Target | None = None) -> None:
        super().__init__(target)
        self.known: set[str] = set()

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        if context.snapshot not in self.known:
            self.known.add(context.snapshot)
            super().commit(context, payloads)


class KeepsToItself(Table):
    """No other object finds its pre-committed rows."""

    def __init__(self, target: Target | None = None) -> None:
        super().__init__(target)
        self.own: dict[bytes, list[Any]] = {}

    @property
    def staged(self) -> dict[bytes, list[Any]]:
        return self.own


class AbortsAll(Table):
    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        self.staged.clear()


class RecoversAll(Table):
    """Clears all rows that wait for their commit."""

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        self.staged.clear()


class RecoversWhatWaits(CommitsAll):
    """Keeps rows that belong to no manifest, and shows them with the next commit."""

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        Table.abort(self, context, payloads)

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        if not committed:
            self.staged.clear()


class RecoversTheNewer(Table):
    """Discards rows of all snapshots without a manifest, also of those of a later start."""

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        for payload in list(self.staged):
            if payload.decode().partition("/")[0] not in committed:
                del self.staged[payload]


class EmptiesItself(Table):
    """Takes away all rows when a job starts from the beginning, also if that call is late."""

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        super().recover(context, committed)
        if not committed and "20200101T000003000000Z-0000" in self.target.committed:
            self.rows.clear()

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        super().commit(context, payloads)
        self.target.committed.append(context.snapshot)


class EndsForGood(Table):
    """Takes no rows after the last commit of a job."""

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        if "the end" not in self.target.committed:
            super().commit(context, payloads)
        if context.final:
            self.target.committed.append("the end")


class KnowsTheIncarnation(Table):
    """Takes rows of an incarnation that is larger than that of the job's end."""

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        if self.target.committed and context.incarnation <= int(self.target.committed[-1]):
            return
        super().commit(context, payloads)
        if context.final:
            self.target.committed.append(str(context.incarnation))


class RefusesToStart(Table):
    """Refuses a target that has rows."""

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        if self.rows and not committed and context.snapshot > "20200101T000001000000Z-0000":
            raise SinkError("the target is not empty")
        super().recover(context, committed)


class TakesBack(Table):
    """Treats rows without a manifest as uncommitted."""

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        super().commit(context, payloads)
        self.target.committed.append(context.snapshot)

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        super().recover(context, committed)
        if set(self.target.committed) - set(committed):
            self.rows.clear()


class AtTheEnd(Table):
    """Replaces the target with all rows of all snapshots, at the final commit."""

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        waiting = self.staged.setdefault(b"~", [])
        for payload in payloads:
            waiting.extend(self.staged.pop(payload, []))
        self.target.committed.append(context.snapshot)
        if context.final and waiting:
            self.rows[:] = waiting
            waiting.clear()

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        waiting = self.staged.pop(b"~", [])
        super().recover(context, committed)
        is_late = any(snapshot > context.snapshot for snapshot in self.target.committed)
        self.staged[b"~"] = waiting if committed or is_late else []


class ForgetsTheEarly(AtTheEnd):
    """Shows only the rows of the last snapshot."""

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        if any(payload in self.staged for payload in payloads):
            self.staged[b"~"] = []
        super().commit(context, payloads)


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
        (ForgetsItsFirst, "committed rows are visible"),
        (ByWorker, "committed rows are visible"),
        (KnowsTheLastCommit, "commit is idempotent"),
        (KnowsItsOwnCommits, "another process continues"),
        (KeepsToItself, "another process continues"),
        (AbortsAll, "abort leaves nothing"),
        (RecoversAll, "recover keeps what is committed"),
        (RecoversWhatWaits, "recover clears"),
        (RecoversTheNewer, "recover keeps what is newer"),
        (EmptiesItself, "recover keeps what is newer"),
        (EndsForGood, "a job can start over"),
        (KnowsTheIncarnation, "a job can start over"),
        (RefusesToStart, "a job can start over"),
        (TakesBack, "recover keeps what is committed"),
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


def test_a_sink_that_replaces_its_target_shows_all_rows_at_the_end() -> None:
    check_sink(AtTheEnd, lambda sink: sink.rows, again=again, at_end=True)
    with pytest.raises(LawError) as caught:
        check_sink(ForgetsTheEarly, lambda sink: sink.rows, again=again, at_end=True)
    assert caught.value.law == "committed rows are visible"
    with pytest.raises(LawError) as caught:
        check_sink(Table, lambda sink: sink.rows, again=again, at_end=True)
    assert caught.value.law == "committed rows are visible"
