"""What is on its way to one other worker and has not been sent: rows or columns, and the epochs among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from malstrom_py.batches import Batch, ColumnBatch
from malstrom_py.rescale.channel import PlacedEpoch

if TYPE_CHECKING:
    import pyarrow as pa


class Gathering:
    """Rows of batches of one layout, and the epochs among them.

    ``size`` is in bytes for columns, and 0 for rows, of which nobody knows it before they are encoded.

    >>> gathering = Gathering()
    >>> gathering.add(Batch(["x", "y", "z"], keys=[1, 2, 3]), [0, 2])
    >>> gathering.epochs.append(PlacedEpoch(gathering.rows, 7))
    >>> gathering.batch().values, gathering.epochs
    (['x', 'z'], [PlacedEpoch(row=2, time=7, idle=False)])
    """

    __slots__ = ("_columns", "_keys", "_timestamps", "_values", "epochs", "rows", "size")

    def __init__(self) -> None:
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._timestamps: list[int] = []
        self._columns: list[ColumnBatch] = []
        self.epochs: list[PlacedEpoch] = []
        self.rows = 0
        self.size = 0

    def takes(self, batch: Batch) -> bool:
        """Whether ``batch`` goes together with what is here: of the same layout, and columns with the same schema."""
        if not self.rows:
            return True
        if not isinstance(batch, ColumnBatch):
            return not self._columns
        return bool(self._columns) and _shape(self._columns[0]) == _shape(batch)

    def add(self, batch: Batch, indices: Sequence[int]) -> None:
        """Add the rows of ``batch`` at ``indices``, of which there are some."""
        pick: Callable[[list[Any]], Sequence[Any]] = (
            itemgetter(*indices) if len(indices) > 1 else lambda column: (column[indices[0]],)
        )
        self._keys.extend(pick(batch.keys or []))
        self._values.extend(pick(batch.values))
        if batch.timestamps is not None:
            self._timestamps.extend(pick(batch.timestamps))
        self.rows = len(self._values)

    def add_columns(self, batch: ColumnBatch) -> None:
        """Add all rows of ``batch``."""
        self._columns.append(batch)
        self.rows += len(batch)
        self.size += batch.columns.nbytes

    def batch(self) -> Batch:
        """All rows as one batch."""
        if not self._columns:
            return Batch(self._values, keys=self._keys, timestamps=self._timestamps or None)
        return self._columns[0] if len(self._columns) == 1 else _joined(self._columns)


def _shape(batch: ColumnBatch) -> tuple[object, ...]:
    """What has to be equal for two batches to be joined."""
    return (
        batch.columns.schema,
        None if batch.key_column is None else batch.key_column.type,
        batch.time_column is None,
        batch.is_timed,
    )


def _joined(batches: Sequence[ColumnBatch]) -> ColumnBatch:
    import pyarrow as pa

    first = batches[0]
    lists = first.key_column is None
    return ColumnBatch(
        pa.concat_batches([batch.columns for batch in batches]),
        keys=[key for batch in batches for key in batch.keys or []] if lists else None,
        key_column=None if lists else _concatenated([batch.key_column for batch in batches]),
        timestamps=[time for batch in batches for time in batch.timestamps or []]
        if first.is_timed and first.time_column is None
        else None,
        time_column=None if first.time_column is None else _concatenated([batch.time_column for batch in batches]),
    )


def _concatenated(arrays: Sequence[pa.Array | None]) -> pa.Array:
    import pyarrow as pa

    return pa.concat_arrays(arrays)
