"""The columns of a file: those of the values, on a keyed stream the key before them, without partition columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from malstrom_py.batches import Batch
from malstrom_py.errors import SinkError
from malstrom_py.row_columns import Column, RowColumns, fields_of

if TYPE_CHECKING:
    import pyarrow as pa


class KeyRule:
    """Whether the stream's key is written: decided once, by the first values, and the same for every one."""

    def __init__(self) -> None:
        self._is_written: bool | None = None

    def is_written(self, with_field: int, rows: int) -> bool:
        """Whether ``rows`` values, ``with_field`` of which have a field ``key``, get the stream's key.

        `SinkError` if some have such a field and some have not.
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
    """What makes record batches, such as `RowColumns`."""

    def convert(self, values: list[Any], *, leading: Mapping[str, Column] | None = None) -> pa.RecordBatch:
        """Of rows."""
        ...

    def admit(self, columns: pa.RecordBatch, *, leading: Mapping[str, Column] | None = None) -> pa.RecordBatch:
        """Of columns."""
        ...

    def widened(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """An earlier batch with wider types."""
        ...


class Columns:
    """Turns the batches of one writer, rows or columns, into record batches of one schema (see `RowColumns`).

    ``partition_by`` names columns that stand apart. ``rows`` makes them, a `RowColumns` if None. ``schema`` is the
    widest of the others so far; None before the first row.
    """

    def __init__(self, partition_by: Sequence[str] = (), rows: Converter | None = None) -> None:
        self._partition_by = partition_by
        self._rows: Converter = rows or RowColumns(SinkError)
        self.schema: pa.Schema | None = None
        self._key_rule = KeyRule()

    def convert(self, batch: Batch) -> tuple[list[pa.Array], pa.RecordBatch]:
        """The partition columns of ``batch``, and its other columns, after `schema` has widened to hold them."""
        converted = self._of_rows(batch) if batch.columns is None else self._of_columns(batch, batch.columns)
        names = [name for name in converted.schema.names if name not in self._partition_by]
        if not names:
            raise SinkError("all columns are partition columns, so none is left for the files: add one")
        others = converted.select(names)
        self.schema = others.schema
        return [converted.column(name) for name in self._partition_by], others

    def widened(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """An earlier ``batch`` with the wider types of ``schema``."""
        return self._rows.widened(batch, schema)

    def _of_rows(self, batch: Batch) -> pa.RecordBatch:
        rows = fields_of(batch.values)
        leading = self._leading(batch, sum("key" in row for row in rows) if batch.keys is not None else 0)
        check_present(self._partition_by, rows, leading)
        return self._rows.convert(rows, leading=leading)

    def _of_columns(self, batch: Batch, columns: pa.RecordBatch) -> pa.RecordBatch:
        names = columns.schema.names
        leading = self._leading(batch, len(batch) if "key" in names else 0)
        check_present(self._partition_by, [dict.fromkeys(names)], leading)
        return self._rows.admit(columns, leading=leading)

    def _leading(self, batch: Batch, with_field: int) -> dict[str, Column]:
        keys: Column | None = batch.keys if batch.key_column is None else batch.key_column
        if keys is None or not self._key_rule.is_written(with_field, len(batch)):
            return {}
        return {"key": keys}


def check_present(columns: Sequence[str], rows: Sequence[dict[str, Any]], leading: dict[str, Column]) -> None:
    """`SinkError` unless each of ``rows`` has each of the partition ``columns`` that is not among ``leading``."""
    for name in columns:
        if name not in leading and not all(name in row for row in rows):
            raise SinkError(f"partition column {name!r} is no field of some value: give it to all, None if need be")
