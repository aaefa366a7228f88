"""What became of the records of one frame: runs of good rows, and records that could not be read, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from malstrom_py.batches import ColumnBatch
from malstrom_py.errors import MalformedRecord

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Malformed:
    """One record that could not be read: ``why`` in words without its content, and what was read."""

    why: str
    record: object

    def __len__(self) -> int:
        return 1


Run: TypeAlias = "Malformed | list[Any] | pa.RecordBatch | ColumnBatch"


class Cursor:
    """Takes rows out of ``runs``, and lets go of each run that has been taken. ``taken`` counts malformed ones too."""

    def __init__(self, runs: Sequence[Run] = ()) -> None:
        self._runs = deque(run for run in runs if len(run))
        self._start = 0
        self.taken = 0

    def is_empty(self) -> bool:
        """Whether everything has been taken."""
        return not self._runs

    def skip(self, count: int) -> int:
        """Leave out the next ``count`` records, or all there are; how many were left out."""
        before = self.taken
        while count and not self.is_empty():
            size = min(count, len(self._runs[0]) - self._start)
            self._advance(size)
            count -= size
        return self.taken - before

    def take(self, rows_max: int, where: str, rows_before: int) -> Any:
        """The next rows of one run, at most ``rows_max``; a malformed record is raised, the cursor past it."""
        run = self._runs[0]
        if isinstance(run, Malformed):
            self._advance(1)
            raise MalformedRecord(f"{where}, record {rows_before + 1}: {run.why}.", record=run.record)
        start, size = self._start, min(rows_max, len(run) - self._start)
        self._advance(size)
        if size == len(run):
            return run
        if isinstance(run, ColumnBatch):
            return run.cut(start, start + size)
        return run[start : start + size] if isinstance(run, list) else run.slice(start, size)

    def _advance(self, size: int) -> None:
        self._start += size
        self.taken += size
        if self._start == len(self._runs[0]):
            self._runs.popleft()
            self._start = 0


def text_of(record: bytes) -> str | bytes:
    """A record for the dead-letter stream: text without its line end, or the bytes where they are no text."""
    record = record.rstrip(b"\r\n")
    try:
        return record.decode()
    except UnicodeDecodeError:
        return record
