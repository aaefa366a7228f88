"""Encoder of Parquet files for Spark: that of `sinks.Files`, with Spark's types and columns that keep their type.

With an explicit schema (`GivenColumns`), values that do not fit are refused, and no type is inferred.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from malstrom_py.data.batch import Batch
from malstrom_py.data.row_form import fields_of
from malstrom_py.data.rows_to_columns import Column, KindCheck
from malstrom_py.data.schema import ColumnKind, accepts, contains, kind_of, plain, recast
from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.files.tables import ParquetEncoder
from malstrom_py.sinks.files.writer import FilesWriter, RollingFiles
from malstrom_py.sinks.spark.schema import joined_schema, schema_for_spark, without_nulls

if TYPE_CHECKING:
    import pyarrow as pa


class GivenColumns:
    """Converts rows as `RowColumns` does, into an explicit ``schema``: a missing field is None, an extra one an error.

    Ints fit columns of floats and Decimals, and numbers fit narrower columns that can hold them. The stream's key is
    left out if the schema has no column ``key``.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._kinds = KindCheck(SinkError)

    def convert(
        self,
        values: list[Any],
        *,
        leading: Mapping[str, Column] | None = None,
        lists: Mapping[Any, list[Any]] | None = None,
    ) -> pa.RecordBatch:
        """See `RowColumns.convert`."""
        given = {name: column for name, column in (leading or {}).items() if name in self._schema.names}
        if lists is not None:
            self._check({*lists})
            none: list[Any] = [None] * len(values)
            return self._batch(given.get(name) or lists.get(name, none) for name in self._schema.names)
        rows = fields_of(values)
        self._check(set().union(*rows))
        columns = (given.get(name) or [row.get(name) for row in rows] for name in self._schema.names)
        return self._batch(columns)

    def admit(self, columns: pa.RecordBatch, *, leading: Mapping[str, Column] | None = None) -> pa.RecordBatch:
        """See `RowColumns.admit`."""
        names = columns.schema.names
        if len(set(names)) < len(names):
            raise SinkError("two columns have the same name: rename one")
        self._check(set(names))
        there: dict[str, Column] = {**(leading or {}), **dict(zip(names, columns.columns, strict=True))}
        return self._batch(there.get(name, [None] * len(columns)) for name in self._schema.names)

    def widened(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """See `RowColumns.widened`: an explicit schema never widens."""
        return batch if batch.schema.equals(schema) else batch.cast(schema)

    def _check(self, names: set[Any]) -> None:
        if extra := names.difference(self._schema.names):
            listed = ", ".join(sorted(map(repr, extra)))
            raise SinkError(f"columns {listed} are not in the schema of the sink: drop them in a map step")

    def _batch(self, columns: Any) -> pa.RecordBatch:
        import pyarrow as pa

        arrays = [self._array(field, column) for field, column in zip(self._schema, columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, field: pa.Field, column: Column) -> pa.Array:
        import pyarrow as pa

        if isinstance(column, list) and _is_map(field.type):
            column = [list(value.items()) if isinstance(value, dict) else value for value in column]
        elif isinstance(column, list):
            self._kinds.check(field.name, column)
        try:
            if isinstance(column, list) and contains(field.type, _is_map):
                return pa.array(column, field.type)
            found = pa.array(column) if isinstance(column, list) else plain(column)
            if not accepts(field.type, found.type):
                raise pa.ArrowInvalid("another kind of value")
            return pa.array(column, field.type) if isinstance(column, list) else recast(found, field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            if isinstance(column, list):
                what = ", ".join(sorted({type(value).__name__ for value in column if value is not None}))
            else:
                what = str(column.type)
            raise SinkError(
                f"column {field.name!r} holds values ({what}) that do not fit its type in the schema, {field.type}: "
                f"convert them in a map step"
            ) from None


def _is_map(kind: pa.DataType) -> bool:
    return kind_of(kind) is ColumnKind.MAP


class SparkEncoder(ParquetEncoder):
    """Encodes the columns of ``given``, else of the first batch. ``known``: their types so far, as Spark's types."""

    def __init__(self, files: RollingFiles, partition_by: Sequence[str], given: pa.Schema | None) -> None:
        super().__init__(files, partition_by, None if given is None else GivenColumns(given))
        self._seen: pa.Schema | None = None
        self.known: pa.Schema | None = None

    def _check(self, schema: pa.Schema) -> None:
        if self._seen is not None and self._seen.equals(schema):
            return
        found = schema_for_spark(schema)
        if self.known is not None:
            found = joined_schema(self.known, found, of_known="before", of_found="now")
        self._seen, self.known = schema, found

    def _type_in_file(self, kind: pa.DataType) -> pa.DataType:
        import pyarrow as pa

        return without_nulls(schema_for_spark(pa.schema([("", kind)])).field(0).type)


class SparkWriter:
    """Writes as `sinks.Files` does, and adds the schema to the payload."""

    def __init__(self, writer: FilesWriter, encoder: SparkEncoder) -> None:
        self._writer = writer
        self._encoder = encoder

    def pre_commit(self, context: CommitContext) -> bytes:
        """See `TransactionalWriter.pre_commit`."""
        named = json.loads(self._writer.pre_commit(context))
        known = self._encoder.known
        if known is not None and named["files"]:
            named["schema"] = base64.b64encode(known.serialize().to_pybytes()).decode()
        return json.dumps(named).encode()

    def write(self, batch: Batch) -> None:
        """See `SinkWriter.write`."""
        self._writer.write(batch)

    def close(self) -> None:
        """See `SinkWriter.close`."""
        self._writer.close()
