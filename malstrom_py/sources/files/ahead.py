"""A partition of an object, read ahead in a thread: a store blocks, and `SourcePart.poll` must not.

The thread polls the partition and keeps what it returns, with the positions before and after. A chunk may be taken in
pieces. Its position in between counts from one of the two: a row group has its own count of records, and a frame may
be resumed at any record after the start of the last one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from malstrom_py.errors import MalformedRecord
from malstrom_py.sources.base import BasePart, PolledRows
from malstrom_py.sources.files.frames import Cursor
from malstrom_py.sources.files.parquet import Filter
from malstrom_py.sources.files.reading import LazyPart
from malstrom_py.sources.polled.ahead import ReadAhead

_ROWS_MIN: Final = 1 << 13


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What one poll has returned or raised; ``size``: its number of rows that may be taken in pieces."""

    rows: Any
    size: int
    error: MalformedRecord | None
    before: dict[str, Any]
    after: dict[str, Any]
    finished: bool
    lag_rows: int | None
    lag_bytes: int | None

    def position(self, taken: int) -> dict[str, Any]:
        """Return the position after ``taken`` of the rows."""
        if taken == self.size:
            return self.after
        base, more = (self.after, taken - self.size) if "row_group" in self.after else (self.before, taken)
        return {**base, "records": base["records"] + more, "rows": base["rows"] + more, "finished": False}


class AheadPart(BasePart[Any]):
    """Reads ``inner`` in a thread, from the first poll on; ``filter`` is applied to what is returned."""

    wait_max_s = 0.02

    def __init__(self, name: str, inner: LazyPart, filter: Filter | None = None) -> None:
        self._name = name
        self._inner = inner
        self._filter = filter
        self._ahead: ReadAhead[_Chunk] | None = None
        self._chunk: _Chunk | None = None
        self._cursor = Cursor()
        self._rows_max = _ROWS_MIN
        self._start = inner.snapshot()
        self._finished = inner.is_finished()
        self._polls = self._polls_set = {"frames": False, "bad_rows": False}

    def set_polls(self, *, frames: bool, bad_rows: bool) -> None:
        """Choose what `poll` returns, after the chunks that were read ahead."""
        self._polls = {"frames": frames, "bad_rows": bad_rows}

    def poll(self, rows_max: int) -> Any:
        while (rows := self._next_piece(rows_max)) is not None:
            kept = rows if self._filter is None or isinstance(rows, PolledRows) else self._filter.kept(rows)
            if len(kept):
                return kept
        return None

    def is_finished(self) -> bool:
        return self._finished

    def snapshot(self) -> dict[str, Any]:
        return self._start if self._chunk is None else dict(self._chunk.position(self._cursor.taken))

    def lag_rows(self) -> int | None:
        return None if self._chunk is None else self._chunk.lag_rows

    def lag_bytes(self) -> int | None:
        return None if self._chunk is None else self._chunk.lag_bytes

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
        else:
            self._inner.close()

    def _next_piece(self, rows_max: int) -> Any:
        if self._finished:
            return None
        self._rows_max = max(_ROWS_MIN, rows_max)
        if self._ahead is None:
            self._ahead = ReadAhead(self._fetch, name=f"files-{self._name[-20:]}", release=self._inner.close)
            self._ahead.start()
        if self._cursor.is_empty():
            chunk = self._ahead.take()
            if chunk is None:
                return None
            self._chunk, self._cursor = chunk, Cursor([chunk.rows] if chunk.size else [])
            if chunk.error is not None:
                raise chunk.error
            self._finished = chunk.finished and not chunk.size
            if isinstance(chunk.rows, PolledRows):
                return chunk.rows
            if not chunk.size:
                return None
        return self._cursor.take(rows_max, self._name, 0)

    def _fetch(self) -> _Chunk | None:
        inner, error = self._inner, None
        rows: Any = None
        if inner.is_finished():
            raise StopIteration
        inner.ensure_open()
        if (polls := self._polls) is not self._polls_set:
            inner.set_polls(**polls)
            self._polls_set = polls
        before = inner.snapshot()
        try:
            rows = inner.poll(self._rows_max)
            if isinstance(rows, PolledRows) and not rows.bad:
                rows = rows.rows
        except MalformedRecord as malformed:
            error = malformed
        if rows is None and error is None and not inner.is_finished():
            return None
        size = 0 if rows is None or isinstance(rows, PolledRows) else len(rows)
        after, finished = inner.snapshot(), inner.is_finished()
        return _Chunk(rows, size, error, before, after, finished, inner.lag_rows(), inner.lag_bytes())
