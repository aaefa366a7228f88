"""The columns of a file: those of the values, and on a keyed stream the key before them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from malstrom_py.batches import Batch
from malstrom_py.errors import SinkError
from malstrom_py.row_columns import RowColumns, fields_of

if TYPE_CHECKING:
    import pyarrow as pa


class KeyRule:
    """Whether the stream's key is written: decided once, by the first value, and the same for every one."""

    def __init__(self) -> None:
        self._is_written: bool | None = None

    def is_written(self, rows: list[dict[str, Any]], keys: list[Any] | None) -> bool:
        """Whether ``rows`` get the stream's ``keys``; `SinkError` if some have a field ``key`` and some have not."""
        if keys is None or not rows:
            return False
        if self._is_written is None:
            self._is_written = "key" not in rows[0]
        if sum("key" in row for row in rows) != (0 if self._is_written else len(rows)):
            raise SinkError(
                "column 'key' would hold the stream's key for some values and their own field for others: "
                "in a map step give all values a field 'key', or none"
            )
        return self._is_written


class Columns:
    """Turns the batches of one writer into record batches of one schema (see `RowColumns`)."""

    def __init__(self) -> None:
        self._rows = RowColumns(SinkError)
        self._key_rule = KeyRule()

    @property
    def schema(self) -> pa.Schema | None:
        """The widest so far; None before the first row."""
        return self._rows.schema

    def convert(self, batch: Batch) -> pa.RecordBatch:
        """The rows of ``batch`` as columns, after `schema` has widened to hold them."""
        rows = fields_of(batch.values)
        if batch.keys is not None and self._key_rule.is_written(rows, batch.keys):
            return self._rows.convert(rows, leading={"key": batch.keys})
        return self._rows.convert(rows)

    def widened(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """``batch`` with the wider types of ``schema``."""
        return self._rows.widened(batch, schema)


def without_null_type(schema: pa.Schema) -> pa.Schema:
    """``schema`` as it stands in a file: a column of None only is one of str, for many readers know no null type."""
    import pyarrow as pa

    return pa.schema([field.with_type(pa.string()) if pa.types.is_null(field.type) else field for field in schema])
