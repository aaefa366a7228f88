"""The writer of one worker: batches into Parquet files that are staged for a table.

Rows become columns, columns are cast to those of the table (`types`), and are written by partition with the buffers of
`sinks.Files`. All that could make the commit fail is checked here, before a snapshot is durable: types, new columns and
changes of the table. So a missing table, or column, is made by the first writer that needs it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from malstrom_py.connectors.lake.files import LakeFile, pack_files
from malstrom_py.connectors.lake.types import Seen, Shape, new_columns
from malstrom_py.data.batch import Batch
from malstrom_py.data.rows_to_columns import Column, RowColumns
from malstrom_py.errors import SinkError
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.files.encoding import (
    BUFFER_BYTES_MAX,
    GROUP_BYTES,
    GROUP_ROWS,
    BatchConverter,
    EncodedRows,
    WriteBuffer,
)
from malstrom_py.sinks.files.partitions import parse_folder, split
from malstrom_py.sinks.files.staging import WrittenFile, sink_errors
from malstrom_py.sinks.files.writer import RollingFiles
from malstrom_py.snapshot.ids import number_of
from malstrom_py.worker_context import WorkerInfo

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_COLUMN_BYTES: Final = 512
_CHUNK_BYTES: Final = 1 << 18
_PAGE_BYTES: Final = 1 << 18
_PENDING_ROWS: Final = 1 << 16


class LakeTable(Protocol):
    """A table, as writers and committers need it. Nothing is kept open between two calls."""

    def look(self, app: str) -> Seen | None:
        """Return the present columns, and the number of the last snapshot that ``app`` has committed.

        None if there is no table. SinkError: the table cannot be written correctly.
        """
        ...

    def ensure(self, schema: pa.Schema) -> Shape:
        """Create the table, or the columns that it lacks, for rows of ``schema``. SinkError: they may not be added."""
        ...

    def describe(self, shape: Shape, metadata: pq.FileMetaData) -> Any:
        """Return the statistics of a file, in plain types."""
        ...

    def commit(self, app: str, number: int, files: Sequence[LakeFile]) -> bool:
        """Add ``files`` and note ``number`` in one commit; nothing if this or a larger number is noted.

        Return whether ``number`` is noted now; False if a larger one is.
        """
        ...

    def contains(self, file: LakeFile) -> bool:
        """Return whether the newest version has ``file``."""
        ...


def app_of(job: str, step: str) -> str:
    """Return the name under which a table notes the snapshots of a step."""
    return f"malstrom.{job}.{step}"


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


class LakeWriter:
    """Writes the batches of one worker into staged files of ``table``."""

    def __init__(self, table: LakeTable, worker: WorkerInfo, *, file_bytes_max: int) -> None:
        self._table = table
        self._worker = worker
        self._file_bytes_max = file_bytes_max
        self._converter = BatchConverter((), _OpenColumns())
        self._shape: Shape | None = None
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._seen: pa.Schema | None = None
        self._files: RollingFiles | None = None
        self._buffer: WriteBuffer[pa.RecordBatch] = WriteBuffer(_merged)

    def write(self, batch: Batch) -> None:
        """See `SinkWriter.write`."""
        if not len(batch):
            return
        with self._errors():
            _, columns = self._converter.convert(batch)
            if self._shape is None and not self._pending:
                seen = self._table.look(app_of(self._worker.job, self._worker.step))
                self._shape = None if seen is None else seen.shape
            if self._shape is not None:
                self._take(columns)
                return
            # The first rows give the columns of a table that is to be created, so they are looked at together.
            self._pending.append(columns)
            self._pending_rows += len(columns)
            if self._pending_rows >= _PENDING_ROWS or sum(one.nbytes for one in self._pending) >= GROUP_BYTES:
                self._settle()

    def pre_commit(self, context: CommitContext) -> bytes:
        """See `TransactionalWriter.pre_commit`."""
        with self._errors():
            self._settle()
            self._flush()
            if self._files is None or self._shape is None:
                return pack_files([])
            self._files.finish_all()
            if not self._files.written:
                return pack_files([])
            self._check(self._shape, context)
            described = [self._described(self._shape, file) for file in self._files.written]
            staged = json.loads(self._files.pre_commit(context.snapshot))["files"]
        return pack_files(LakeFile(staged=name, **file) for name, file in zip(staged, described, strict=True))

    def close(self) -> None:
        """See `SinkWriter.close`."""
        self._pending = []
        self._buffer.clear()
        if self._files is not None:
            self._files.discard()

    def _settle(self) -> None:
        """Find out the columns of the table with the first rows, and write these."""
        import pyarrow as pa

        if self._shape is not None or not self._pending:
            return
        try:
            schema = pa.unify_schemas([one.schema for one in self._pending], promote_options="permissive")
        except pa.ArrowException:
            raise SinkError(
                "the first rows hold values of different types in one column: convert them to one type in a map step"
            ) from None
        self._shape = self._table.ensure(schema)
        pending, self._pending = self._pending, []
        for columns in pending:
            self._take(columns)

    def _take(self, columns: pa.RecordBatch) -> None:
        shape = self._shape_for(columns.schema)
        fitted = shape.fit(columns)
        parts: Iterator[tuple[str, pa.Array | None]] = iter([("", None)])
        if shape.partition_by:
            parts = split(shape.partition_by, [fitted.column(name) for name in shape.partition_by])
        written = fitted.select(shape.file_schema.names)
        group_bytes = min(max(GROUP_BYTES, len(written.schema) * _CHUNK_BYTES), BUFFER_BYTES_MAX, self._file_bytes_max)
        for folder, rows in parts:
            piece = _piece(folder, written if rows is None else written.take(rows))
            full = self._buffer.add(piece, group_bytes=group_bytes)
            if full is not None:
                self._write_folder(full)

    def _shape_for(self, schema: pa.Schema) -> Shape:
        """Return the shape of the table for columns of ``schema``, after adding those that it lacks."""
        if self._shape is None:
            raise SinkError("the columns of the table are not known")
        if self._seen is None or not schema.equals(self._seen):
            if new_columns(schema, self._shape.schema.names):
                self._flush()
                if self._files is not None:
                    self._files.finish_all()
                self._shape = self._table.ensure(schema)
            missing = [name for name in self._shape.partition_by if name not in schema.names]
            if missing:
                raise SinkError(f"some values lack the partition column {missing[0]!r}: give it to all, or as None")
            self._seen = schema
        return self._shape

    def _flush(self) -> None:
        for folder in self._buffer:
            self._write_folder(folder)

    def _write_folder(self, folder: str) -> None:
        import pyarrow as pa

        files = self._opened()
        table = pa.Table.from_batches(self._buffer.take(folder))
        for start in range(0, len(table), GROUP_ROWS):
            piece = table.slice(start, GROUP_ROWS)
            self._parquet(files, folder, piece.schema).write_table(piece, row_group_size=GROUP_ROWS)
            files.roll(folder)

    def _opened(self) -> RollingFiles:
        if self._files is None:
            if self._shape is None:
                raise SinkError("the columns of the table are not known")
            staging = self._shape.place.stages(self._worker.job, self._worker.step)
            self._files = RollingFiles(staging, "parquet", file_bytes_max=self._file_bytes_max)
        return self._files

    @staticmethod
    def _parquet(files: RollingFiles, folder: str, schema: pa.Schema) -> pq.ParquetWriter:
        import pyarrow.parquet as pq

        file = files.current(folder)
        if file.writer is None:
            file.schema = schema
            file.writer = pq.ParquetWriter(file.stream, schema, compression="zstd", data_page_size=_PAGE_BYTES)
        return file.writer

    def _described(self, shape: Shape, file: WrittenFile) -> dict[str, Any]:
        import pyarrow.parquet as pq

        metadata = pq.read_metadata(file.path)
        values = [parse_folder(name) for name in file.folder.split("/")] if file.folder else []
        return {
            "folder": shape.place.folder(file.folder),
            "size": file.path.stat().st_size,
            "rows": metadata.num_rows,
            "values": [None if value is None else value[1] for value in values],
            "stats": self._table.describe(shape, metadata),
            "spec": shape.spec,
        }

    def _check(self, shape: Shape, context: CommitContext) -> None:
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

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        import pyarrow as pa

        where = "the table" if self._shape is None else self._shape.where
        try:
            with sink_errors("cannot write to", where):
                yield
        except pa.ArrowException as error:
            names = ", ".join(map(repr, (self._seen.names if self._seen is not None else [])[:20]))
            raise SinkError(
                f"the columns {names} cannot be written to {where} ({type(error).__name__}): convert them to other "
                f"types in a map step, or send smaller batches"
            ) from None


def _piece(folder: str, columns: pa.RecordBatch) -> EncodedRows[pa.RecordBatch]:
    return EncodedRows(folder, columns, len(columns), columns.nbytes + columns.num_columns * _COLUMN_BYTES)


def _merged(folder: str, contents: Sequence[pa.RecordBatch]) -> EncodedRows[pa.RecordBatch]:
    import pyarrow as pa

    return _piece(folder, pa.concat_batches(list(contents)))
