"""Batches as record batches for files. The columns of a file are those of the values, without partition columns; on a
keyed stream the key is the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from malstrom_py.data.batch import Batch
from malstrom_py.data.row_form import field_lists, fields_of
from malstrom_py.data.rows_to_columns import Column, RowColumns
from malstrom_py.errors import SinkError

if TYPE_CHECKING:
    import pyarrow as pa


class KeyRule:
    """Decides whether the stream's key is written: once, by the first values, and then the same for all."""

    def __init__(self) -> None:
        self._is_written: bool | None = None

    def is_written(self, with_field: int, rows: int) -> bool:
        """Return whether the key is written for ``rows`` values, of which ``with_field`` have a field ``key``.

        Raise `SinkError` if some values have such a field and others do not.
        """
        if self._is_written is None:
            self._is_written = not with_field
        if with_field != (0 if self._is_written else rows):
            raise SinkError(
                "column 'key' would hold the stream's key for some values and their own field for others: "
                "in a map step give all values a field 'key', or none"
            )
        return self._is_written


class Converter(Protocol):
    """Converts rows and columns into record batches, as `RowColumns` does."""

    def convert(
        self,
        values: list[Any],
        *,
        leading: Mapping[str, Column] | None = None,
        lists: Mapping[Any, list[Any]] | None = None,
    ) -> pa.RecordBatch:
        """Convert rows. ``lists``: their `field_lists`, if they have been made."""
        ...

    def admit(self, columns: pa.RecordBatch, *, leading: Mapping[str, Column] | None = None) -> pa.RecordBatch:
        """Convert columns."""
        ...

    def widened(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Cast an earlier batch to wider types."""
        ...


class BatchConverter:
    """Converts the batches of one writer, rows or columns, into record batches of one schema (see `RowColumns`).

    ``partition_by`` names columns that are returned separately. ``rows`` is the converter, by default a `RowColumns`.
    ``schema`` is the widest schema of the other columns so far; None before the first row. ``takes_key``: whether the
    stream's key becomes a column ``key``.
    """

    def __init__(
        self, partition_by: Sequence[str] = (), rows: Converter | None = None, *, takes_key: bool = True
    ) -> None:
        self.partition_by = partition_by
        self._takes_key = takes_key
        self._rows: Converter = rows or RowColumns(SinkError)
        self.schema: pa.Schema | None = None
        self._key_rule = KeyRule()

    def convert(self, batch: Batch) -> tuple[list[pa.Array], pa.RecordBatch]:
        """Return the partition columns of ``batch`` and its other columns; widen `schema` to hold them."""
        converted = self._of_rows(batch) if batch.columns is None else self._of_columns(batch, batch.columns)
        names = [name for name in converted.schema.names if name not in self.partition_by]
        if not names:
            raise SinkError("all columns are partition columns, so the files would have none: add a column")
        others = converted.select(names)
        self.schema = others.schema
        return [converted.column(name) for name in self.partition_by], others

    def widened(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Cast an earlier ``batch`` to the wider types of ``schema``."""
        return self._rows.widened(batch, schema)

    def _of_rows(self, batch: Batch) -> pa.RecordBatch:
        lists = field_lists(batch.values)
        rows = fields_of(batch.values) if lists is None else batch.values
        if batch.keys is None:
            with_field = 0
        elif lists is None:
            with_field = sum("key" in row for row in rows)
        else:
            with_field = len(batch) if "key" in lists else 0
        leading = self._leading(batch, with_field)
        check_partition_columns(self.partition_by, rows if lists is None else [lists], leading)
        return self._rows.convert(rows, leading=leading, lists=lists)

    def _of_columns(self, batch: Batch, columns: pa.RecordBatch) -> pa.RecordBatch:
        names = columns.schema.names
        leading = self._leading(batch, len(batch) if "key" in names else 0)
        check_partition_columns(self.partition_by, [dict.fromkeys(names)], leading)
        return self._rows.admit(columns, leading=leading)

    def _leading(self, batch: Batch, with_field: int) -> dict[str, Column]:
        keys: Column | None = batch.keys if batch.key_column is None else batch.key_column
        if keys is None or not self._takes_key or not self._key_rule.is_written(with_field, len(batch)):
            return {}
        return {"key": keys}


def check_partition_columns(
    columns: Sequence[str], rows: Sequence[Mapping[Any, Any]], leading: Mapping[str, Column]
) -> None:
    """Raise `SinkError` unless all ``rows`` have all partition ``columns`` that are not among ``leading``."""
    for name in columns:
        if name not in leading and not all(name in row for row in rows):
            raise SinkError(f"some values lack the partition column {name!r}: give it to all, as None if unknown")
