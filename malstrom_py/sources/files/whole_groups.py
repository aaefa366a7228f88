"""Reads row groups of a Parquet file as wholes, one ahead of the one that is being taken.

For chains of steps that take columns: Polars decodes with all cores while the steps run, and hands over frames that
they take as they are. Memory is bounded: larger groups are left out, and at most `_AT_ONCE_MAX` files of a process are
read so at a time; all others go the ordinary way, by small batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import SourceError

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    import pyarrow.parquet as pq

_GROUP_BYTES_MAX: Final = 64 << 20
_AT_ONCE_MAX: Final = 2
_PLAIN: Final = frozenset(
    (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float", "double"),
        *("string", "large_string", "binary", "large_binary", "date32[day]"),
        *("timestamp[ms]", "timestamp[us]", "timestamp[ms, tz=UTC]", "timestamp[us, tz=UTC]"),
    )
)
"""Types that Polars and Arrow read alike."""

_slots = BoundedSemaphore(_AT_ONCE_MAX)


class WholeGroups:
    """The row groups of the file at ``path``, each a frame of the columns ``names``. Made by `whole_groups`."""

    def __init__(self, path: Path, metadata: pq.FileMetaData, names: Sequence[str], stop: int) -> None:
        self._path = path
        self._names = names
        self._stop = stop
        self._sizes = [metadata.row_group(group).total_byte_size for group in range(stop)]
        self._rows = [metadata.row_group(group).num_rows for group in range(stop)]
        self._ahead: dict[int, Future[pl.DataFrame]] = {}
        self._holds_slot = True

    def frame(self, group: int) -> pl.DataFrame | None:
        """The row group ``group``; None if it is too large to be read as a whole. Begins to read the one behind it."""
        if self._sizes[group] > _GROUP_BYTES_MAX:
            return None
        future = self._ahead.pop(group, None) or self._begin(group)
        for other in list(self._ahead):  # of a place that was left
            self._ahead.pop(other).cancel()
        following = group + 1
        if following < self._stop and self._sizes[following] <= _GROUP_BYTES_MAX:
            self._ahead[following] = self._begin(following)
        frame = future.result()
        if frame.height != self._rows[group]:
            raise SourceError(
                f"row group {group} has {frame.height} rows and not the {self._rows[group]} of its footer"
            )
        return frame

    def close(self) -> None:
        """Stop reading ahead, and let others read so."""
        for future in self._ahead.values():
            future.cancel()
        self._ahead.clear()
        if self._holds_slot:
            self._holds_slot = False
            _slots.release()

    def _begin(self, group: int) -> Future[pl.DataFrame]:
        return _reader().submit(_read, self._path, self._names, sum(self._rows[:group]), self._rows[group])


def whole_groups(path: Path, file: pq.ParquetFile, schema: pa.Schema, stop: int) -> WholeGroups | None:
    """`WholeGroups` of ``file``; None if its types are not all plain and those of ``schema``, or too many read so."""
    found = file.schema_arrow
    if not all(str(field.type) in _PLAIN and found.field(field.name).type == field.type for field in schema):
        return None
    if not _slots.acquire(blocking=False):
        return None
    return WholeGroups(path, file.metadata, schema.names, stop)


@cache
def _reader() -> ThreadPoolExecutor:
    """One thread that waits for Polars, which decodes in threads of its own."""
    return ThreadPoolExecutor(1, thread_name_prefix="malstrom-parquet")


def _read(path: Path, names: Sequence[str], start: int, rows: int) -> pl.DataFrame:
    import polars as pl

    scan: Any = pl.scan_parquet(path, glob=False, hive_partitioning=False)
    frame: pl.DataFrame = scan.slice(start, rows).select(names).collect()
    return frame
