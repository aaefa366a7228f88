"""The footers of Parquet files, which the partitions of one file share: read once, while the file is the same."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from malstrom_py.errors import SourceError
from malstrom_py.sources.files.objects import ObjectFile, ObjectPath
from malstrom_py.sources.files.options import adapted

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_BUFFER_BYTES: Final = 1 << 16
_KEPT_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class KnownFile:
    """The identity of the file at ``path`` when it was opened."""

    path: Path
    identity: tuple[int, ...]

    def is_there(self) -> bool:
        """Return whether the same file is still at the path and was not written to."""
        try:
            return _identity(self.path.stat()) == self.identity
        except OSError:
            return False


class Footers:
    """Keeps the footers of the files opened last. A copy, for instance on another worker, is empty."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def __reduce__(self) -> tuple[type[Footers], tuple[()]]:
        return Footers, ()

    def open(self, path: Path | ObjectPath) -> pq.ParquetFile:
        """Open a file; `SourceError` if it is not a Parquet file."""
        if not isinstance(path, ObjectPath):
            return self.open_known(path)[0]
        return self._open(path.open("rb"), (path.name, path.stat().etag))

    def open_known(self, path: Path) -> tuple[pq.ParquetFile, KnownFile]:
        """Open a local file and return its identity too."""
        file = path.open("rb")
        try:
            identity = _identity(os.fstat(file.fileno()))
        except BaseException:
            file.close()
            raise
        return self._open(file, identity), KnownFile(path, identity)

    def _open(self, file: IO[bytes], identity: tuple[Any, ...]) -> pq.ParquetFile:
        try:
            opened = _opened(file, self._kept.pop(identity, None))
        except BaseException:
            file.close()
            raise
        self._kept[identity] = opened.metadata
        if len(self._kept) > _KEPT_MAX:
            self._kept.popitem(last=False)
        return opened


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def parquet_types(path: Path | ObjectPath, footers: Footers) -> Iterator[pa.Schema]:
    """Yield the one schema of the file, adapted to Python's types."""
    file = footers.open(path)
    try:
        schema = adapted(file.schema_arrow)
    finally:
        file.close(force=True)
    yield schema


def row_group_runs(metadata: pq.FileMetaData, size: int) -> list[tuple[int, int]]:
    """Return runs of consecutive row groups of at most ``size`` stored bytes, unless one alone has more."""
    runs: list[tuple[int, int]] = []
    start = total = 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        stored = sum(group.column(column).total_compressed_size for column in range(group.num_columns))
        if index > start and total + stored > size:
            runs.append((start, index))
            start, total = index, 0
        total += stored
    return [*runs, (start, metadata.num_row_groups)]


def _opened(file: IO[bytes], metadata: pq.FileMetaData | None) -> pq.ParquetFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(
            file,
            metadata=metadata,
            pre_buffer=isinstance(file, ObjectFile),  # few large requests to a store
            buffer_size=_BUFFER_BYTES,
            coerce_int96_timestamp_unit="us",
        )
    except (pa.ArrowInvalid, OSError) as error:
        # A damaged footer is an OSError too, but without the disk's error number.
        if getattr(error, "errno", None) is not None:
            raise
        raise SourceError("it is not a whole Parquet file: it may be another format, empty or cut off") from None
