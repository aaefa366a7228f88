"""csv and parquet: files of columns. Rows are made columns, columns stay what they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from malstrom_py.data.batch import Batch
from malstrom_py.data.schema import in_microseconds, stored_type
from malstrom_py.errors import SinkError
from malstrom_py.sinks.files.encoding import (
    GROUP_BYTES,
    GROUP_ROWS,
    HELD_BYTES_MAX,
    BatchConverter,
    Converter,
    EncodedRows,
)
from malstrom_py.sinks.files.partitions import split
from malstrom_py.sinks.files.staging import WrittenFile
from malstrom_py.sinks.files.writer import RollingFiles

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_COLUMN_BYTES: Final = 512
"""What a column of a record batch takes besides its values."""

_PAGE_BYTES: Final = 1 << 18
"""Smaller than pyarrow's: its pages of a mebibyte take several times that to compress."""

_CHUNK_BYTES: Final = 1 << 18
"""What one column of a row group should have on average: readers like few large chunks."""

_CAST_BYTES_MAX: Final = 1 << 30
"""Half of what the offsets of a plain string column reach."""

_TOLD_MAX: Final = 20

_REMEDY: Final = "cast it to another type, or leave it out, in a map step"


class _TableEncoder:
    """A piece is a record batch, whose types may be narrower than those of later ones."""

    def __init__(self, files: RollingFiles, partition_by: Sequence[str], rows: Converter | None = None) -> None:
        self._files = files
        self._partition_by = partition_by
        self._columns = BatchConverter(partition_by, rows)

    @property
    def group_bytes(self) -> int:
        schema = self._columns.schema
        columns = 0 if schema is None else len(schema)
        return min(HELD_BYTES_MAX, max(GROUP_BYTES, columns * _CHUNK_BYTES))

    def encode(self, batch: Batch) -> Iterable[EncodedRows[pa.RecordBatch]]:
        with self._arrow_errors():
            return self._encode(batch)

    def _encode(self, batch: Batch) -> list[EncodedRows[pa.RecordBatch]]:
        partitions, columns = self._columns.convert(batch)
        self._check(columns.schema)
        if not self._partition_by:
            return [_piece("", columns)]
        parts = split(self._partition_by, partitions)
        # Each folder's rows are copied: a slice would keep all of the batch alive for as long as one folder waits.
        return [_piece(folder, columns if rows is None else columns.take(rows)) for folder, rows in parts]

    def merge(self, folder: str, contents: Sequence[pa.RecordBatch]) -> EncodedRows[pa.RecordBatch]:
        import pyarrow as pa

        schema = self._columns.schema
        with self._arrow_errors():
            return _piece(folder, pa.concat_batches([self._columns.widened(content, schema) for content in contents]))

    def write(self, folder: str, contents: Sequence[pa.RecordBatch]) -> None:
        import pyarrow as pa

        schema = self._schema_in_file()
        pieces = chain.from_iterable(map(_castable, contents))
        with self._arrow_errors():
            table = pa.Table.from_batches([self._columns.widened(piece, schema) for piece in pieces])
        for start in range(0, len(table), GROUP_ROWS):
            self._write_table(folder, table.slice(start, GROUP_ROWS))
            self._files.roll(folder)

    def finish(self) -> None:
        self._files.finish_all()

    @contextmanager
    def _arrow_errors(self) -> Iterator[None]:
        """What Arrow refuses besides, as an error that names the columns it may be."""
        import pyarrow as pa

        try:
            yield
        except pa.ArrowException as error:
            columns = _listed(list(self._columns.schema or ()))
            raise SinkError(
                f"the columns {columns} cannot be written ({type(error).__name__}): {_REMEDY}, or send smaller batches"
            ) from error

    def _check(self, schema: pa.Schema) -> None:
        """Raise `SinkError` for types the format has no place for."""

    def _type_in_file(self, kind: pa.DataType) -> pa.DataType:
        """The type in the file of a column of ``kind``: one of None only is of str, for many readers know no null."""
        import pyarrow as pa

        return pa.string() if pa.types.is_null(kind) else kind

    def _schema_in_file(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema([field.with_type(self._type_in_file(field.type)) for field in self._columns.schema or ()])

    def _write_table(self, folder: str, table: pa.Table) -> None:
        raise NotImplementedError


class CsvEncoder(_TableEncoder):
    """A header, then one line per record; text is quoted, None is an empty field."""

    def _check(self, schema: pa.Schema) -> None:
        import pyarrow as pa

        for field in schema:
            if pa.types.is_nested(field.type):
                raise SinkError(f"column {field.name!r} holds {field.type}, csv only plain values: use parquet or json")

    def _type_in_file(self, kind: pa.DataType) -> pa.DataType:
        """The type that the same values have as rows, where the text tells them apart."""
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
            told = _told(table, pa_csv.write_csv)
            raise SinkError(f"csv cannot hold {told}: {_REMEDY}, or use parquet or json") from None


class ParquetEncoder(_TableEncoder):
    """Row groups of at most `GROUP_ROWS` rows. Types are `stored_type`, whatever the layout was.

    All files of one pre-commit get the same schema: those written before a column's type widened are written again.
    """

    def finish(self) -> None:
        super().finish()
        if not self._files.written:
            return
        schema = self._schema_in_file()
        for narrow in [file for file in self._files.written if not schema.equals(file.schema)]:
            self._write_again(narrow, schema)

    def _type_in_file(self, kind: pa.DataType) -> pa.DataType:
        return super()._type_in_file(stored_type(kind))

    def _write_table(self, folder: str, table: pa.Table) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            self._writer(folder, table.schema).write_table(table, row_group_size=GROUP_ROWS)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            told = _told(table, pq.write_table)
            raise SinkError(f"parquet cannot hold {told}: {_REMEDY}, or use json") from None

    def _writer(self, folder: str, schema: pa.Schema) -> pq.ParquetWriter:
        """What writes into the open file of ``folder``, if it is of this schema, or else into a new one."""
        import pyarrow.parquet as pq

        file = self._files.current(folder)
        if file.schema is not None and not schema.equals(file.schema):
            self._files.finish(folder)
            file = self._files.current(folder)
        if file.writer is None:
            file.schema = schema
            file.writer = pq.ParquetWriter(file.stream, schema, compression="zstd", data_page_size=_PAGE_BYTES)
        return file.writer

    def _write_again(self, narrow: WrittenFile, schema: pa.Schema) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with pq.ParquetFile(narrow.path) as content:
            for batch in content.iter_batches():
                self._write_table(narrow.folder, pa.Table.from_batches([self._columns.widened(batch, schema)]))
        self._files.replace(narrow, self._files.finish(narrow.folder))


def schema_of(path: Path) -> bytes:
    """The schema of a parquet file, as Arrow serialises it."""
    import pyarrow.parquet as pq

    schema: bytes = pq.read_schema(path).remove_metadata().serialize().to_pybytes()
    return schema


def _piece(folder: str, columns: pa.RecordBatch) -> EncodedRows[pa.RecordBatch]:
    rows = len(columns)
    return EncodedRows(folder, columns, rows, columns.nbytes + columns.num_columns * _COLUMN_BYTES)


def _told(table: pa.Table, write: Callable[[pa.Table, pa.NativeFile], None]) -> str:
    """The columns that ``write`` refuses; all of them, if it takes each by itself."""
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
    shown = ", ".join(f"{field.name!r}: {field.type}" for field in fields[:_TOLD_MAX])
    return shown + (f" and {len(fields) - _TOLD_MAX} more" if len(fields) > _TOLD_MAX else "")


def _castable(content: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """``content`` in pieces whose texts fit the offsets of plain strings, each with memory of its own."""
    import pyarrow as pa

    if content.nbytes <= _CAST_BYTES_MAX or len(content) <= 1:
        yield content
        return
    middle = len(content) // 2
    for start, end in ((0, middle), (middle, len(content))):
        yield from _castable(content.take(pa.array(range(start, end), pa.int64())))
