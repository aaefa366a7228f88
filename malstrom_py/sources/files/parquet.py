"""Parquet files while they are read: row groups in record batches as large as the polls ask for.

The position is (row group, rows taken from it). The types of the source's first file apply to all files: smaller types
in another file are widened, any other difference is refused when the file is opened. The partitions of one file share
its footer, which is read once.

For chains of steps that take columns, whole row groups are read one ahead with Polars, which decodes on all cores
while the steps run and returns frames that the steps take unchanged. The result equals that of small batches: types
that Polars reads differently go by small batches, and a file that was replaced is an error. Memory: a process reads at
most `_WHOLE_FILES_MAX` files so, two row groups of each. A row group is read in small batches if it takes more than
`_GROUP_BYTES_MAX` encoded, or would take more than `_DECODED_BYTES_MAX` decoded, estimated by the rows read so far. The
estimate may be wrong, because a value stored once may be repeated for each row: after one row group that is far larger,
the rest of the file is read in small batches.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.batch import ColumnBatch
from malstrom_py.data.row_form import DICTS
from malstrom_py.data.schema import ColumnKind, kind_of, recast, stored_type, widens_to
from malstrom_py.errors import SourceError
from malstrom_py.sources.base import BasePart
from malstrom_py.sources.files.folders import completed
from malstrom_py.sources.files.footers import KnownFile
from malstrom_py.sources.files.frames import BadRecord, Cursor, Run, text_of
from malstrom_py.sources.files.options import adapted, check_columns
from malstrom_py.sources.files.streams import file_changed, file_replaced, why_unreadable
from malstrom_py.sources.files.typed_rows import RowMaker
from malstrom_py.sources.files.zones import NoSuchTime, check_holdable, has_naive, zoned

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    import pyarrow.parquet as pq

_GROUP_BYTES_MAX: Final = 64 << 20
_DECODED_BYTES_MAX: Final = 4 * _GROUP_BYTES_MAX
_WHOLE_FILES_MAX: Final = 2
_PLAIN: Final = frozenset(
    (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float", "double"),
        *("string", "large_string", "string_view", "binary", "large_binary", "binary_view", "date32[day]"),
        *("timestamp[ms]", "timestamp[us]", "timestamp[ms, tz=UTC]", "timestamp[us, tz=UTC]"),
    )
)
"""Types that Polars and Arrow read alike, besides decimals of 128 bits."""

_NEVER_SWELL: Final = frozenset(("PLAIN", "RLE", "BIT_PACKED", "DELTA_LENGTH_BYTE_ARRAY"))
"""Encodings that store each text in full."""

_slots = BoundedSemaphore(_WHOLE_FILES_MAX)


class WholeGroups:
    """The row groups of one file, each a frame with the columns of ``schema``. Created by `whole_groups`."""

    def __init__(
        self, name: str, known: KnownFile, metadata: pq.FileMetaData, schema: pa.Schema, stop: int, row_bytes: int
    ) -> None:
        import polars as pl

        self._name = name
        self._known = known
        self._schema = pl.DataFrame(schema.empty_table()).schema
        self._stop = stop
        self._sizes = [metadata.row_group(group).total_byte_size for group in range(stop)]
        self._rows = [metadata.row_group(group).num_rows for group in range(stop)]
        self._rows_before = list(accumulate(self._rows, initial=0))
        self._row_bytes = max(row_bytes, _fixed_bytes(schema))
        self._ahead: dict[int, Future[pl.DataFrame]] = {}
        self._given_up = False
        self._holds_slot = True

    def frame(self, group: int) -> pl.DataFrame | None:
        """Return row group ``group``, and start to read the next; None if it is to be read in small batches.

        SourceError: the file was replaced.
        """
        if not self._fits(group):
            return None
        future = self._ahead.pop(group, None) or self._begin(group)
        self._cancel()  # reads ahead from an earlier position
        frame = self._result(future)
        if frame is None:
            return None
        if dict(frame.schema) != dict(self._schema) or frame.columns != list(self._schema):
            self._given_up = True
            return None
        if frame.height != self._rows[group]:
            raise SourceError(
                f"{self._name}: row group {group} has {frame.height} rows, but its footer says "
                f"{self._rows[group]}. The file is damaged: replace it."
            )
        self._measure(frame)
        if group + 1 < self._stop and self._fits(group + 1):
            self._ahead[group + 1] = self._begin(group + 1)
        return frame

    def close(self) -> None:
        """Stop reading ahead, and release the slot for another file."""
        self._cancel()
        if self._holds_slot:
            self._holds_slot = False
            _slots.release()

    def _fits(self, group: int) -> bool:
        if self._given_up or self._sizes[group] > _GROUP_BYTES_MAX:
            return False
        rows: int = self._rows[group]
        return rows * self._row_bytes <= _DECODED_BYTES_MAX

    def _measure(self, frame: pl.DataFrame) -> None:
        size = int(frame.estimated_size())
        self._row_bytes = max(self._row_bytes, size // max(1, frame.height))
        self._given_up = size > _DECODED_BYTES_MAX

    def _begin(self, group: int) -> Future[pl.DataFrame]:
        return _reader().submit(_read, self._known, list(self._schema), self._rows_before[group], self._rows[group])

    def _result(self, future: Future[pl.DataFrame]) -> pl.DataFrame | None:
        """Return the frame; None if Polars cannot read it, or Python hold it: small batches then name the row."""
        from polars.exceptions import PanicException

        frame: pl.DataFrame | None = None
        try:
            frame = future.result()
            _check_times(frame)
        except (Exception, PanicException):
            frame, self._given_up = None, True
        if not self._known.is_there():
            raise file_replaced(self._name) from None
        return frame

    def _cancel(self) -> None:
        for future in self._ahead.values():
            future.cancel()
        self._ahead.clear()


def whole_groups(
    name: str, known: KnownFile, file: pq.ParquetFile, schema: pa.Schema, stop: int, *, row_bytes: int = 1
) -> WholeGroups | None:
    """Return `WholeGroups` of ``file``, called ``name`` in errors; None if it cannot be read so.

    All types must be plain and equal those of ``schema``, and a slot must be free. ``row_bytes`` is
    the size of a decoded row, where known.
    """
    if not (len(schema) and _is_utf8(known) and _is_plain(file, schema)):
        return None
    if not _slots.acquire(blocking=False):
        return None
    try:
        return WholeGroups(name, known, file.metadata, schema, stop, row_bytes)
    except BaseException:
        _slots.release()
        raise


def can_swell(metadata: pq.FileMetaData, names: Sequence[str]) -> bool:
    """Return whether text columns among ``names`` may be larger decoded than the footer says."""
    chosen = [
        index
        for index in range(metadata.num_columns)
        if metadata.schema.column(index).physical_type == "BYTE_ARRAY"
        and metadata.schema.column(index).path.split(".")[0] in {name.split(".")[0] for name in names}
    ]
    return any(
        not _NEVER_SWELL.issuperset(metadata.row_group(group).column(index).encodings)
        for group in range(metadata.num_row_groups)
        for index in chosen
    )


def _is_utf8(known: KnownFile) -> bool:
    """Return whether the file's name is UTF-8, as Polars requires."""
    try:
        os.fspath(known.path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_plain(file: pq.ParquetFile, schema: pa.Schema) -> bool:
    columns = [file.schema.column(index) for index in range(len(file.schema))]
    # Polars reads INT96 as nanoseconds.
    if any(column.physical_type == "INT96" for column in columns):
        return False
    stored = {column.path: column.physical_type for column in columns}
    found = file.schema_arrow
    if not set(schema.names) <= set(found.names):
        return False
    return all(_is_alike(found.field(field.name).type, field.type, stored.get(field.name)) for field in schema)


def _is_alike(found: pa.DataType, expected: pa.DataType, stored: str | None) -> bool:
    import pyarrow as pa

    if stored_type(found) != stored_type(expected):
        return False
    # Only Arrow reads decimals stored as bytes of any length.
    return str(found) in _PLAIN or (bool(pa.types.is_decimal128(found)) and stored not in {None, "BYTE_ARRAY"})


def _fixed_bytes(schema: pa.Schema) -> int:
    """Return the bytes of a row in the columns of fixed-size values."""
    import pyarrow as pa

    fixed = [kind for kind in schema.types if pa.types.is_primitive(kind) or pa.types.is_decimal(kind)]
    return sum(int(kind.bit_width) for kind in fixed) // 8


def _check_times(frame: pl.DataFrame) -> None:
    """Raise `NoSuchTime` if ``frame`` has a date or time that Python cannot hold."""
    import polars.selectors as cs

    times = frame.select(cs.date() | cs.datetime())
    if times.width:
        for batch in times.to_arrow().to_batches():
            check_holdable(batch, with_text=False)


@cache
def _reader() -> ThreadPoolExecutor:
    """Return the one thread that waits for Polars, which decodes in its own threads."""
    return ThreadPoolExecutor(1, thread_name_prefix="malstrom-parquet")


def _read(known: KnownFile, names: Sequence[str], start: int, rows: int) -> pl.DataFrame:
    import polars as pl
    import polars.selectors as cs

    if not known.is_there():
        raise FileNotFoundError
    scan: Any = pl.scan_parquet(known.path, glob=False, hive_partitioning=False)
    # A selector takes names literally; strings may be patterns.
    frame: pl.DataFrame = scan.slice(start, rows).select(cs.by_name(*names)).collect()
    return frame


_BATCH_ROWS_MIN: Final = 1 << 14
_FIRST_ROWS_MAX: Final = 1 << 10
_BATCH_BYTES_MAX: Final = 1 << 24
_SKIP_ROWS: Final = 1 << 16
_THREADED_ROWS_MIN: Final = 1 << 14
_WHOLE_ROWS_MIN: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class Filter:
    """What a filter leaves of rows: those for which ``keep`` is true, with the columns ``names``.

    Parts apply it to what they return, so that positions count the rows of the file.
    """

    keep: Any
    names: Sequence[str]

    def kept(self, rows: Any) -> pa.RecordBatch:
        """Return what is left of ``rows``, a `ColumnBatch` or a record batch."""
        batch = rows.columns if isinstance(rows, ColumnBatch) else rows
        return batch.filter(self.keep).select(list(self.names))


class ParquetPart(BasePart[Any]):
    """Reads the row groups from ``position`` up to ``stop`` (None: all) and closes ``file`` at the end.

    ``schema``: the columns and types to read; ``first``: the file they were inferred from, None if this file is known
    to have these columns. ``of_first``: all columns of the files, which this one may lack; None if it may have others
    besides those of ``schema``. What it lacks is None, or the value in the names of its ``folders``. ``rows`` makes
    rows of columns. With ``known``, the file's identity, polls of frames may read whole row groups, unless times
    without a zone are to be converted from ``timezone``. ``is_pinned``: each poll checks that the file is ``known``.
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
        rows: RowMaker | None = None,
        of_first: Sequence[str] | None = None,
        folders: Mapping[str, str | None] | None = None,
        filter: Filter | None = None,
        is_pinned: bool = False,
    ) -> None:
        self._name = name
        self._maker = rows
        self._filter = filter
        self._file = file
        self._known = known
        self._is_pinned = is_pinned
        self._groups: WholeGroups | None = None
        self._by_frames = False
        self._schema = schema
        self._folders = folders or {}
        self._stored = _stored(file.schema_arrow, schema)
        self._lacks_some = self._stored.names != schema.names
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
                found = file.schema_arrow.names
                # A column that it lacks is one that other files have.
                expected = [one for one in found if of_first is None or one in of_first]
                check_columns(name, found, first, expected)
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
        if self._by_frames:
            self._find_groups(rows_max)
            return self._poll(rows_max)
        rows = self._poll(rows_max)
        return rows.columns if isinstance(rows, ColumnBatch) and rows.form is DICTS else rows

    def set_polls(self, *, frames: bool, bad_rows: bool) -> None:
        self._by_frames = frames

    def _find_groups(self, rows_max: int) -> None:
        """Find out whether whole row groups can be read, which is the fastest way to frames."""
        # Where the footer does not show how large decoded rows are, the first batch does.
        may_be_whole = not self._can_swell and rows_max >= _WHOLE_ROWS_MIN and self._timezone is None
        may_be_whole = may_be_whole and not (self._lacks_some and self._maker is not None)
        if self._groups is None and self._known is not None and may_be_whole:
            self._groups = whole_groups(
                self._name, self._known, self._file, self._stored, self._stop, row_bytes=self._seen_row_bytes
            )

    def _poll(self, rows_max: int) -> Any:
        # Never return an empty batch because of a filter: the worker would pause as if no rows were left.
        while self._has_rows(rows_max):
            if self._is_pinned and self._known is not None and not self._known.is_there():
                raise file_replaced(str(self._known.path))
            rows = self._whole_rows(self._cursor.take(rows_max, self._name, self._rows()))
            kept = rows if self._filter is None else self._filter.kept(rows)
            if len(kept):
                return kept
        return None

    def _whole_rows(self, rows: Any) -> Any:
        """Return ``rows`` with the columns that the file lacks: piece by piece, as a text may be large in each row."""
        import pyarrow as pa

        if not (self._lacks_some and self._maker is None and isinstance(rows, ColumnBatch)):
            return rows
        batch = completed(rows.columns, self._schema, self._folders, self._name)
        return pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)

    def _has_rows(self, rows_max: int) -> bool:
        """Return whether there are rows to take, after loading some if there were none."""
        import pyarrow as pa
        from polars.exceptions import PanicException, PolarsError

        try:
            while self._cursor.is_empty():
                if self._finished or not (self._load_whole() or self._load(rows_max)):
                    return False
        except (OSError, pa.ArrowException, PolarsError, PanicException) as error:
            why = f"{type(error).__name__}. The file is damaged or cannot be read: replace it"
            if isinstance(error, OSError) and error.errno is not None:
                why = why_unreadable(error)
            raise SourceError(
                f"{self._name} failed in row group {self._row_group} after {self._rows()} rows were read: {why}."
            ) from error
        return True

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

    def lag_rows(self) -> int:
        footer = self._file.metadata
        rows: int = sum(footer.row_group(group).num_rows for group in range(self._row_group, self._stop))
        return max(0, rows - self._taken - self._cursor.taken - self._skip)

    def close(self) -> None:
        if self._groups is not None:
            self._groups.close()
        self._file.close(force=True)

    def _rows(self) -> int:
        return self._rows_before + self._taken + self._cursor.taken

    def _next_batch(self, rows_max: int) -> pa.RecordBatch | None:
        """Return the next rows of this row group: as many as asked for, unless they take too much memory."""
        if self._row_group >= self._stop:
            return None
        if self._batches is None:
            group = self._file.metadata.row_group(self._row_group)
            self._row_bytes = max(self._seen_row_bytes, group.total_byte_size // max(1, group.num_rows))
        wanted = min(self._skip, _SKIP_ROWS) or max(rows_max, _BATCH_ROWS_MIN)
        wanted = min(wanted, _FIRST_ROWS_MAX) if self._can_swell else wanted
        rows = max(1, min(wanted, _BATCH_BYTES_MAX // self._row_bytes))
        threaded, batches = rows >= _THREADED_ROWS_MIN, self._batches
        if batches is None:
            self._batches = batches = self._file.iter_batches(
                batch_size=rows, row_groups=[self._row_group], columns=self._stored.names, use_threads=threaded
            )
        else:
            # The reader reads both settings for each batch, so batch sizes follow the polls within a row group.
            self._file.reader.set_batch_size(rows)
            self._file.reader.set_use_threads(threaded)
        batch: pa.RecordBatch | None = next(batches, None)
        if batch is not None and len(batch):
            # Values stored once and repeated take more memory than the footer says.
            self._seen_row_bytes = max(1, batch.nbytes // len(batch))
            self._row_bytes = max(self._row_bytes, self._seen_row_bytes)
            self._can_swell = False
        return batch

    def _load_whole(self) -> bool:
        """Load the rest of the row group as a whole; return False if that was done already or is not possible."""
        if self._groups is None or self._whole or self._row_group >= self._stop:
            return False
        frame = self._groups.frame(self._row_group)
        taken = self._taken + self._cursor.taken + self._skip
        if frame is None or frame.height < taken:
            return False
        self._whole, self._batches = True, iter(())
        self._taken, self._skip = taken, 0
        self._cursor = Cursor(self._typed([ColumnBatch(None, frame=frame.slice(taken), schema=self._stored)]))
        return not self._cursor.is_empty()

    def _load(self, rows_max: int) -> bool:
        """Load the next batch, of this row group or the next; finish and return False if there is none."""
        self._taken, self._cursor = self._taken + self._cursor.taken, Cursor()
        batch = self._next_batch(rows_max)
        if batch is not None:
            skipped = min(self._skip, len(batch))
            self._skip, self._taken = self._skip - skipped, self._taken + skipped
            self._cursor = Cursor(self._typed(self._converted(batch.slice(skipped))) if skipped < len(batch) else [])
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

    def _typed(self, runs: list[Run]) -> list[Run]:
        return runs if self._maker is None else self._maker.runs(runs)

    def _converted(self, batch: pa.RecordBatch) -> list[Run]:
        """Return ``batch`` in the source's types; a row with a value that would lose digits is a bad record.

        So is one with a value that Python cannot hold.
        """
        import pyarrow as pa

        batch = completed(batch, self._schema, self._folders, self._name)
        try:
            columns = [recast(column, kind) for column, kind in zip(batch.columns, self._schema.types, strict=True)]
            converted = zoned(pa.RecordBatch.from_arrays(columns, schema=self._schema), self._timezone)
            check_holdable(converted)
            return [converted]
        except (pa.ArrowInvalid, NoSuchTime) as error:
            if len(batch) == 1:
                lossy = f"a value does not fit its column's type ({self._lossy(batch)})"
                return [BadRecord(str(error) if isinstance(error, NoSuchTime) else lossy, _as_text(batch))]
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


def _stored(found: pa.Schema, schema: pa.Schema) -> pa.Schema:
    """Return the columns of ``schema`` that a file with those of ``found`` has; at least one, to count rows."""
    import pyarrow as pa

    stored = [field for field in schema if field.name in found.names]
    if not stored:
        small = [field for field in found if pa.types.is_primitive(field.type)]
        stored = (small or list(found))[:1]
    return pa.schema([field.remove_metadata() for field in stored])


def _check_types(path: str, found: pa.Schema, first: str, expected: pa.Schema) -> None:
    """Raise `SourceError` unless each column's type, in any layout, is or widens to the expected one."""
    for field in expected:
        if field.name not in found.names:
            continue
        kind = found.field(field.name).type
        if not widens_to(kind, field.type):
            raise SourceError(
                f"column {field.name!r} is {kind} in {path} and {field.type} in {first}: "
                f"give the files the same types, or read them as separate sources."
            )


def _as_text(row: pa.RecordBatch) -> dict[str, Any]:
    """Return the text of a row whose values Python cannot hold, for the dead-letter stream."""
    return {name: _text(column) for name, column in zip(row.schema.names, row.columns, strict=True)}


def _text(column: pa.Array) -> Any:
    """Return the only value of ``column`` as text, None for null, as bytes if it is not UTF-8; structs and lists so."""
    import pyarrow as pa

    kind = kind_of(column.type)
    if column.null_count:
        return None
    if kind is ColumnKind.STR:
        return text_of(column.cast(pa.binary())[0].as_py())
    if kind is ColumnKind.STRUCT:
        return {field.name: _text(inner) for field, inner in zip(column.type, column.flatten(), strict=True)}
    if kind is ColumnKind.LIST:
        values = column.flatten()
        return [_text(values.slice(at, 1)) for at in range(len(values))]
    try:
        return column.cast(pa.string())[0].as_py()
    except pa.ArrowException:  # a map, say
        return f"a value of type {column.type}"
