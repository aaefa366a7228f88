"""A source of columns that are in memory."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from malstrom_py.sources import Part

if TYPE_CHECKING:
    import pyarrow as pa


class InMemory:
    """A source of one part that gives slices of a record batch: of the columns that the plan reads, as a file would."""

    is_narrowing = True

    def __init__(self, columns: pa.RecordBatch) -> None:
        self.columns = columns

    def list_parts(self) -> list[Part]:
        return [Part("0")]

    def build_part(self, part: Part, state: Any) -> _Slices:
        return _Slices(self.columns, state or 0)

    def build_narrow_part(self, part: Part, state: Any, columns: Collection[str]) -> _Slices:
        names = [name for name in self.columns.schema.names if name in columns]
        return _Slices(self.columns.select(names), state or 0)


class _Slices:
    def __init__(self, columns: pa.RecordBatch, position: int) -> None:
        self._columns = columns
        self._position = position

    def poll(self, rows_max: int) -> pa.RecordBatch:
        rows = self._columns.slice(self._position, rows_max)
        self._position += rows.num_rows
        return rows

    def is_finished(self) -> bool:
        return bool(self._position >= self._columns.num_rows)

    def snapshot(self) -> int:
        return self._position

    def close(self) -> None:
        """Nothing is open."""
