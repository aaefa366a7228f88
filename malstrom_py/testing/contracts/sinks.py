"""The contract of sinks: nothing is visible before its commit, a commit is idempotent, an abort leaves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from malstrom_py.batches import Batch
from malstrom_py.messages import DataMessage
from malstrom_py.sinks.base import PartitionedSink, StatelessSink, TransactionalSink
from malstrom_py.testing.contracts.clauses import require, require_plain
from malstrom_py.testing.contracts.sink_clauses import (
    COMMITTED,
    PART,
    POSITION,
    RESTORED,
    UNCHANGED,
    Read,
    batch_of,
    require_visible,
    worker_of,
)
from malstrom_py.testing.contracts.transactional_sinks import Trial
from malstrom_py.testing.exact import copy_batch, same, same_batch

S = TypeVar("S", bound=TransactionalSink | StatelessSink | PartitionedSink)


def check_sink(
    make: Callable[[], S],
    read: Callable[[S], Iterable[Any]],
    *,
    values: Sequence[Any] = tuple(range(12)),
    again: Callable[[S], S] | None = None,
    at_end: bool = False,
) -> None:
    """Check that the sinks which ``make`` makes keep the contract of their kind (`malstrom_py.sinks.base`).

    ``make`` is called again and again, each time for a sink on a target that holds nothing yet. ``read(sink)`` gives
    the values that are visible there now; in what order matters only within what one writer wrote. ``values``: at
    least six different ones, that the sink takes. They have keys and timestamps as well.

    Of transactional sinks ``again(sink)`` gives another object on the same target, such as another process has: by
    default a copy by cloudpickle. ``at_end``: the sink replaces its target, and shows nothing before the final commit.

    >>> from malstrom_py import sinks
    >>> check_sink(sinks.Memory, lambda sink: sink.items)

    Raises:
        LawError: a clause is broken. Of transactional sinks: "hidden until committed", "committed rows are visible",
            "commit is idempotent", "abort leaves nothing", "recover clears", "recover keeps what is committed",
            "another process goes on". Of partitioned ones: "stable parts", "plain position", "exact position". Of all:
            "rows in order", "batches stay as they were".
    """
    if len(values) < 6:
        raise ValueError("check_sink needs at least six values")
    _check_unchanged(make(), values)
    sink = make()
    if isinstance(sink, PartitionedSink):
        _check_parts(make, read, values)
    elif isinstance(sink, TransactionalSink):
        Trial(make, read, values, again or _copy, at_end).check()
    else:
        _check_stateless(sink, read, values)


def _copy(sink: Any) -> Any:
    import cloudpickle

    return cloudpickle.loads(cloudpickle.dumps(sink))


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
    require(same_batch(batch, before), UNCHANGED, "a sink does not change what it is given", f"{before.values}")


def _check_stateless(sink: StatelessSink, read: Read, values: Sequence[Any]) -> None:
    writer = sink.build(worker_of())
    writer.write(batch_of(values[:2]))
    writer.write(batch_of(values[2:]))
    writer.close()
    require_visible(sink, read, values, COMMITTED, "what has been written is visible, once")


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
        require_visible(
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
