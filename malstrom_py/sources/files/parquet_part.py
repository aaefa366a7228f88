"""Row groups of one Parquet file while they are read, in record batches as large as the polls ask for.

The position is (row group, rows taken from it). The types of the source's first file are everyone's: what another
file holds in smaller types is widened, anything else is refused when the file is opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.batches import ColumnBatch
from malstrom_py.column_types import recast, stored_type
from malstrom_py.errors import SourceError
from malstrom_py.sources.files.footers import KnownFile
from malstrom_py.sources.files.runs import Cursor, Malformed, Run
from malstrom_py.sources.files.schema import adapted, check_columns
from malstrom_py.sources.files.streams import file_changed
from malstrom_py.sources.files.whole_groups import WholeGroups, can_swell, whole_groups
from malstrom_py.sources.files.zones import NoSuchTime, has_naive, zoned

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_BATCH_ROWS_MIN: Final = 1 << 10
_BATCH_BYTES_MAX: Final = 1 << 24
_SKIP_ROWS: Final = 1 << 16
_THREADED_ROWS_MIN: Final = 1 << 14
_WHOLE_ROWS_MIN: Final = 1 << 14


class ParquetPart:
    """Reads the row groups from ``position`` up to ``stop`` (None: all) and closes ``file`` at the end.

    ``schema`` are the columns and types of every row; ``first`` names the file they came from, None if it is known that
    this file has such columns, and maybe others. With ``known``, what file it is, `poll_columns` may read row groups as
    wholes, unless there are times without a zone that are to be those of ``timezone``.
    """

    def __init__(
        self,
        name: str,
        file: pq.ParquetFile,
        *,
        stop: int | None,
        schema: pa.Schema,
        first: str | None,
        position: dict[str, Any],
        remembered: dict[str, Any],
        known: KnownFile | None = None,
        timezone: str | None = None,
    ) -> None:
        self._name = name
        self._file = file
        self._known = known
        self._groups: WholeGroups | None = None
        self._schema = schema
        self._timezone: str | None = None
        self._remembered = remembered
        self._stop: int = file.num_row_groups if stop is None else stop
        self._row_group: int = position["row_group"]
        try:
            self._timezone = timezone if timezone is not None and has_naive(schema) else None
            last = max(self._stop - 1, self._row_group)
            if last > max(file.num_row_groups - 1, 0):
                raise file_changed(name, f" (row group {last})")
            if first is not None:
                check_columns(name, file.schema_arrow.names, first, schema.names)
                _check_types(name, adapted(file.schema_arrow), first, schema)
        except BaseException:
            self.close()
            raise
        self._taken = 0
        self._rows_before: int = position["rows"] - position["records"]
        self._skip: int = position["records"]
        self._finished = False
        self._cursor = Cursor()
        self._row_bytes = self._seen_row_bytes = 1
        self._can_swell = can_swell(file.metadata, schema.names)
        self._whole = False
        self._batches: Iterator[pa.RecordBatch] | None = None

    def poll(self, rows_max: int) -> Any:
        rows = self._poll(rows_max)
        return rows.columns if isinstance(rows, ColumnBatch) else rows

    def poll_columns(self, rows_max: int) -> Any:
        """`poll` for who takes columns as they come: gives a `ColumnBatch` or a record batch."""
        # What cannot be told by the footer is told by the first batch: how large the rows are once they are read.
        may_be_whole = not self._can_swell and rows_max >= _WHOLE_ROWS_MIN and self._timezone is None
        if self._groups is None and self._known is not None and may_be_whole:
            self._groups = whole_groups(
                self._name, self._known, self._file, self._schema, self._stop, row_bytes=self._seen_row_bytes
            )
        return self._poll(rows_max)

    def _poll(self, rows_max: int) -> Any:
        import pyarrow as pa
        from polars.exceptions import PanicException, PolarsError

        try:
            while self._cursor.is_empty():
                if self._finished or not (self._load_whole() or self._load(rows_max)):
                    return None
        except (OSError, pa.ArrowException, PolarsError, PanicException) as error:
            raise SourceError(
                f"{self._name} failed in row group {self._row_group} after {self._rows()} rows were read: "
                f"{type(error).__name__}. The file is damaged or cannot be read: replace it."
            ) from error
        return self._cursor.take(rows_max, self._name, self._rows())

    def is_finished(self) -> bool:
        return self._finished

    def snapshot(self) -> dict[str, Any]:
        return {
            **self._remembered,
            "row_group": self._row_group,
            "records": self._taken + self._cursor.taken + self._skip,
            "rows": self._rows() + self._skip,
            "finished": self._finished,
        }

    def close(self) -> None:
        if self._groups is not None:
            self._groups.close()
        self._file.close(force=True)

    def _rows(self) -> int:
        return self._rows_before + self._taken + self._cursor.taken

    def _next_batch(self, rows_max: int) -> pa.RecordBatch | None:
        """The next rows of this row group: as many as are asked for, unless that takes too much memory."""
        if self._row_group >= self._stop:
            return None
        if self._batches is None:
            group = self._file.metadata.row_group(self._row_group)
            self._row_bytes = max(self._seen_row_bytes, group.total_byte_size // max(1, group.num_rows))
        wanted = min(self._skip, _SKIP_ROWS) or max(rows_max, _BATCH_ROWS_MIN)
        wanted = min(wanted, _BATCH_ROWS_MIN) if self._can_swell else wanted
        rows = max(1, min(wanted, _BATCH_BYTES_MAX // self._row_bytes))
        threaded, batches = rows >= _THREADED_ROWS_MIN, self._batches
        if batches is None:
            self._batches = batches = self._file.iter_batches(
                batch_size=rows, row_groups=[self._row_group], columns=self._schema.names, use_threads=threaded
            )
        else:
            # The reader looks both up for each batch, so that it follows the polls within a row group.
            self._file.reader.set_batch_size(rows)
            self._file.reader.set_use_threads(threaded)
        batch: pa.RecordBatch | None = next(batches, None)
        if batch is not None and len(batch):
            # Values that are stored once and repeated take more in memory than the footer says.
            self._seen_row_bytes = max(1, batch.nbytes // len(batch))
            self._row_bytes = max(self._row_bytes, self._seen_row_bytes)
            self._can_swell = False
        return batch

    def _load_whole(self) -> bool:
        """Take what is left of the row group as a whole, if that has not been done and can be; False if not."""
        if self._groups is None or self._whole or self._row_group >= self._stop:
            return False
        frame = self._groups.frame(self._row_group)
        taken = self._taken + self._cursor.taken + self._skip
        if frame is None or frame.height < taken:
            return False
        self._whole, self._batches = True, iter(())
        self._taken, self._skip = taken, 0
        self._cursor = Cursor([ColumnBatch(None, frame=frame.slice(taken), schema=self._schema)])
        return not self._cursor.is_empty()

    def _load(self, rows_max: int) -> bool:
        """Go on to the next batch, of this row group or the next; False, and finished, if there is none."""
        self._taken, self._cursor = self._taken + self._cursor.taken, Cursor()
        batch = self._next_batch(rows_max)
        if batch is not None:
            skipped = min(self._skip, len(batch))
            self._skip, self._taken = self._skip - skipped, self._taken + skipped
            self._cursor = Cursor(self._converted(batch.slice(skipped)) if skipped < len(batch) else [])
            return True
        if self._skip:
            raise file_changed(self._name, f" (row group {self._row_group})")
        self._rows_before, self._taken = self._rows_before + self._taken, 0
        if self._row_group + 1 >= self._stop:
            self._finished = True
            return False
        self._row_group += 1
        self._whole = False
        self._batches = None
        return True

    def _converted(self, batch: pa.RecordBatch) -> list[Run]:
        """``batch`` with the source's types; a row with a value that would lose digits is malformed."""
        import pyarrow as pa

        batch = batch.select(self._schema.names)
        try:
            columns = [recast(column, kind) for column, kind in zip(batch.columns, self._schema.types, strict=True)]
            return [zoned(pa.RecordBatch.from_arrays(columns, schema=self._schema), self._timezone)]
        except (pa.ArrowInvalid, NoSuchTime) as error:
            if len(batch) == 1:
                lossy = f"a value does not fit its column's type ({self._lossy(batch)})"
                return [Malformed(str(error) if isinstance(error, NoSuchTime) else lossy, _as_text(batch))]
            middle = len(batch) // 2
            return self._converted(batch.slice(0, middle)) + self._converted(batch.slice(middle))

    def _lossy(self, row: pa.RecordBatch) -> str:
        import pyarrow as pa

        found = []
        for field, column in zip(self._schema, row.columns, strict=True):
            try:
                recast(column, field.type)
            except pa.ArrowInvalid:
                found.append(f"{field.name!r}: {column.type} as {field.type}")
        return ", ".join(found)


def _check_types(path: str, found: pa.Schema, first: str, expected: pa.Schema) -> None:
    """`SourceError` unless each column's type is the expected one, another layout of it, or widens to it."""
    import pyarrow as pa

    for field in expected:
        kind = found.field(field.name).type
        try:
            held, given = stored_type(field.type, times=False), stored_type(kind, times=False)
            both = [pa.schema([(field.name, held)]), pa.schema([(field.name, given)])]
            fits = pa.unify_schemas(both, promote_options="permissive").field(0).type == held
        except pa.ArrowException:
            fits = False
        if not fits:
            raise SourceError(
                f"column {field.name!r} is {kind} in {path} and {field.type} in {first}: "
                f"give the files the same types, or read them as sources of their own."
            )


def _as_text(row: pa.RecordBatch) -> dict[str, str | None]:
    """A row whose values Python cannot hold, or are no moments, for the dead-letter stream."""
    return {name: _text(column) for name, column in zip(row.schema.names, row.columns, strict=True)}


def _text(column: pa.Array) -> str | None:
    """The only value of ``column`` as text, None for null."""
    import pyarrow as pa

    try:
        text: str | None = column.cast(pa.string())[0].as_py()
    except pa.ArrowException:  # a struct, say
        text = str(column[0])
    return text
