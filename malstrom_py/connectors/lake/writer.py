"""The encoder of one worker: batches into the columns of a table.

Rows become columns, and columns are cast to those of the table (`types`). All that could make the commit fail is
checked here, before a snapshot is durable: types, new columns and changes of the table. So a missing table, or column,
is made by the first writer that needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.connectors.lake.table import LakeTable, app_of
from malstrom_py.connectors.lake.types import Shape, new_columns
from malstrom_py.data.batch import Batch
from malstrom_py.data.rows_to_columns import Column, RowColumns
from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.files.encoding import BatchConverter
from malstrom_py.sinks.files.partitions import parse_folder
from malstrom_py.sinks.files.schemas import with_digits
from malstrom_py.sinks.files.tables import ParquetTables, pieces
from malstrom_py.sinks.staged import Stage
from malstrom_py.sinks.staged.writing import GROUP_BYTES, EncodedRows, RollingFiles, WrittenFile
from malstrom_py.snapshot.ids import number_of
from malstrom_py.worker_context import WorkerInfo

if TYPE_CHECKING:
    import pyarrow as pa

_PENDING_ROWS: Final = 1 << 16


class _OpenColumns:
    """Converts rows as `RowColumns` does; rows may get new fields, and columns get new types."""

    def __init__(self) -> None:
        self._rows = RowColumns(SinkError)

    def convert(
        self,
        values: list[Any],
        *,
        leading: Mapping[str, Column] | None = None,
        lists: Mapping[Any, list[Any]] | None = None,
    ) -> pa.RecordBatch:
        """See `RowColumns.convert`."""
        self._expect({*set().union(*values)} if lists is None else {*lists})
        return self._rows.convert(values, leading=leading, lists=lists)

    def admit(self, columns: pa.RecordBatch, *, leading: Mapping[str, Column] | None = None) -> pa.RecordBatch:
        """See `RowColumns.admit`."""
        self._expect(set(columns.schema.names))
        return self._rows.admit(columns, leading=leading)

    def widened(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """See `RowColumns.widened`."""
        return self._rows.widened(batch, schema)

    def _expect(self, names: set[Any]) -> None:
        if self._rows.schema is not None and not names <= set(self._rows.schema.names):
            self._rows = RowColumns(SinkError)


class LakeEncoder(ParquetTables):
    """Encodes the batches of one worker for ``table``."""

    def __init__(
        self, table: LakeTable[Any, Any], worker: WorkerInfo, *, file_bytes_max: int, takes_key: bool = True
    ) -> None:
        self.files = RollingFiles(self._stage, "parquet", file_bytes_max=file_bytes_max)
        super().__init__(self.files, BatchConverter((), _OpenColumns(), takes_key=takes_key))
        self._table = table
        self._worker = worker
        self._shape: Shape | None = None
        self._pending: list[pa.RecordBatch] = []
        self._seen: pa.Schema | None = None
        self._has_rows = False

    def where(self) -> str:
        """Return what the rows are written to, for errors."""
        return "the table" if self._shape is None else self._shape.where

    def rest(self) -> Iterable[EncodedRows[pa.RecordBatch]]:
        """Find out the columns of the table with the first rows, and encode these."""
        import pyarrow as pa

        if not self._pending:
            return []
        try:
            schema = pa.unify_schemas([one.schema for one in self._pending], promote_options="permissive")
        except pa.ArrowException:
            raise SinkError(
                "the first rows hold values of different types in one column: convert them to one type in a map step"
            ) from None
        self._shape = self._ensure(schema)
        pending, self._pending = self._pending, []
        with self._arrow_errors():
            return [piece for columns in pending for piece in self._fitted(self._shape, columns)]

    def finish(self, context: CommitContext) -> None:
        super().finish(context)
        if self.files.written:
            self._check_table(self._known_shape(), context)

    def details(self, file: WrittenFile) -> Mapping[str, Any]:
        import pyarrow.parquet as pq

        shape, metadata = self._known_shape(), pq.read_metadata(file.path)
        values = [parse_folder(name) for name in file.folder.split("/")] if file.folder else []
        return {
            "size": file.path.stat().st_size,
            "rows": metadata.num_rows,
            "values": [None if value is None else value[1] for value in values],
            "stats": self._table.describe(shape, metadata),
            "spec": shape.spec,
        }

    def target_folder(self, folder: str) -> str:
        return self._known_shape().place.folder(folder)

    def _encode(self, batch: Batch) -> Iterable[EncodedRows[pa.RecordBatch]]:
        self._has_rows |= batch.columns is None
        columns = self._converted(batch)
        if self._shape is None and not self._pending:
            seen = self._table.look(app_of(self._worker.job, self._worker.step))
            self._shape = None if seen is None else seen.shape
        if self._shape is not None:
            return self._fitted(self._shape, columns)
        # The first rows give the columns of a table that is to be created, so they are looked at together.
        self._pending.append(columns)
        is_enough = sum(map(len, self._pending)) >= _PENDING_ROWS
        return self.rest() if is_enough or sum(one.nbytes for one in self._pending) >= GROUP_BYTES else ()

    def _converted(self, batch: Batch) -> pa.RecordBatch:
        return self._columns.convert(batch)[1]

    def _fitted(self, shape: Shape, columns: pa.RecordBatch) -> Iterable[EncodedRows[pa.RecordBatch]]:
        """Return ``columns`` in those of the table, after adding those that it lacks."""
        shape = self._shape_for(shape, columns.schema)
        fitted = shape.fit(columns)
        partitions = [fitted.column(name) for name in shape.partition_by]
        return pieces(shape.partition_by, partitions, fitted.select(shape.file_schema.names))

    def _shape_for(self, shape: Shape, schema: pa.Schema) -> Shape:
        """Return ``shape`` after adding the columns of ``schema`` that the table lacks."""
        if self._seen is None or not schema.equals(self._seen):
            if new_columns(schema, shape.schema.names):
                shape = self._shape = self._ensure(schema)
            missing = [name for name in shape.partition_by if name not in schema.names]
            if missing:
                raise SinkError(f"some values lack the partition column {missing[0]!r}: give it to all, or as None")
            self._seen = schema
        return shape

    def _ensure(self, schema: pa.Schema) -> Shape:
        """Create the table, or the columns that it lacks, for rows of ``schema``."""
        import pyarrow as pa

        if self._has_rows:  # a Decimal has the digits of its value alone, and later ones may have more
            schema = pa.schema([field.with_type(with_digits(field.type)) for field in schema])
        return self._table.ensure(schema)

    def _schema(self) -> pa.Schema | None:
        return None if self._shape is None else self._shape.file_schema

    def _schema_in_file(self) -> pa.Schema:
        return self._known_shape().file_schema

    def _widened(self, content: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return rows that were encoded before the table got further columns: they have None there."""
        import pyarrow as pa

        if content.num_columns == len(schema):
            return content
        known = dict(zip(content.schema.names, content.columns, strict=True))
        arrays = [known[field.name] if field.name in known else pa.nulls(len(content), field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _known_shape(self) -> Shape:
        if self._shape is None:
            raise SinkError("the columns of the table are not known")
        return self._shape

    def _stage(self) -> Stage:
        return self._known_shape().place.stage(self._worker.job, self._worker.step)

    def _check_table(self, shape: Shape, context: CommitContext) -> None:
        """Raise `SinkError` if the commit of this snapshot could not add the files."""
        now = self._table.look(app_of(context.job, context.step))
        changed = "all of it: it was removed" if now is None else shape.missing_in(now.shape)
        if changed is not None:
            raise SinkError(f"{shape.where} was changed while the job ran ({changed}): run the job again")
        known = None if now is None else now.number
        if known is not None and known >= number_of(context.snapshot):
            raise SinkError(
                f"{shape.where} has rows of step {context.step!r} of a later snapshot of job {context.job!r}: another "
                f"start of the job has taken over, or the clock was set back. Stop one of them, or set the clock"
            )
