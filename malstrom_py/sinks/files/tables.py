"""csv and parquet: files of columns. Rows are made columns, columns stay what they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from malstrom_py.batches import Batch
from malstrom_py.errors import SinkError
from malstrom_py.sinks.files.columns import Columns
from malstrom_py.sinks.files.encoders import Piece
from malstrom_py.sinks.files.held import GROUP_BYTES, GROUP_ROWS, HELD_BYTES_MAX
from malstrom_py.sinks.files.partitions import split
from malstrom_py.sinks.files.rolling import RollingFiles
from malstrom_py.sinks.files.staging import WrittenFile

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_COLUMN_BYTES: Final = 512
"""What a column of a record batch takes besides its values."""

_PAGE_BYTES: Final = 1 << 18
"""Smaller than pyarrow's: its pages of a mebibyte take several times that to compress."""

_CHUNK_BYTES: Final = 1 << 18
"""What one column of a row group should have on average: readers like few large chunks."""

_TOLD_MAX: Final = 20


class _TableEncoder:
    """A piece is a record batch, whose types may be narrower than those of later ones."""

    def __init__(self, files: RollingFiles, partition_by: Sequence[str]) -> None:
        self._files = files
        self._partition_by = partition_by
        self._columns = Columns(partition_by)

    @property
    def group_bytes(self) -> int:
        schema = self._columns.schema
        columns = 0 if schema is None else len(schema)
        return min(HELD_BYTES_MAX, max(GROUP_BYTES, columns * _CHUNK_BYTES))

    def pieces(self, batch: Batch) -> Iterable[Piece[pa.RecordBatch]]:
        partitions, columns = self._columns.convert(batch)
        self._check(columns.schema)
        if not self._partition_by:
            return [_piece("", columns)]
        parts = split(self._partition_by, partitions)
        # Each folder's rows are copied: a slice would keep all of the batch alive for as long as one folder waits.
        return [_piece(folder, columns if rows is None else columns.take(rows)) for folder, rows in parts]

    def merged(self, folder: str, contents: Sequence[pa.RecordBatch]) -> Piece[pa.RecordBatch]:
        import pyarrow as pa

        schema = self._columns.schema
        return _piece(folder, pa.concat_batches([self._columns.widened(content, schema) for content in contents]))

    def write(self, folder: str, contents: Sequence[pa.RecordBatch]) -> None:
        import pyarrow as pa

        schema = self._schema_in_file()
        table = pa.Table.from_batches([self._columns.widened(content, schema) for content in contents])
        for start in range(0, len(table), GROUP_ROWS):
            self._write_table(folder, table.slice(start, GROUP_ROWS))
            self._files.roll(folder)

    def finish(self) -> None:
        self._files.finish_all()

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
        if pa.types.is_timestamp(kind):
            return pa.timestamp("us", kind.tz)
        if pa.types.is_time(kind):
            return pa.time64("us")
        return pa.duration("us") if pa.types.is_duration(kind) else super()._type_in_file(kind)

    def _write_table(self, folder: str, table: pa.Table) -> None:
        import pyarrow as pa
        import pyarrow.csv as pa_csv

        is_new = folder not in self._files
        stream = self._files.current(folder).stream
        try:
            pa_csv.write_csv(table, stream, pa_csv.WriteOptions(include_header=is_new))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise SinkError(f"csv cannot hold one of {_told(table.schema)}: use parquet or json") from None


class ParquetEncoder(_TableEncoder):
    """Row groups of at most `GROUP_ROWS` rows. All files of one pre-commit get the same schema: those written before
    a column's type widened are written again."""

    def finish(self) -> None:
        super().finish()
        if not self._files.written:
            return
        schema = self._schema_in_file()
        for narrow in [file for file in self._files.written if not schema.equals(file.schema)]:
            self._write_again(narrow, schema)

    def _write_table(self, folder: str, table: pa.Table) -> None:
        import pyarrow as pa

        try:
            self._writer(folder, table.schema).write_table(table, row_group_size=GROUP_ROWS)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise SinkError(f"parquet cannot hold one of {_told(table.schema)}: use json") from None

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


def _piece(folder: str, columns: pa.RecordBatch) -> Piece[pa.RecordBatch]:
    rows = len(columns)
    return Piece(folder, columns, rows, columns.nbytes + columns.num_columns * _COLUMN_BYTES)


def _told(schema: pa.Schema) -> str:
    shown = ", ".join(f"{field.name!r}: {field.type}" for field in list(schema)[:_TOLD_MAX])
    return f"the columns {shown}" + (f" and {len(schema) - _TOLD_MAX} more" if len(schema) > _TOLD_MAX else "")
