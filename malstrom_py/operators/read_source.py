"""``source``: reads the parts of a source that live on this worker, one batch at a time.

Every part opened is announced with `PartOpened`, every part at its end with `PartFinished`; when all are
finished the maximum epoch follows (T5).
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Any, Final, NoReturn

from malstrom_py.batches import Batch, rows_of
from malstrom_py.clock import Clock
from malstrom_py.errors import MalformedRecord, MalstromError, SourceError
from malstrom_py.messages import MAX_EPOCH, DeadLetter, Epoch, PartFinished, PartOpened
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.failures import Failures, said
from malstrom_py.sources.base import Part, PartitionedSource, SourcePart

_BACKOFF_MIN_S: Final = 0.001
_BACKOFF_MAX_S: Final = 0.5
_OPEN_MAX: Final = 256


class _Reader:
    """One part while it is read here."""

    __slots__ = ("name", "part", "poll_at_s", "source_part", "wait_s")

    def __init__(self, part: Part, name: str, source_part: SourcePart[Any]) -> None:
        self.part = part
        self.name = name
        self.source_part = source_part
        self.poll_at_s = 0.0
        self.wait_s = 0.0

    def delay(self, now_s: float, linger_s: float) -> None:
        """Nothing came: ask again after ``linger_s``, twice as late each time up to half a second."""
        self.wait_s = max(linger_s, min(max(self.wait_s * 2, _BACKOFF_MIN_S), _BACKOFF_MAX_S))
        self.poll_at_s = now_s + self.wait_s


class ReadSource(Operator):
    """Polls its parts in turn, at most 256 of them open at a time, the others in order behind them.

    A part that is not open yet holds back event time like any part without data.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> mp.collect(mp.Job("docs").source("numbers", sources.Memory([1, 2, 3], parts=2)))
    [1, 3, 2]
    """

    def __init__(self, context: StepContext, *, source: PartitionedSource[Any]) -> None:
        super().__init__(context)
        self._source = source
        self._failures = Failures(context)
        self._waiting: deque[Part] = deque()
        self._readers: deque[_Reader] = deque()
        self.finished = False

    def open(self, out: Outlet) -> None:
        """List the parts, announce them, open the first of them at their start."""
        try:
            self._waiting.extend(self._source.list_parts())
        except Exception as error:
            self._raise(error, "could not list its parts")
        for part, times in Counter(self._waiting).items():
            if times > 1:
                raise SourceError(f"source {self.context.step!r} lists part {part!r} twice: parts go by their names")
        for part in self._waiting:
            out.forward(PartOpened(self._name(part)))
        self._open_more(out)

    def poll(self, out: Outlet, *, rows_max: int, linger_s: float, clock: Clock) -> int:
        """Poll the next part that is due, once; how many records came."""
        for _ in range(len(self._readers)):
            reader = self._readers.popleft()
            self._readers.append(reader)
            if reader.poll_at_s and clock.monotonic_s() < reader.poll_at_s:
                continue
            read = self._poll_part(reader, rows_max, out)
            if read:
                reader.poll_at_s = reader.wait_s = 0.0
            else:
                reader.delay(clock.monotonic_s(), linger_s)
            return read
        return 0

    def next_poll_s(self) -> float:
        """When the first part is due, on the clock's monotonic time; 0 for now."""
        return min((reader.poll_at_s for reader in self._readers), default=0.0)

    def close(self) -> None:
        """Close every part that is still open."""
        errors = []
        while self._readers:
            try:
                self._close(self._readers.pop())
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        out.send(batch)

    def _poll_part(self, reader: _Reader, rows_max: int, out: Outlet) -> int:
        malformed: MalformedRecord | None = None
        rows: list[Any] = []
        try:
            try:
                polled = reader.source_part.poll(rows_max)
                if polled is not None:
                    rows = polled if isinstance(polled, list) else _as_list(polled)
            except MalformedRecord as error:
                malformed = error
            finished = reader.source_part.is_finished()
        except Exception as error:
            self._raise(error, f"failed in part {reader.part!r}")
        if malformed is not None:
            self._malformed(malformed, reader, out)
        out.send(Batch(rows, part=reader.name))
        count = len(rows) if malformed is None else 1
        self.counters.rows_in += count
        if finished:
            self._readers.remove(reader)
            self._close(reader)
            out.forward(PartFinished(reader.name))
            self._open_more(out)
        return count

    def _malformed(self, error: MalformedRecord, reader: _Reader, out: Outlet) -> None:
        if self.context.on_error == "fail":
            raise SourceError(
                f"source {self.context.step!r}, part {reader.part!r}: {error} "
                f"Mend the input, or give the source on_error='skip' or on_error='dead-letter'."
            ) from error
        if self.context.on_error == "skip":
            self.counters.skipped += 1
        else:
            letter = DeadLetter(self.context.step, None, error.record, None, str(error))
            self._failures.bury(letter, reader.name, out)

    def _open_more(self, out: Outlet) -> None:
        while self._waiting and len(self._readers) < _OPEN_MAX:
            part = self._waiting.popleft()
            try:
                source_part = self._source.build_part(part, None)
            except Exception as error:
                self._raise(error, f"could not open part {part!r}")
            self._readers.append(_Reader(part, self._name(part), source_part))
        if not self._readers:
            self.finished = True
            out.forward(Epoch(MAX_EPOCH))

    def _name(self, part: Part) -> str:
        return f"{self.context.step}/{part}"

    def _close(self, reader: _Reader) -> None:
        try:
            reader.source_part.close()
        except Exception as error:
            self._raise(error, f"could not close part {reader.part!r}")

    def _raise(self, error: Exception, what: str) -> NoReturn:
        """Raise ``error`` as a `SourceError` that names this step; errors that are not of reading as they are."""
        if isinstance(error, SourceError):
            raise SourceError(f"source {self.context.step!r}: {error}") from error
        if isinstance(error, MalstromError):
            raise error
        raise SourceError(f"source {self.context.step!r} {what}: {said(error)}") from error


def _as_list(polled: Any) -> list[Any]:
    if hasattr(polled, "schema"):  # an Arrow RecordBatch, told without importing Arrow
        return rows_of(polled)
    return list(polled)
