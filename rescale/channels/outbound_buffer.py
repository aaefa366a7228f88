"""The rows for another worker that wait until they are enough for a frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from malstrom_py.data.batch import Batch, ColumnBatch, place_of

if TYPE_CHECKING:
    import pyarrow as pa


class OutboundBuffer:
    """Buffers rows of one layout. ``buffered_bytes``: of columns; 0 for rows, which have no size before encoding.

    >>> buffer = OutboundBuffer()
    >>> buffer.add(Batch(["x"], keys=[1]))
    >>> buffer.add(Batch(["y", "z"], keys=[2, 3]))
    >>> buffer.emptied().values
    ['x', 'y', 'z']
    """

    def __init__(self) -> None:
        self._empty()

    def _empty(self) -> None:
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._timestamps: list[int] = []
        self._columns: list[ColumnBatch] = []
        self.buffered_rows = 0
        self.buffered_bytes = 0

    def fits(self, batch: Batch) -> bool:
        """Return whether ``batch`` can be appended: the same layout, and for columns the same form and schema."""
        if not self.buffered_rows:
            return True
        if not isinstance(batch, ColumnBatch):
            return not self._columns
        return bool(self._columns) and _shape(self._columns[0]) == _shape(batch)

    def add(self, batch: Batch) -> None:
        """Add all rows of ``batch``."""
        self.buffered_rows += len(batch)
        if isinstance(batch, ColumnBatch):
            self._columns.append(batch)
            self.buffered_bytes += batch.columns.nbytes
            return
        self._keys += batch.keys or []
        self._values += batch.values
        self._timestamps += batch.timestamps or []

    def emptied(self) -> Batch:
        """Return all rows as one batch, and empty the buffer."""
        columns = self._columns
        if not columns:
            batch = Batch(self._values, keys=self._keys, timestamps=self._timestamps or None)
        else:
            batch = columns[0] if len(columns) == 1 else _joined(columns)
        self._empty()
        return batch


def _shape(batch: ColumnBatch) -> tuple[object, ...]:
    """Return what must be equal in batches that are joined."""
    return (
        batch.form,
        batch.columns.schema,
        None if batch.key_column is None else batch.key_column.type,
        batch.time_column is None,
        batch.is_timed,
    )


def _joined(batches: Sequence[ColumnBatch]) -> ColumnBatch:
    import pyarrow as pa

    first = batches[0]
    columns = pa.concat_batches([batch.columns for batch in batches])
    lists = first.key_column is None
    times = None if first.time_column is None else [batch.time_column for batch in batches]
    return ColumnBatch(
        columns,
        keys=[key for batch in batches for key in batch.keys or []] if lists else None,
        key_column=None if lists else _concatenated([batch.key_column for batch in batches], batches, columns),
        timestamps=[time for batch in batches for time in batch.timestamps or []]
        if first.is_timed and times is None
        else None,
        time_column=None if times is None else _concatenated(times, batches, columns),
        form=first.form,
    )


def _concatenated(arrays: Sequence[Any], batches: Sequence[ColumnBatch], columns: pa.RecordBatch) -> pa.Array:
    """Return ``arrays``, one of each batch, as one: one of ``columns`` if each is that of its batch."""
    import pyarrow as pa

    places = {place_of(array, batch.columns) for array, batch in zip(arrays, batches, strict=True)}
    place = places.pop() if len(places) == 1 else None
    return pa.concat_arrays(arrays) if place is None else columns.column(place)
