"""Encoders of csv and parquet: rows are converted to columns, and columns are written without conversion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Final

from malstrom_py.data.batch import Batch
from malstrom_py.data.rows_to_columns import RowColumns
from malstrom_py.data.schema import in_microseconds, stored_type
from malstrom_py.errors import SinkError
from malstrom_py.errors.text import describe_error
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.files.encoding import BatchConverter, Converter
from malstrom_py.sinks.files.partitions import split
from malstrom_py.sinks.files.schemas import Visible, check_fits, fitted, packed, with_digits, without_nulls
from malstrom_py.sinks.staged.writing import (
    BUFFER_BYTES_MAX,
    GROUP_BYTES,
    GROUP_ROWS,
    EncodedRows,
    Encoder,
    RollingFiles,
    WrittenFile,
)

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMN_BYTES: Final = 512
"""The memory of a column of a record batch, besides its values."""

_CHUNK_BYTES: Final = 1 << 18
"""The average size of one column of a row group: few large chunks are read fastest."""

_CAST_BYTES_MAX: Final = 1 << 30
"""Half of the largest size of a plain string column, which has 32-bit offsets."""

_LISTED_MAX: Final = 20

_REMEDY: Final = "cast it to another type, or drop it, in a map step"


class TableEncoder(Encoder["pa.RecordBatch"]):
    """Encodes batches as record batches; later ones may have wider types."""

    def __init__(self, files: RollingFiles, columns: BatchConverter) -> None:
        self._files = files
        self._columns = columns

    @property
    def group_bytes(self) -> int:
        schema = self._schema()
        columns = 0 if schema is None else len(schema)
        return min(BUFFER_BYTES_MAX, max(GROUP_BYTES, columns * _CHUNK_BYTES))

    def encode(self, batch: Batch) -> Iterable[EncodedRows[pa.RecordBatch]]:
        with self._arrow_errors():
            return self._encode(batch)

    def _encode(self, batch: Batch) -> Iterable[EncodedRows[pa.RecordBatch]]:
        partitions, columns = self._columns.convert(batch)
        self._check(columns.schema)
        return pieces(self._columns.partition_by, partitions, columns)

    def merge(self, folder: str, contents: Sequence[pa.RecordBatch]) -> EncodedRows[pa.RecordBatch]:
        import pyarrow as pa

        schema = self._schema()
        with self._arrow_errors():
            return _piece(folder, pa.concat_batches([self._widened(content, schema) for content in contents]))

    def write(self, folder: str, contents: Sequence[pa.RecordBatch]) -> None:
        import pyarrow as pa

        schema = self._schema_in_file()
        castable = chain.from_iterable(map(_castable, contents))
        with self._arrow_errors():
            table = pa.Table.from_batches([self._widened(piece, schema) for piece in castable])
        for start in range(0, len(table), GROUP_ROWS):
            self._write_table(folder, table.slice(start, GROUP_ROWS))
            self._files.roll(folder)

    def finish(self, context: CommitContext) -> None:
        self._files.finish_all()

    def _schema(self) -> pa.Schema | None:
        """Return the widest columns so far; None before the first row."""
        return self._columns.schema

    def _widened(self, content: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return encoded rows of earlier batches in the columns of ``schema``."""
        return self._columns.widened(content, schema)

    @contextmanager
    def _arrow_errors(self) -> Iterator[None]:
        """Turn other errors of Arrow into a `SinkError` that names the columns."""
        import pyarrow as pa

        try:
            yield
        except pa.ArrowException as error:
            columns = _listed(list(self._schema() or ()))
            raise SinkError(
                f"the columns {columns} cannot be written ({describe_error(error)}): {_REMEDY}, or send smaller batches"
            ) from error

    def _check(self, schema: pa.Schema) -> None:
        """Raise `SinkError` for types that the format cannot hold."""

    def _type_in_file(self, kind: pa.DataType) -> pa.DataType:
        """Return the type in the file of a column of ``kind``; null becomes str, because many readers lack null."""
        return without_nulls(kind)

    def _schema_in_file(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema([field.with_type(self._type_in_file(field.type)) for field in self._schema() or ()])

    def _write_table(self, folder: str, table: pa.Table) -> None:
        raise NotImplementedError


class CsvEncoder(TableEncoder):
    """A header, then one line per record; text is quoted, None is an empty field."""

    def _check(self, schema: pa.Schema) -> None:
        import pyarrow as pa

        for field in schema:
            if pa.types.is_nested(field.type):
                raise SinkError(
                    f"column {field.name!r} holds {field.type}, and csv holds only plain values: use parquet or json"
                )

    def _type_in_file(self, kind: pa.DataType) -> pa.DataType:
        """Return the type that the values would have as rows, where it makes a difference in the text."""
        import pyarrow as pa

        if pa.types.is_floating(kind):
            return pa.float64()
        return in_microseconds(super()._type_in_file(kind))

    def _write_table(self, folder: str, table: pa.Table) -> None:
        import pyarrow as pa
        import pyarrow.csv as pa_csv

        is_new = folder not in self._files
        stream = self._files.current(folder).stream
        try:
            pa_csv.write_csv(table, stream, pa_csv.WriteOptions(include_header=is_new))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            columns = _refused_columns(table, pa_csv.write_csv)
            raise SinkError(f"csv cannot hold {columns}: {_REMEDY}, or use parquet or json") from None


class ParquetTables(TableEncoder):
    """Writes row groups of at most `GROUP_ROWS` rows."""

    def _write_table(self, folder: str, table: pa.Table) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            self._files.parquet(folder, table.schema).write_table(table, row_group_size=GROUP_ROWS)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            columns = _refused_columns(table, pq.write_table)
            raise SinkError(f"parquet cannot hold {columns}: {_REMEDY}, or use json") from None


class ParquetEncoder(ParquetTables):
    """Writes the types of `stored_type`.

    All files of one pre-commit get the same schema: files written before a column widened are rewritten.
    ``find_visible`` returns the visible files of the sink, whose schema later files keep; None before the first commit.
    """

    def __init__(
        self,
        files: RollingFiles,
        partition_by: Sequence[str],
        rows: Converter | None = None,
        *,
        find_visible: Callable[[], Visible | None] = lambda: None,
    ) -> None:
        super().__init__(files, BatchConverter(partition_by, rows))
        self._find_visible = find_visible
        self._visible: Visible | None = None
        self._infers = rows is None
        self._has_rows = False
        self._is_between = True

    def finish(self, context: CommitContext) -> None:
        super().finish(context)
        self._is_between = True
        if not self._files.written:
            return
        if self._visible is None and (visible := self._find_visible()) is not None:
            check_fits(visible.schema, self._stored_schema(), visible)
            self._keep(visible)
        schema = self._schema_in_file()
        for narrow in [file for file in self._files.written if not schema.equals(file.schema)]:
            self._write_again(narrow, schema)

    def packed_schema(self) -> str | None:
        return packed(self._stored_schema())

    def _stored_schema(self) -> pa.Schema:
        """Return the schema of the finished files, without types for columns of None."""
        import pyarrow as pa

        known = self._columns.schema if self._visible is None else self._visible.schema
        types = {field.name: self._stored(field.type) for field in known or ()}
        return pa.schema(list(types.items()))

    def _encode(self, batch: Batch) -> Iterable[EncodedRows[pa.RecordBatch]]:
        if self._is_between and self._visible is None:
            # Nothing is buffered here, so the columns may change.
            self._keep(self._find_visible())
        self._is_between = False
        self._has_rows |= batch.columns is None
        return super()._encode(batch)

    def _keep(self, visible: Visible | None) -> None:
        """Convert what follows into the columns of the ``visible`` files."""
        import pyarrow as pa

        if visible is None:
            return
        self._visible, self._infers = visible, False
        partition_by = self._columns.partition_by
        free = [pa.field(name, pa.null()) for name in partition_by]
        pinned = pa.schema([*visible.schema, *free])
        self._columns = BatchConverter(partition_by, RowColumns(visible.error, pinned=pinned))
        self._columns.schema = visible.schema

    def _type_in_file(self, kind: pa.DataType) -> pa.DataType:
        return super()._type_in_file(self._stored(kind))

    def _stored(self, kind: pa.DataType) -> pa.DataType:
        stored = stored_type(kind)
        return with_digits(stored) if self._has_rows and self._infers else stored

    def _write_again(self, narrow: WrittenFile, schema: pa.Schema) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with pq.ParquetFile(narrow.path) as content:
            for batch in content.iter_batches():
                self._write_table(narrow.folder, pa.Table.from_batches([fitted(batch, schema, "the rows")]))
        self._files.replace(narrow, self._files.finish(narrow.folder))


def pieces(
    partition_by: Sequence[str], partitions: Sequence[pa.Array], columns: pa.RecordBatch
) -> list[EncodedRows[pa.RecordBatch]]:
    """Return the rows of ``columns`` for the folder of each value of ``partitions``, the columns ``partition_by``."""
    if not partition_by:
        return [_piece("", columns)]
    parts = split(partition_by, partitions)
    # The rows of each folder are copied: a slice would keep the whole batch in memory while it is buffered.
    return [_piece(folder, columns if rows is None else columns.take(rows)) for folder, rows in parts]


def _piece(folder: str, columns: pa.RecordBatch) -> EncodedRows[pa.RecordBatch]:
    rows = len(columns)
    return EncodedRows(folder, columns, rows, columns.nbytes + columns.num_columns * _COLUMN_BYTES)


def _refused_columns(table: pa.Table, write: Callable[[pa.Table, pa.NativeFile], None]) -> str:
    """Name the columns that ``write`` refuses; all columns, if it accepts each alone."""
    import pyarrow as pa

    refused = []
    for field in table.schema:
        try:
            write(table.select([field.name]), pa.BufferOutputStream())
        except pa.ArrowException:
            refused.append(field)
    found = refused or list(table.schema)
    return f"{'' if refused else 'one of '}{'column' if len(found) == 1 else 'the columns'} {_listed(found)}"


def _listed(fields: Sequence[pa.Field]) -> str:
    shown = ", ".join(f"{field.name!r}: {field.type}" for field in fields[:_LISTED_MAX])
    return shown + (f" and {len(fields) - _LISTED_MAX} more" if len(fields) > _LISTED_MAX else "")


def _castable(content: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split ``content`` so that its strings fit 32-bit offsets; each part is a copy."""
    import pyarrow as pa

    if content.nbytes <= _CAST_BYTES_MAX or len(content) <= 1:
        yield content
        return
    middle = len(content) // 2
    for start, end in ((0, middle), (middle, len(content))):
        yield from _castable(content.take(pa.array(range(start, end), pa.int64())))
