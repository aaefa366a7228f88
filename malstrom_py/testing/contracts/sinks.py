"""The contract of sinks: nothing is visible before its commit, a commit is idempotent, an abort leaves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from malstrom_py.batches import Batch
from malstrom_py.messages import DataMessage
from malstrom_py.sinks.base import (
    CommitContext,
    PartitionedSink,
    SnapshotId,
    StatelessSink,
    TransactionalSink,
    TransactionalWriter,
)
from malstrom_py.testing.contracts.clauses import require, require_plain
from malstrom_py.testing.exact import copy_batch, same, same_batch
from malstrom_py.worker_info import WorkerId, WorkerInfo

HIDDEN: Final = "hidden until committed"
COMMITTED: Final = "committed rows are visible"
IDEMPOTENT: Final = "commit is idempotent"
ABORTED: Final = "abort leaves nothing"
RECOVERED: Final = "recover clears"
UNCHANGED: Final = "batches stay as they were"
ORDER: Final = "rows in order"
PART: Final = "stable parts"
POSITION: Final = "plain position"
RESTORED: Final = "exact position"

S = TypeVar("S", bound=TransactionalSink | StatelessSink | PartitionedSink)

Read = Callable[[Any], Iterable[Any]]


def check_sink(
    make: Callable[[], S], read: Callable[[S], Iterable[Any]], *, values: Sequence[Any] = tuple(range(12))
) -> None:
    """Check that the sinks which ``make`` makes keep the contract of their kind (`malstrom_py.sinks.base`).

    ``make`` is called again and again, each time for a sink on a target that holds nothing yet. ``read(sink)`` gives
    the values that are visible there now; in what order matters only within what one writer wrote. ``values``: at
    least six different ones, that the sink takes. They have keys and timestamps as well.

    >>> from malstrom_py import sinks
    >>> check_sink(sinks.Memory, lambda sink: sink.items)

    Raises:
        LawError: a clause is broken. Of transactional sinks: "hidden until committed", "committed rows are
            visible", "commit is idempotent", "abort leaves nothing", "recover clears". Of partitioned ones: "stable
            parts", "plain position", "exact position". Of all: "rows in order", "batches stay as they were".
    """
    if len(values) < 6:
        raise ValueError("check_sink needs at least six values")
    _check_unchanged(make(), values)
    sink = make()
    if isinstance(sink, PartitionedSink):
        _check_parts(make, read, values)
    elif isinstance(sink, TransactionalSink):
        for check in (_check_commit, _check_two_snapshots, _check_two_workers, _check_abort, _check_recover):
            check(make, read, values)
    else:
        _check_stateless(sink, read, values)


def _batch(values: Sequence[Any]) -> Batch:
    return Batch(list(values), keys=[index % 3 for index in range(len(values))], timestamps=list(range(len(values))))


def _context(number: int, incarnation: int = 1) -> CommitContext:
    return CommitContext("contract", "out", SnapshotId(f"20200101T00000{number}000000Z-0000"), incarnation)


def _worker(number: int = 0) -> WorkerInfo:
    return WorkerInfo("contract", "out", WorkerId(number))


def _visible(sink: Any, read: Read, expected: Sequence[Any], clause: str, what: str, *, ordered: bool = True) -> None:
    got = list(read(sink))
    wanted = list(expected)
    if not ordered:
        got, wanted = sorted(got, key=repr), sorted(wanted, key=repr)
    if ordered and clause != HIDDEN and sorted(map(repr, got)) == sorted(map(repr, wanted)) and not same(got, wanted):
        clause, what = ORDER, "what one writer has written is visible in that order"
    require(same(got, wanted), clause, what, f"expected {wanted}\n  got      {got}")


def _check_unchanged(sink: Any, values: Sequence[Any]) -> None:
    batch = _batch(values)
    before = copy_batch(batch)
    writer: Any
    if isinstance(sink, PartitionedSink):
        writer = sink.build_part(sink.assign_part(DataMessage(0, values[0], 0)), None)
    else:
        writer = sink.open(_worker()) if isinstance(sink, TransactionalSink) else sink.build(_worker())
    writer.write(batch)
    writer.close()
    require(same_batch(batch, before), UNCHANGED, "a sink does not change what it is given", f"{before.values}")


def _check_commit(make: Callable[[], Any], read: Read, values: Sequence[Any]) -> None:
    sink, context = make(), _context(1)
    sink.recover(context, [])
    writer: TransactionalWriter = sink.open(_worker())
    writer.write(_batch(values[:2]))
    writer.write(_batch(values[2:]))
    _visible(sink, read, [], HIDDEN, "what has been written is not visible")
    payload = writer.pre_commit(context)
    require(isinstance(payload, bytes), HIDDEN, "pre_commit gives bytes", f"got {type(payload).__name__}")
    _visible(sink, read, [], HIDDEN, "what has been pre-committed is not visible")
    writer.close()
    _visible(sink, read, [], HIDDEN, "closing a writer makes nothing visible")
    sink.commit(context, [payload])
    _visible(sink, read, values, COMMITTED, "what has been committed is visible, once")
    sink.commit(context, [payload])
    _visible(sink, read, values, IDEMPOTENT, "the same commit again changes nothing")


def _check_two_snapshots(make: Callable[[], Any], read: Read, values: Sequence[Any]) -> None:
    sink, first, second = make(), _context(1), _context(2)
    sink.recover(first, [])
    writer = sink.open(_worker())
    writer.write(_batch(values[:3]))
    one = writer.pre_commit(first)
    writer.write(_batch(values[3:]))
    sink.commit(first, [one])
    _visible(sink, read, values[:3], COMMITTED, "what belongs to the first snapshot is visible, and no more")
    nothing = writer.pre_commit(second)
    writer.close()
    sink.commit(second, [nothing])
    _visible(sink, read, values, COMMITTED, "what belongs to the second snapshot is visible as well")
    sink.commit(second, [nothing])
    _visible(sink, read, values, IDEMPOTENT, "the same commit again changes nothing")


def _check_two_workers(make: Callable[[], Any], read: Read, values: Sequence[Any]) -> None:
    sink, context = make(), _context(1)
    sink.recover(context, [])
    writers = [sink.open(_worker(number)) for number in range(3)]
    writers[0].write(_batch(values[:3]))
    writers[1].write(_batch(values[3:]))
    payloads = [writer.pre_commit(context) for writer in writers]  # the third has written nothing
    for writer in writers:
        writer.close()
    sink.commit(context, payloads)
    _visible(sink, read, values, COMMITTED, "what all workers have written is visible", ordered=False)


def _check_abort(make: Callable[[], Any], read: Read, values: Sequence[Any]) -> None:
    sink, context = make(), _context(1)
    sink.recover(context, [])
    writer = sink.open(_worker())
    writer.write(_batch(values[:3]))
    payload = writer.pre_commit(context)
    writer.write(_batch(values[3:]))
    sink.abort(context, [payload])
    writer.close()
    _visible(sink, read, [], ABORTED, "what has been aborted, and what was never pre-committed, is not visible")
    sink.abort(context, [payload])
    again = _context(2)
    writer = sink.open(_worker())
    writer.write(_batch(values))
    payload = writer.pre_commit(again)
    writer.close()
    sink.commit(again, [payload])
    _visible(sink, read, values, ABORTED, "after an abort, nothing of it comes with the next commit")


def _check_recover(make: Callable[[], Any], read: Read, values: Sequence[Any]) -> None:
    sink, first, second = make(), _context(1), _context(2, incarnation=2)
    sink.recover(first, [])
    crashed = sink.open(_worker())
    crashed.write(_batch(values[:3]))
    crashed.pre_commit(first)
    crashed.write(_batch(values[3:]))
    # The writer is never closed, as in a process that was killed.
    sink.recover(second, [])
    _visible(sink, read, [], RECOVERED, "what an earlier run left half done is not visible")
    writer = sink.open(_worker())
    writer.write(_batch(values))
    payload = writer.pre_commit(second)
    writer.close()
    sink.commit(second, [payload])
    _visible(sink, read, values, RECOVERED, "nothing of an earlier run comes with the next commit")
    crashed.close()
    _visible(sink, read, values, RECOVERED, "a writer of an earlier run changes nothing any more")


def _check_stateless(sink: StatelessSink, read: Read, values: Sequence[Any]) -> None:
    writer = sink.build(_worker())
    writer.write(_batch(values[:2]))
    writer.write(_batch(values[2:]))
    writer.close()
    _visible(sink, read, values, COMMITTED, "what has been written is visible, once")


def _check_parts(make: Callable[[], Any], read: Read, values: Sequence[Any]) -> None:
    sink: PartitionedSink = make()
    messages = [DataMessage(index % 3, value, index) for index, value in enumerate(values)]
    parts = [sink.assign_part(message) for message in messages]
    require(all(isinstance(part, str) for part in parts), PART, "the name of a part is a str", f"{parts}")
    again = [make().assign_part(message) for message in messages]
    require(parts == again, PART, "a record belongs to the same part each time", f"{parts}\n  {again}")
    for cut in (0, 1, len(values) // 2, len(values)):
        sink = make()
        for part in dict.fromkeys(parts):
            rows = [message for message, other in zip(messages, parts, strict=True) if other == part]
            _write_part(sink, part, rows, cut)
        _visible(
            sink,
            read,
            values,
            RESTORED,
            f"each part restored after {cut} rows: what has been written is visible, once",
            ordered=False,
        )


def _write_part(sink: PartitionedSink, part: str, rows: Sequence[DataMessage[Any, Any]], cut: int) -> None:
    """Write ``rows`` of ``part``; behind ``cut`` rows its writer is saved, closed and built anew."""
    writer = sink.build_part(part, None)
    writer.write(_rows(rows[:cut])) if rows[:cut] else None
    position = writer.snapshot()
    require_plain(position, POSITION, f"part {part!r}")
    require(same(writer.snapshot(), position), RESTORED, "asking for the position does not change it", f"part {part!r}")
    writer.close()
    writer = sink.build_part(part, position)
    writer.write(_rows(rows[cut:])) if rows[cut:] else None
    writer.close()


def _rows(rows: Sequence[DataMessage[Any, Any]]) -> Batch:
    return Batch(
        [row.value for row in rows], keys=[row.key for row in rows], timestamps=[row.timestamp or 0 for row in rows]
    )
