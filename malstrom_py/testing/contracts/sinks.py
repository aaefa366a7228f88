"""The contract of sinks. Of transactional sinks: rows are visible only after their commit, a commit is idempotent, and
an abort leaves no rows, also when another process commits, or when a snapshot is never committed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import DataMessage
from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import (
    CommitContext,
    PartitionedSink,
    SnapshotId,
    StatelessSink,
    TransactionalSink,
    TransactionalWriter,
    as_sink,
)
from malstrom_py.testing.contracts.clauses import copied, require, require_plain
from malstrom_py.testing.exact import copy_batch, same, same_batch
from malstrom_py.testing.tester import batch_of as batch_of_rows
from malstrom_py.worker_context import WorkerId, WorkerInfo

HIDDEN: Final = "hidden until committed"
COMMITTED: Final = "committed rows are visible"
IDEMPOTENT: Final = "commit is idempotent"
ABORTED: Final = "abort leaves nothing"
RECOVERED: Final = "recover clears"
KEPT: Final = "recover keeps what is committed"
NEWER: Final = "recover keeps what is newer"
AGAIN: Final = "a job can start over"
ELSEWHERE: Final = "another process continues"
UNCHANGED: Final = "batches stay unchanged"
ORDER: Final = "rows in order"
PART: Final = "stable parts"
POSITION: Final = "plain position"
RESTORED: Final = "exact position"

Read = Callable[[Any], Iterable[Any]]


def batch_of(values: Sequence[Any]) -> Batch:
    """Return a batch of ``values``, with keys and timestamps."""
    return Batch(list(values), keys=[index % 3 for index in range(len(values))], timestamps=list(range(len(values))))


def context_of(number: int, *, incarnation: int = 1, final: bool = True) -> CommitContext:
    """Return the context of snapshot ``number``."""
    snapshot = SnapshotId(f"20200101T00000{number}000000Z-0000")
    return CommitContext("contract", "out", snapshot, incarnation, final=final)


def worker_of(number: int = 0) -> WorkerInfo:
    """Return a worker."""
    return WorkerInfo("contract", "out", WorkerId(number))


def require_visible(
    sink: Any, read: Read, expected: Sequence[Any], clause: str, what: str, *, ordered: bool = True
) -> None:
    """Raise `LawError` naming ``clause`` unless exactly the ``expected`` values are visible."""
    got = list(read(sink))
    wanted = list(expected)
    if not ordered:
        got, wanted = sorted(got, key=repr), sorted(wanted, key=repr)
    if ordered and clause != HIDDEN and sorted(map(repr, got)) == sorted(map(repr, wanted)) and not same(got, wanted):
        clause, what = ORDER, "the rows of one writer are visible in their order"
    require(same(got, wanted), clause, what, f"expected {wanted}\n  got      {got}")


@dataclass(frozen=True, slots=True)
class TransactionalCheck:
    """The check of a transactional sink. ``again``: makes another object on the same target, as in another process.
    ``at_end``: whether rows become visible only at the final commit.
    """

    make: Callable[[], Any]
    read: Read
    values: Sequence[Any]
    again: Callable[[Any], Any]
    at_end: bool

    def check(self) -> None:
        """Check all clauses. `LawError` names the first broken one."""
        self._check_commit()
        self._check_workers()
        self._check_snapshots(together=False)
        self._check_snapshots(together=True)
        self._check_abort()
        self._check_abort_of_one()
        self._check_recover()
        for closed in (True, False):
            self._check_going_back(closed=closed)
        self._check_forgotten()
        for closed in (True, False):
            self._check_delayed_recover(closed=closed)
        for incarnation in (1, 2):
            self._check_starting_over(incarnation)
        self._check_elsewhere()

    def _made(self) -> Any:
        sink = self.make()
        sink.recover(context_of(1), [])
        return sink

    def _commit(self, sink: Any, context: CommitContext, payloads: Sequence[bytes], rows: int, clause: str) -> None:
        """Commit twice, and check that the first ``rows`` values are visible, if they should be."""
        there = self.values[:rows] if context.final or not self.at_end else []
        sink.commit(context, payloads)
        self._visible(sink, there, clause, "exactly the rows of the committed snapshots are visible")
        sink.commit(context, payloads)
        self._visible(sink, there, IDEMPOTENT, "the same commit again changes nothing")

    def _visible(self, sink: Any, expected: Sequence[Any], clause: str, what: str, *, ordered: bool = True) -> None:
        require_visible(sink, self.read, expected, clause, what, ordered=ordered)

    def _check_commit(self) -> None:
        sink, context, values = self._made(), context_of(1), self.values
        writer: TransactionalWriter = sink.open(worker_of())
        writer.write(batch_of(values[:2]))
        writer.write(batch_of(values[2:]))
        self._visible(sink, [], HIDDEN, "written rows are not visible")
        payload = writer.pre_commit(context)
        require(isinstance(payload, bytes), HIDDEN, "pre_commit returns bytes", f"got {type(payload).__name__}")
        self._visible(sink, [], HIDDEN, "pre-committed rows are not visible")
        writer.close()
        self._visible(sink, [], HIDDEN, "closing a writer makes no rows visible")
        self._commit(sink, context, [payload], len(values), COMMITTED)

    def _check_workers(self) -> None:
        """Check three writers, one of which writes nothing, and one that replaces another with its worker number."""
        sink, context, values = self._made(), context_of(1), self.values
        writers = [sink.open(worker_of(number)) for number in range(3)]
        writers[0].write(batch_of(values[:2]))
        writers[1].write(batch_of(values[2:4]))
        payloads = [writer.pre_commit(context) for writer in writers]
        for writer in writers:
            writer.close()
        payloads.append(_staged(sink, values[4:], context))
        sink.commit(context, payloads)
        self._visible(sink, values, COMMITTED, "the rows of all workers are visible", ordered=False)

    def _check_snapshots(self, *, together: bool) -> None:
        """Check four snapshots, the third without rows; ``together``: all are pre-committed before one is committed."""
        sink, values = self._made(), self.values
        counts = (2, 4, 4, len(values))
        contexts = [context_of(number, final=number == 4) for number in (1, 2, 3, 4)]
        writer, written, payloads = sink.open(worker_of()), 0, []
        for context, count in zip(contexts, counts, strict=True):
            if count > written:
                writer.write(batch_of(values[written:count]))
            written = count
            payloads.append(writer.pre_commit(context))
            if not together:
                self._commit(sink, context, [payloads[-1]], count, COMMITTED)
        writer.close()
        if not together:
            return
        self._visible(sink, [], HIDDEN, "pre-committed rows are not visible")
        for number, (context, count) in enumerate(zip(contexts, counts, strict=True)):
            self._commit(sink, context, [payloads[number]], count, COMMITTED)
            if context.final:
                continue
            for earlier in range(number):
                self._commit(sink, contexts[earlier], [payloads[earlier]], count, IDEMPOTENT)

    def _check_abort(self) -> None:
        sink, context, values = self._made(), context_of(1), self.values
        writer = sink.open(worker_of())
        writer.write(batch_of(values[:3]))
        payload = writer.pre_commit(context)
        writer.write(batch_of(values[3:]))
        sink.abort(context, [payload])
        writer.close()
        self._visible(sink, [], ABORTED, "aborted rows, and rows never pre-committed, are not visible")
        sink.abort(context, [payload])
        self._finish(sink, context_of(2), 0, ABORTED)

    def _check_abort_of_one(self) -> None:
        sink, values = self._made(), self.values
        writer = sink.open(worker_of())
        writer.write(batch_of(values[3:]))
        aborted = writer.pre_commit(context_of(1, final=False))
        writer.write(batch_of(values[:3]))
        payload = writer.pre_commit(context_of(2))
        sink.abort(context_of(1, final=False), [aborted])
        writer.close()
        self._commit(sink, context_of(2), [payload], 3, ABORTED)

    def _check_recover(self) -> None:
        sink, values = self._made(), self.values
        crashed = sink.open(worker_of())
        crashed.write(batch_of(values[:3]))
        crashed.pre_commit(context_of(1))
        crashed.write(batch_of(values[3:]))
        # The writer is never closed, as in a process that was killed.
        sink.recover(context_of(2, incarnation=2), [])
        self._visible(sink, [], RECOVERED, "uncommitted rows of an earlier run are not visible")
        self._finish(sink, context_of(2, incarnation=2), 0, RECOVERED)
        crashed.close()
        self._visible(sink, values, RECOVERED, "a writer of an earlier run changes nothing")

    def _check_going_back(self, *, closed: bool) -> None:
        """Check a crash after the manifest of the first of two snapshots was saved, before its commit started."""
        sink, values = self._made(), self.values
        first, third = context_of(1, final=False), context_of(3, incarnation=2)
        crashed = sink.open(worker_of())
        crashed.write(batch_of(values[:2]))
        payload = crashed.pre_commit(first)
        crashed.write(batch_of(values[2:3]))
        crashed.pre_commit(context_of(2, final=False))
        crashed.write(batch_of(values[3:]))
        if closed:
            crashed.close()
        for _ in range(2):
            sink.recover(third, [first.snapshot])
            self._visible(sink, [], RECOVERED, "rows that are not committed yet are not visible")
        self._commit(sink, first, [payload], 2, KEPT)
        sink.recover(third, [first.snapshot])
        self._commit(sink, first, [payload], 2, KEPT)
        self._finish(sink, third, 2, RECOVERED)
        if not closed:
            crashed.close()
            self._visible(sink, values, RECOVERED, "a writer of an earlier run changes nothing")

    def _check_forgotten(self) -> None:
        """Check a recovery without the manifest of an earlier committed snapshot."""
        sink, values = self._made(), self.values
        contexts = [context_of(number, final=False) for number in (1, 2)]
        writer = sink.open(worker_of())
        for number, context in enumerate(contexts):
            writer.write(batch_of(values[2 * number : 2 * number + 2]))
            self._commit(sink, context, [writer.pre_commit(context)], 2 * number + 2, COMMITTED)
        writer.close()
        last = context_of(3, incarnation=2)
        sink.recover(last, [contexts[1].snapshot])
        there = [] if self.at_end else values[:4]
        self._visible(sink, there, KEPT, "committed rows are visible, also if their manifest is missing")
        self._finish(sink, last, 4, KEPT)

    def _check_delayed_recover(self, *, closed: bool) -> None:
        """Check a start that was paused before its `recover`: a later start has written two snapshots by then."""
        sink, values = self._made(), self.values
        if as_sink(sink).commits_in_driver:
            return  # the program that commits starts a job again only after its run has ended
        first, last = context_of(3, incarnation=2, final=False), context_of(4, incarnation=2)
        other = self.again(sink)
        other.recover(context_of(2, incarnation=2), [])
        writer = other.open(worker_of())
        writer.write(batch_of(values[:3]))
        payloads = [writer.pre_commit(first)]
        writer.write(batch_of(values[3:]))
        payloads.append(writer.pre_commit(last))
        if closed:
            writer.close()
        _recover_late(sink)
        self._visible(sink, [], NEWER, "rows that are not committed yet are not visible")
        self._commit(other, first, payloads[:1], 3, NEWER)
        _recover_late(sink)
        self._commit(other, last, payloads[1:], len(values), NEWER)
        _recover_late(sink)
        self._visible(other, values, NEWER, "committed rows stay visible")
        if not closed:
            writer.close()

    def _check_starting_over(self, incarnation: int) -> None:
        """Check a job that has ended and starts from the beginning: ``incarnation`` is 1 again without snapshots.

        The rows of the earlier run stay, or are replaced.
        """
        sink, before, values = self._made(), self.values[3:], self.values[:3]
        sink.commit(context_of(1), [_staged(sink, before, context_of(1))])
        start = context_of(2, incarnation=incarnation)
        try:
            sink.recover(start, [])
        except SinkError:
            self._visible(sink, before, AGAIN, "a start that is refused changes nothing")
            require(self.at_end, AGAIN, "a sink that adds to its target takes the rows of another run", "it refuses")
            return
        payload = _staged(sink, values, start)
        for _ in range(2):
            sink.commit(start, [payload])
            got = sorted(self.read(sink), key=repr)
            expected = [sorted(rows, key=repr) for rows in (values, self.values)]
            case = f"expected {expected[0]}, or also those of the earlier run\n  got      {got}"
            require(any(same(got, rows) for rows in expected), AGAIN, "the rows of the new run are visible, once", case)

    def _check_elsewhere(self) -> None:
        """Check a worker in another process, and a coordinator that dies between manifest and commit."""
        sink, values = self._made(), self.values
        first, last = context_of(1, final=False), context_of(4, incarnation=3)
        writer = self.again(sink).open(worker_of())
        writer.write(batch_of(values[:3]))
        payload = writer.pre_commit(first)
        writer.write(batch_of(values[3:]))
        writer.pre_commit(context_of(2, final=False))
        for incarnation in (2, 3):
            other = self.again(sink)
            other.recover(context_of(incarnation, incarnation=incarnation), [first.snapshot])
            self._commit(other, first, [payload], 3, ELSEWHERE)
        payload = _staged(self.again(sink), values[3:], last)
        self._commit(other, last, [payload], len(values), ELSEWHERE)
        writer.close()
        self._visible(other, values, ELSEWHERE, "a writer of an earlier run changes nothing")

    def _finish(self, sink: Any, context: CommitContext, done: int, clause: str) -> None:
        """Write and commit all but the first ``done`` values."""
        payload = _staged(sink, self.values[done:], context)
        self._commit(sink, context, [payload], len(self.values), clause)


def _recover_late(sink: Any) -> None:
    """Call the `recover` of the first start of the job; a sink that knows of a later start may refuse it."""
    with contextlib.suppress(SinkError):
        sink.recover(context_of(1), [])


def _staged(sink: Any, values: Sequence[Any], context: CommitContext) -> bytes:
    """Return the payload of a new writer of worker 0 that has pre-committed ``values`` and is closed."""
    writer: TransactionalWriter = sink.open(worker_of())
    writer.write(batch_of(values))
    payload = writer.pre_commit(context)
    writer.close()
    return payload


S = TypeVar("S", bound=TransactionalSink | StatelessSink | PartitionedSink)


def check_sink(
    make: Callable[[], S],
    read: Callable[[S], Iterable[Any]],
    *,
    values: Sequence[Any] = tuple(range(12)),
    again: Callable[[S], S] | None = None,
    at_end: bool = False,
) -> None:
    """Check the contract of sinks (`malstrom_py.sinks.base`) for the sinks of ``make``.

    ``make`` is called repeatedly, each time for a sink on an empty target. ``read(sink)`` returns the visible values;
    their order counts only for the rows of one writer. ``values``: at least six different values for the sink. The
    rows also have keys and timestamps.

    For transactional sinks ``again(sink)`` returns another object on the same target, as in another process: by default
    a copy by cloudpickle. ``at_end``: the sink replaces its target, and shows no rows before the final commit.

    >>> from malstrom_py import sinks
    >>> check_sink(sinks.Memory, lambda sink: sink.items)

    Raises:
        LawError: a clause is broken. Of transactional sinks: "hidden until committed", "committed rows are visible",
            "commit is idempotent", "abort leaves nothing", "recover clears", "recover keeps what is committed",
            "recover keeps what is newer", "a job can start over", "another process continues". Of partitioned ones:
            "stable parts", "plain position", "exact position". Of all: "rows in order", "batches stay unchanged".
    """
    if len(values) < 6:
        raise ValueError("check_sink needs at least six values")
    _check_unchanged(make(), values)
    sink = make()
    if isinstance(sink, PartitionedSink):
        _check_parts(make, read, values)
    elif isinstance(sink, TransactionalSink):
        TransactionalCheck(make, read, values, again or copied, at_end).check()
    else:
        _check_stateless(sink, read, values)


def _check_unchanged(sink: Any, values: Sequence[Any]) -> None:
    batch = batch_of(values)
    before = copy_batch(batch)
    writer: Any
    if isinstance(sink, PartitionedSink):
        writer = sink.build_part(sink.assign_part(DataMessage(0, values[0], 0)), None)
    else:
        writer = sink.open(worker_of()) if isinstance(sink, TransactionalSink) else sink.build(worker_of())
    writer.write(batch)
    writer.close()
    require(same_batch(batch, before), UNCHANGED, "a sink does not change its batches", f"{before.values}")


def _check_stateless(sink: StatelessSink, read: Read, values: Sequence[Any]) -> None:
    writer = sink.build(worker_of())
    writer.write(batch_of(values[:2]))
    writer.write(batch_of(values[2:]))
    writer.close()
    require_visible(sink, read, values, COMMITTED, "written rows are visible, once")


def _check_parts(make: Callable[[], Any], read: Read, values: Sequence[Any]) -> None:
    sink: PartitionedSink = make()
    messages = [DataMessage(index % 3, value, index) for index, value in enumerate(values)]
    parts = [sink.assign_part(message) for message in messages]
    require(all(isinstance(part, str) for part in parts), PART, "the name of a partition is a str", f"{parts}")
    again = [make().assign_part(message) for message in messages]
    require(parts == again, PART, "a record belongs to the same partition each time", f"{parts}\n  {again}")
    for cut in (0, 1, len(values) // 2, len(values)):
        sink = make()
        for part in dict.fromkeys(parts):
            rows = [message for message, other in zip(messages, parts, strict=True) if other == part]
            _write_part(sink, part, rows, cut)
        require_visible(
            sink,
            read,
            values,
            RESTORED,
            f"each partition restored after {cut} rows: written rows are visible, once",
            ordered=False,
        )


def _write_part(sink: PartitionedSink, part: str, rows: Sequence[DataMessage[Any, Any]], cut: int) -> None:
    """Write ``rows`` of ``part``; after ``cut`` rows save and close its writer, and build a new one."""
    writer = sink.build_part(part, None)
    if rows[:cut]:
        writer.write(batch_of_rows(rows[:cut], keyed=True, timed=True))
    position = writer.snapshot()
    require_plain(position, POSITION, f"partition {part!r}")
    require(same(writer.snapshot(), position), RESTORED, "reading the offset does not change it", f"partition {part!r}")
    writer.close()
    writer = sink.build_part(part, position)
    if rows[cut:]:
        writer.write(batch_of_rows(rows[cut:], keyed=True, timed=True))
    writer.close()
