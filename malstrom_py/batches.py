"""The batch: the unit that moves on every edge of a job. Immutable once it has been sent.

Row layout: parallel Python lists, because one list per column costs a third of one object per record.
Column layout: an Arrow ``RecordBatch``. `rows_of` is the only place where columns become rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    import pyarrow as pa


@final
class Batch:
    """Rows as parallel columns of equal length.

    ``values`` is always there; ``keys`` is None on an unkeyed stream and ``timestamps`` (int64 in the
    stream's unit) None on one without timestamps. ``part`` names the source part all rows come from, as long
    as they have not been exchanged (T1: lateness belongs to the part). The lists are shared between branches
    of the graph: never change them.

    >>> batch = Batch([10, 20, 30], keys=["a", "b", "a"])
    >>> len(batch), batch.compress([1, 0, 1]).values
    (3, [10, 30])
    """

    __slots__ = ("keys", "part", "timestamps", "values")

    def __init__(
        self,
        values: list[Any],
        *,
        keys: list[Any] | None = None,
        timestamps: list[int] | None = None,
        part: str | None = None,
    ) -> None:
        self.values = values
        self.keys = keys
        self.timestamps = timestamps
        self.part = part

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        columns = [name for name in ("keys", "values", "timestamps") if getattr(self, name) is not None]
        return f"Batch({len(self)} rows of {', '.join(columns)})"

    def with_values(self, values: list[Any]) -> Batch:
        """The same rows with other values, one for one."""
        return Batch(values, keys=self.keys, timestamps=self.timestamps, part=self.part)

    def with_keys(self, keys: list[Any]) -> Batch:
        """The same rows under other keys, as they leave for an exchange: their part is forgotten."""
        return Batch(self.values, keys=keys, timestamps=self.timestamps)

    def with_timestamps(self, timestamps: list[int]) -> Batch:
        """The same rows at other times."""
        return Batch(self.values, keys=self.keys, timestamps=timestamps, part=self.part)

    def compress(self, mask: Sequence[Any]) -> Batch:
        """The rows whose entry in ``mask`` is true, in order."""
        return self._each(lambda column: list(compress(column, mask)))

    def cut(self, start: int, end: int) -> Batch:
        """The rows from ``start`` up to ``end``."""
        return self._each(lambda column: column[start:end])

    def take(self, indices: Sequence[int]) -> Batch:
        """The rows at ``indices``, in that order; an index may repeat."""
        return self._each(lambda column: [column[i] for i in indices])

    def drop(self, indices: Iterable[int]) -> Batch:
        """All rows but those at ``indices``."""
        mask = bytearray(b"\x01") * len(self)
        for index in indices:
            mask[index] = 0
        return self.compress(mask)

    def _each(self, pick: Any) -> Batch:
        keys, timestamps = self.keys, self.timestamps
        return Batch(
            pick(self.values),
            keys=None if keys is None else pick(keys),
            timestamps=None if timestamps is None else pick(timestamps),
            part=self.part,
        )


def rows_of(columns: pa.RecordBatch) -> list[dict[str, Any]]:
    """An Arrow record batch as one dict per row: column name -> Python value, None for null.

    >>> import pyarrow as pa
    >>> rows_of(pa.RecordBatch.from_pydict({"carrier": ["UA", "B6"], "delay": [2, None]}))
    [{'carrier': 'UA', 'delay': 2}, {'carrier': 'B6', 'delay': None}]
    """
    names = columns.schema.names
    lists = [column.to_pylist() for column in columns.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]
