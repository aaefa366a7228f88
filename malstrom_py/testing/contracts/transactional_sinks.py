"""The contract of transactional sinks: snapshots come one by one, are committed again, elsewhere, or never."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from malstrom_py.sinks.base import CommitContext, TransactionalWriter
from malstrom_py.testing.contracts.clauses import require
from malstrom_py.testing.contracts.sink_clauses import (
    ABORTED,
    COMMITTED,
    ELSEWHERE,
    HIDDEN,
    IDEMPOTENT,
    KEPT,
    RECOVERED,
    Read,
    batch_of,
    context_of,
    require_visible,
    worker_of,
)


@dataclass(frozen=True, slots=True)
class Trial:
    """What is checked. ``again``: another object on the target of the one that it is given, as in another process.
    ``at_end``: whether rows are shown at the final commit alone.
    """

    make: Callable[[], Any]
    read: Read
    values: Sequence[Any]
    again: Callable[[Any], Any]
    at_end: bool

    def check(self) -> None:
        """`LawError` names the first clause that is broken."""
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
        self._check_elsewhere()

    def _made(self) -> Any:
        sink = self.make()
        sink.recover(context_of(1), [])
        return sink

    def _commit(self, sink: Any, context: CommitContext, payloads: Sequence[bytes], rows: int, clause: str) -> None:
        """Commit, again, and see that the first ``rows`` values are visible, if they are to be."""
        there = self.values[:rows] if context.final or not self.at_end else []
        sink.commit(context, payloads)
        self._visible(sink, there, clause, "what belongs to the snapshots committed so far is visible, and no more")
        sink.commit(context, payloads)
        self._visible(sink, there, IDEMPOTENT, "the same commit again changes nothing")

    def _visible(self, sink: Any, expected: Sequence[Any], clause: str, what: str, *, ordered: bool = True) -> None:
        require_visible(sink, self.read, expected, clause, what, ordered=ordered)

    def _check_commit(self) -> None:
        sink, context, values = self._made(), context_of(1), self.values
        writer: TransactionalWriter = sink.open(worker_of())
        writer.write(batch_of(values[:2]))
        writer.write(batch_of(values[2:]))
        self._visible(sink, [], HIDDEN, "what has been written is not visible")
        payload = writer.pre_commit(context)
        require(isinstance(payload, bytes), HIDDEN, "pre_commit gives bytes", f"got {type(payload).__name__}")
        self._visible(sink, [], HIDDEN, "what has been pre-committed is not visible")
        writer.close()
        self._visible(sink, [], HIDDEN, "closing a writer makes nothing visible")
        self._commit(sink, context, [payload], len(values), COMMITTED)

    def _check_workers(self) -> None:
        """Three at a time, one of which writes nothing; and one that comes when another of its number has left."""
        sink, context, values = self._made(), context_of(1), self.values
        writers = [sink.open(worker_of(number)) for number in range(3)]
        writers[0].write(batch_of(values[:2]))
        writers[1].write(batch_of(values[2:4]))
        payloads = [writer.pre_commit(context) for writer in writers]
        for writer in writers:
            writer.close()
        late = sink.open(worker_of(0))
        late.write(batch_of(values[4:]))
        payloads.append(late.pre_commit(context))
        late.close()
        sink.commit(context, payloads)
        self._visible(sink, values, COMMITTED, "what all workers have written is visible", ordered=False)

    def _check_snapshots(self, *, together: bool) -> None:
        """Four snapshots, the third without rows; ``together``: none is committed before all are pre-committed."""
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
        self._visible(sink, [], HIDDEN, "what has been pre-committed is not visible")
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
        self._visible(sink, [], ABORTED, "what has been aborted, and what was never pre-committed, is not visible")
        sink.abort(context, [payload])
        writer = sink.open(worker_of())
        writer.write(batch_of(values))
        payload = writer.pre_commit(context_of(2))
        writer.close()
        self._commit(sink, context_of(2), [payload], len(values), ABORTED)

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
        self._visible(sink, [], RECOVERED, "what an earlier run left half done is not visible")
        self._finish(sink, context_of(2, incarnation=2), 0, RECOVERED)
        crashed.close()
        self._visible(sink, values, RECOVERED, "a writer of an earlier run changes nothing any more")

    def _check_going_back(self, *, closed: bool) -> None:
        """The manifest of the first of two snapshots stands when all is lost; its commit was never begun."""
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
            self._visible(sink, [], RECOVERED, "what is not committed yet is not visible")
        self._commit(sink, first, [payload], 2, KEPT)
        sink.recover(third, [first.snapshot])
        self._commit(sink, first, [payload], 2, KEPT)
        self._finish(sink, third, 2, RECOVERED)
        if not closed:
            crashed.close()
            self._visible(sink, values, RECOVERED, "a writer of an earlier run changes nothing any more")

    def _check_forgotten(self) -> None:
        """The manifest of a snapshot that was committed long ago does not stand any more."""
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
        self._visible(sink, there, KEPT, "what was committed is visible, also where its manifest is gone")
        self._finish(sink, last, 4, KEPT)

    def _check_elsewhere(self) -> None:
        """A worker in a process of its own; and one that coordinates, which dies between manifest and commit."""
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
        worker = self.again(sink).open(worker_of())
        worker.write(batch_of(values[3:]))
        payload = worker.pre_commit(last)
        worker.close()
        self._commit(other, last, [payload], len(values), ELSEWHERE)
        writer.close()
        self._visible(other, values, ELSEWHERE, "a writer of an earlier run changes nothing any more")

    def _finish(self, sink: Any, context: CommitContext, done: int, clause: str) -> None:
        """Write and commit all but the first ``done`` values."""
        writer = sink.open(worker_of())
        writer.write(batch_of(self.values[done:]))
        payload = writer.pre_commit(context)
        writer.close()
        self._commit(sink, context, [payload], len(self.values), clause)
