"""Files of records while they are read: cut into frames of whole records of about 1 MiB, each decoded as a whole.

A record belongs to the byte range in which its first byte lies, so every record is in exactly one range. A record
starts after a line end, at the start of the file, or after the header. A range is therefore read from the first line
end at or after the byte before it, to the end of the record that contains its last byte.

Which records exist depends only on the bytes from a frame's offset on, never on the sizes of the frames. So (offset of
a frame, records taken from there) is an exact position: a reader that resumes at the offset gets the same records, in
frames of any size. Memory is bounded by one frame.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

from malstrom_py.data.batch import ColumnBatch
from malstrom_py.errors import MalformedRecord, SourceError
from malstrom_py.sources.base import BasePart, PolledRows
from malstrom_py.sources.files.streams import READ_ERRORS, ByteStream, FilePath, file_changed, why_unreadable

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK_BYTES: Final = 1 << 16

LINE_END: Final = re.compile(rb"\n")
CSV_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


def record_bounds(path: FilePath, start: int, stop: int, *, begin: int, line_end: re.Pattern[bytes]) -> tuple[int, int]:
    """Return the start of the range's first record and the end of its last; equal if it has no record.

    ``begin`` is the offset of the file's first record. `SourceError` if the file ends before the range.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if start and start >= size:
            raise SourceError(
                f"it has {size} bytes, and its partition begins at byte {start}: the file changed since it was split. "
                f"Restore the file, or start the job without resuming"
            )
        first = begin if start <= begin else _after_line_end(file, start - 1, line_end)
        return first, begin if stop <= begin else _after_line_end(file, stop - 1, line_end)


def _after_line_end(file: IO[bytes], offset: int, line_end: re.Pattern[bytes]) -> int:
    """Return the end of the first line end at or after ``offset``; the end of the file if there is none."""
    offset = min(file.seek(0, 2), offset)
    file.seek(offset)
    while chunk := file.read(_CHUNK_BYTES):
        if chunk.endswith(b"\r"):
            # It may be the first half of \r\n.
            chunk += file.read(1)
        if match := line_end.search(chunk):
            return offset + match.end()
        offset += len(chunk)
    return offset


@dataclass(frozen=True, slots=True)
class BadRecord:
    """One record that could not be decoded. ``why`` is the reason without the record's content."""

    why: str
    record: object

    def __len__(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class Sifted:
    """Rows, and the bad records that were between them: ``at`` these places among all records, in order.

    ``whys``: of each of these places the reason. ``record_at`` returns the record there.
    """

    rows: pa.RecordBatch | ColumnBatch
    at: Sequence[int]
    whys: Mapping[int, str]
    record_at: Callable[[int], object]

    def __len__(self) -> int:
        return len(self.rows) + len(self.at)

    def bad(self, index: int) -> BadRecord:
        """Return bad record ``index``."""
        place = self.at[index]
        return BadRecord(self.whys[place], self.record_at(place))

    def cut(self, start: int, stop: int) -> tuple[pa.RecordBatch | ColumnBatch, range]:
        """Return the rows of the records from ``start`` to ``stop``, and the indices of their bad ones."""
        first, last = bisect_left(self.at, start), bisect_left(self.at, stop)
        return _cut(self.rows, start - first, stop - last), range(first, last)

    def next_run(self, start: int) -> BadRecord | pa.RecordBatch | ColumnBatch:
        """Return the bad record at ``start``, or the rows up to the next one."""
        following = bisect_left(self.at, start)
        stop = self.at[following] if following < len(self.at) else len(self)
        return self.bad(following) if stop == start else self.cut(start, stop)[0]


def others(count: int, rows: Collection[int]) -> Sequence[int]:
    """Return the numbers up to ``count`` that are not in ``rows``.

    >>> others(4, {1, 2})
    [0, 3]
    """
    if not rows:
        return range(count)
    mask = bytearray(b"\x01") * count
    for row in rows:
        mask[row] = 0
    return list(compress(range(count), mask))


Run: TypeAlias = "BadRecord | Sifted | list[Any] | pa.RecordBatch | ColumnBatch"


def _cut(run: Any, start: int, stop: int) -> Any:
    if start == 0 and stop == len(run):
        return run
    if isinstance(run, ColumnBatch):
        return run.cut(start, stop)
    return run[start:stop] if isinstance(run, list) else run.slice(start, stop - start)


def _malformed(bad: BadRecord, where: str, rows_before: int) -> MalformedRecord:
    return MalformedRecord(f"{where}, record {rows_before + 1}: {bad.why}.", record=bad.record)


class Cursor:
    """Takes rows out of ``runs``, and drops each run once it is taken. ``taken`` counts bad records too."""

    def __init__(self, runs: Sequence[Run] = ()) -> None:
        self._runs = deque(run for run in runs if len(run))
        self._start = 0
        self.taken = 0

    def is_empty(self) -> bool:
        """Return whether all rows are taken."""
        return not self._runs

    def skip(self, count: int) -> int:
        """Skip the next ``count`` records, or as many as there are; return their number."""
        before = self.taken
        while count and not self.is_empty():
            size = min(count, len(self._runs[0]) - self._start)
            self._advance(size)
            count -= size
        return self.taken - before

    def take(self, rows_max: int, where: str, rows_before: int) -> Any:
        """Return the next rows of one run, at most ``rows_max``; advance past a bad record and raise it."""
        run, start = self._runs[0], self._start
        if isinstance(run, Sifted):
            run, start = run.next_run(start), 0
            rows_max = min(rows_max, len(run))
        if isinstance(run, BadRecord):
            self._advance(1)
            raise _malformed(run, where, rows_before)
        size = min(rows_max, len(run) - start)
        self._advance(size)
        return _cut(run, start, start + size)

    def take_sifted(self, rows_max: int, where: str, rows_before: int) -> PolledRows:
        """Return the next rows of one run with the bad records among them, at most ``rows_max`` together."""
        run, start = self._runs[0], self._start
        if isinstance(run, BadRecord):
            self._advance(1)
            return PolledRows(None, 1, iter([_malformed(run, where, rows_before)]))
        if not isinstance(run, Sifted):
            return PolledRows(self.take(rows_max, where, rows_before), 0, iter(()))
        stop = min(start + rows_max, len(run))
        rows, bad = run.cut(start, stop)
        self._advance(stop - start)
        errors = (_malformed(run.bad(index), where, rows_before + run.at[index] - start) for index in bad)
        return PolledRows(rows, len(bad), errors)

    def _advance(self, size: int) -> None:
        self._start += size
        self.taken += size
        if self._start == len(self._runs[0]):
            self._runs.popleft()
            self._start = 0


Bytes: TypeAlias = "bytes | bytearray"
"""Bytes of a file."""


def text_of(record: Bytes) -> str | bytes:
    """Return a record for the dead-letter stream: text without its line end, or bytes that are not text."""
    record = bytes(record).rstrip(b"\r\n")
    try:
        return record.decode()
    except UnicodeDecodeError:
        return record


FRAME_BYTES: Final = 1 << 20
FRAME_BYTES_MIN: Final = 1 << 14
RECORD_BYTES_MAX: Final = 1 << 24
_HEAD_BYTES: Final = 1 << 12

Cut = Callable[[Bytes, bool], int]
"""(bytes from the start of a record on, whether the file ends with them) -> the end of the last whole record."""


@dataclass(frozen=True, slots=True)
class RecordFrame:
    """Whole records from ``offset`` up to ``end``. With ``flaw``: one unreadable record; ``data`` is its start."""

    offset: int
    end: int
    data: Bytes
    flaw: str | None = None


class Framer:
    """Cuts ``stream``, from its offset on, into frames; ``cut`` finds the ends of records."""

    def __init__(self, stream: ByteStream, cut: Cut) -> None:
        self._stream = stream
        self._cut = cut
        self._buffer = bytearray()
        self._ended = False
        self._damage: BaseException | None = None
        self.offset = stream.offset

    def next_frame(self, size: int | None = None) -> RecordFrame | None:
        """Return the next frame, of about ``size`` bytes: at least 16 KiB, at most 1 MiB unless a record is larger.

        None at the end of the file. Damage is raised after the last whole record.
        """
        goal = FRAME_BYTES if size is None else min(FRAME_BYTES, max(FRAME_BYTES_MIN, size))
        while True:
            self._fill(goal)
            # What is left of a larger frame must not count: a frame depends on the goal alone.
            is_all = len(self._buffer) <= goal
            window = self._buffer if is_all else self._buffer[:goal]
            if cut := self._cut(window, self._ended and is_all):
                return self._take(cut)
            if self._damage is not None and is_all:
                raise self._damage
            if not window:
                return None
            if (self._ended and is_all) or goal == RECORD_BYTES_MAX:
                return self._take_flaw(window)
            goal = min(goal * 2, RECORD_BYTES_MAX)

    def left(self) -> int | None:
        """Return how many bytes follow the last frame; None if the file is compressed."""
        left = self._stream.left()
        return None if left is None else left + len(self._buffer)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _fill(self, goal: int) -> None:
        """Read until the buffer has ``goal`` bytes. Its memory is asked for once: new pages cost more than a copy."""
        size = len(self._buffer)
        if size >= goal or self._ended or self._damage is not None:
            return
        buffer = bytearray(goal)
        buffer[:size] = self._buffer
        with memoryview(buffer) as room:
            while size < goal and not self._ended:
                try:
                    count = self._stream.read_into(room[size:])
                except READ_ERRORS as error:
                    self._damage = error
                    break
                size += count
                self._ended = not count
        # A copy: the traceback of damage keeps a view of the memory, which then cannot be cut.
        self._buffer = buffer if size == goal else buffer[:size]

    def _take(self, size: int, flaw: str | None = None) -> RecordFrame:
        if 2 * size < len(self._buffer):
            data = self._buffer[:size]
            del self._buffer[:size]
        else:  # copy what is left, which is less
            data, self._buffer = self._buffer, self._buffer[size:]
            del data[size:]
        frame = RecordFrame(self.offset, self.offset + size, data, flaw)
        self.offset = frame.end
        return frame

    def _take_flaw(self, window: bytearray) -> RecordFrame:
        """Return the first line as one bad record, so that the lines after it can be read."""
        line = window.find(b"\n") + 1
        if line or len(window) < RECORD_BYTES_MAX:
            return self._take(line or len(window), "a quoted field is never closed")
        head, start = bytes(window[:_HEAD_BYTES]), self.offset
        while not (line := self._buffer.find(b"\n") + 1):
            self.offset += len(self._buffer)
            self._buffer.clear()
            self._fill(FRAME_BYTES)
            if not self._buffer:
                break
        self.offset += line
        del self._buffer[:line]
        return RecordFrame(start, self.offset, head, f"a line is longer than {RECORD_BYTES_MAX >> 20} MiB")


class FramedPart(BasePart[Any]):
    """One csv, json or text file while it is read. The position is (offset of a frame, records taken from there).

    ``framer`` is at ``position``; ``remembered`` goes into each position unchanged. ``before_sifting`` is called before
    the first poll where bad records fail no job. A frame holds few more records than
    a poll asks for, so that many partitions read in turn take little memory.
    """

    def __init__(
        self,
        name: str,
        framer: Framer,
        *,
        decode: Callable[[Bytes], list[Run]],
        position: dict[str, Any],
        remembered: dict[str, Any],
        before_sifting: Callable[[], None] | None = None,
    ) -> None:
        self._name = name
        self._framer = framer
        self._decode = decode
        self._remembered = remembered
        self._before_sifting = before_sifting
        self._sifts = False
        self._cursor = Cursor()
        self._rows_before: int = position["rows"] - position["records"]
        self._skip: int = position["records"]
        self._finished = False
        self._begin = self._end = framer.offset
        self._record_bytes = 0

    def poll(self, rows_max: int) -> Any:
        if self._sifts and self._before_sifting is not None:
            self._before_sifting()
            self._before_sifting = None
        if not self._has_records(rows_max):
            return None
        take = self._cursor.take_sifted if self._sifts else self._cursor.take
        return take(rows_max, self._name, self._rows())

    def set_polls(self, *, frames: bool, bad_rows: bool) -> None:
        self._sifts = bad_rows

    def _has_records(self, rows_max: int) -> bool:
        try:
            while self._cursor.is_empty():
                if self._finished or not self._load(rows_max):
                    return False
        except READ_ERRORS as error:
            raise SourceError(
                f"{self._name} failed after {self._rows()} records were read: {why_unreadable(error)}."
            ) from error
        return True

    def is_finished(self) -> bool:
        return self._finished

    def snapshot(self) -> dict[str, Any]:
        # Records that a restored partition has yet to skip count as taken.
        position = {"offset": self._begin, "records": self._cursor.taken + self._skip}
        if self._cursor.is_empty() and not self._skip:
            position = {"offset": self._end, "records": 0}
        return {**self._remembered, **position, "rows": self._rows() + self._skip, "finished": self._finished}

    def lag_bytes(self) -> int | None:
        return self._framer.left()

    def close(self) -> None:
        self._framer.close()

    def _rows(self) -> int:
        return self._rows_before + self._cursor.taken

    def _load(self, rows_max: int) -> bool:
        """Load the next frame; finish and return False if there is none."""
        frame = self._framer.next_frame(FRAME_BYTES if self._skip else rows_max * self._record_bytes * 15 // 16)
        self._rows_before, self._cursor = self._rows(), Cursor()
        if frame is None:
            if self._skip:
                raise file_changed(self._name)
            self._finished = True
            return False
        runs = self._decode(frame.data) if frame.flaw is None else [BadRecord(frame.flaw, text_of(frame.data))]
        self._begin, self._end = frame.offset, frame.end
        self._record_bytes = len(frame.data) // max(1, sum(map(len, runs)))
        self._cursor = Cursor(runs)
        self._skip -= self._cursor.skip(self._skip)
        return True
