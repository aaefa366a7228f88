"""Reads row groups of a Parquet file as wholes, one ahead of the one that is being taken.

For chains of steps that take columns: Polars decodes with all cores while the steps run, and hands over frames that
they take as they are. Nothing else may differ from the ordinary way, by small batches: types that Polars reads
otherwise, or that come out otherwise than expected, go that way, and a file that is no longer the one that was opened
is an error.

Memory: at most `_AT_ONCE_MAX` files of a process are read so at a time, two groups of each in memory. A group is left
to the ordinary way if it takes more than `_GROUP_BYTES_MAX` as encoded, or if its rows would take more than
`_DECODED_BYTES_MAX` once read, going by the rows read so far. That is a guess, for a value that is stored once may be
repeated as often as there are rows: a group whose rows are far larger than all before it is read once. Then the rest
of the file goes the ordinary way.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import accumulate
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.column_types import stored_type
from malstrom_py.errors import SourceError
from malstrom_py.sources.files.footers import KnownFile
from malstrom_py.sources.files.streams import file_replaced

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    import pyarrow.parquet as pq

_GROUP_BYTES_MAX: Final = 64 << 20
_DECODED_BYTES_MAX: Final = 4 * _GROUP_BYTES_MAX
_AT_ONCE_MAX: Final = 2
_PLAIN: Final = frozenset(
    (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float", "double"),
        *("string", "large_string", "string_view", "binary", "large_binary", "binary_view", "date32[day]"),
        *("timestamp[ms]", "timestamp[us]", "timestamp[ms, tz=UTC]", "timestamp[us, tz=UTC]"),
    )
)
"""Types that Polars and Arrow read alike, as they do decimals of 128 bits."""

_NEVER_SWELL: Final = frozenset(("PLAIN", "RLE", "BIT_PACKED", "DELTA_LENGTH_BYTE_ARRAY"))
"""Encodings in which each text is stored as long as it is."""

_slots = BoundedSemaphore(_AT_ONCE_MAX)


class WholeGroups:
    """The row groups of one file, each a frame of the columns of ``schema``. Made by `whole_groups`."""

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
        """The row group ``group``; None if it is not to be read as a whole. Begins to read the one behind it.

        SourceError: the file is not what was opened.
        """
        if not self._fits(group):
            return None
        future = self._ahead.pop(group, None) or self._begin(group)
        self._cancel()  # of a place that was left
        frame = self._result(future)
        if dict(frame.schema) != dict(self._schema) or frame.columns != list(self._schema):
            self._given_up = True
            return None
        if frame.height != self._rows[group]:
            raise SourceError(
                f"{self._name}: row group {group} has {frame.height} rows and not the {self._rows[group]} of its "
                f"footer. The file is damaged: replace it."
            )
        self._measure(frame)
        if group + 1 < self._stop and self._fits(group + 1):
            self._ahead[group + 1] = self._begin(group + 1)
        return frame

    def close(self) -> None:
        """Stop reading ahead, and let others read so."""
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

    def _result(self, future: Future[pl.DataFrame]) -> pl.DataFrame:
        from polars.exceptions import PanicException

        try:
            frame = future.result()
        except (Exception, PanicException):
            if self._known.is_there():
                raise
            raise file_replaced(self._name) from None
        if not self._known.is_there():
            raise file_replaced(self._name)
        return frame

    def _cancel(self) -> None:
        for future in self._ahead.values():
            future.cancel()
        self._ahead.clear()


def whole_groups(
    name: str, known: KnownFile, file: pq.ParquetFile, schema: pa.Schema, stop: int, *, row_bytes: int = 1
) -> WholeGroups | None:
    """`WholeGroups` of ``file``, called ``name``; None if that cannot be, or too many are read so.

    It can be if all types are plain and those of ``schema``. ``row_bytes`` is what a row took that was read before.
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
    """Whether the texts of some column among ``names`` may take more once they are read than the footer says."""
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
    """Whether Polars can be told the name of the file."""
    try:
        os.fspath(known.path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_plain(file: pq.ParquetFile, schema: pa.Schema) -> bool:
    columns = [file.schema.column(index) for index in range(len(file.schema))]
    # Polars reads these as nanoseconds, wherever the file does not say otherwise.
    if any(column.physical_type == "INT96" for column in columns):
        return False
    stored = {column.path: column.physical_type for column in columns}
    found = file.schema_arrow
    return all(_is_alike(found.field(field.name).type, field.type, stored.get(field.name)) for field in schema)


def _is_alike(found: pa.DataType, expected: pa.DataType, stored: str | None) -> bool:
    import pyarrow as pa

    if stored_type(found) != stored_type(expected):
        return False
    # Decimals in bytes of any length are left to Arrow.
    return str(found) in _PLAIN or (bool(pa.types.is_decimal128(found)) and stored not in {None, "BYTE_ARRAY"})


def _fixed_bytes(schema: pa.Schema) -> int:
    """What a row takes in the columns whose values are all of one size."""
    import pyarrow as pa

    fixed = [kind for kind in schema.types if pa.types.is_primitive(kind) or pa.types.is_decimal(kind)]
    return sum(int(kind.bit_width) for kind in fixed) // 8


@cache
def _reader() -> ThreadPoolExecutor:
    """One thread that waits for Polars, which decodes in threads of its own."""
    return ThreadPoolExecutor(1, thread_name_prefix="malstrom-parquet")


def _read(known: KnownFile, names: Sequence[str], start: int, rows: int) -> pl.DataFrame:
    import polars as pl
    import polars.selectors as cs

    if not known.is_there():
        raise FileNotFoundError
    scan: Any = pl.scan_parquet(known.path, glob=False, hive_partitioning=False)
    # A selector takes names as they are, where others take patterns.
    frame: pl.DataFrame = scan.slice(start, rows).select(cs.by_name(*names)).collect()
    return frame
