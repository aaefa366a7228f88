"""The footers of Parquet files: schemas, row groups, and which row groups a filter excludes by their statistics.

The partitions of one file share its footer, which is read once while the file is the same.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from malstrom_py.data.schema import ColumnKind, contains, kind_of
from malstrom_py.errors import SourceError
from malstrom_py.errors.text import text_of
from malstrom_py.sources.files.objects import ObjectFile, ObjectPath
from malstrom_py.sources.files.options import adapted
from malstrom_py.sources.files.streams import Status

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

    def open(
        self, path: Path | ObjectPath, check: Callable[[Status], None] = lambda status: None
    ) -> tuple[pq.ParquetFile, KnownFile | None]:
        """Open a file; return its identity too, unless it is an object, each read of which checks that it is the same.

        ``check``: gets the status of the opened file before anything is read. `SourceError`: it is not a Parquet file.
        """
        known, file = None, path.open("rb")
        try:
            if isinstance(path, ObjectPath):
                status: Any = path.stat()
                identity: tuple[Any, ...] = (path.name, status.etag)
            else:
                status = os.fstat(file.fileno())
                identity = _identity(status)
                known = KnownFile(path, identity)
            check(status)
            opened = _opened(file, self._kept.pop(identity, None))
        except BaseException:
            file.close()
            raise
        self._kept[identity] = opened.metadata
        if len(self._kept) > _KEPT_MAX:
            self._kept.popitem(last=False)
        return opened, known


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def parquet_types(path: Path | ObjectPath, footers: Footers) -> Iterator[pa.Schema]:
    """Yield the one schema of the file, adapted to Python's types."""
    file, _ = footers.open(path)
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


@dataclass(frozen=True, slots=True)
class Footer:
    """What a footer says of a file: of which ``size`` and time of change it is, and how many ``rows`` it has.

    ``stored``: the types in which its columns are stored, with the ids of fields; ``columns``: the types of rows.
    ``groups``: the row groups with rows, without those that a filter excludes.
    """

    size: int
    mtime_ns: int
    rows: int
    stored: pa.Schema
    columns: pa.Schema
    groups: tuple[int, ...]


def read_footer(path: Path | ObjectPath, schema: pa.Schema, *, keep: Any = None, partition: Any = None) -> Footer:
    """Read the footer of a file whose rows are read as ``schema``, without the row groups that ``keep`` excludes.

    ``partition``: the expression of partition values that is true for all rows. `OSError` and `pyarrow.ArrowException`:
    it cannot be read, or is not a Parquet file.
    """
    import pyarrow.dataset as ds

    reading = ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"))
    status = path.stat()
    with path.open("rb") as file:
        found = reading.make_fragment(file).physical_schema
        # A fragment with partition values shows only the other columns.
        fragment = reading.make_fragment(file, partition_expression=partition)
        metadata, columns = fragment.metadata, adapted(found)
        groups = kept_groups(fragment, metadata, columns, schema, keep)
    stored = metadata.schema.to_arrow_schema()
    return Footer(status.st_size, status.st_mtime_ns, metadata.num_rows, stored, columns, groups)


def kept_groups(
    fragment: Any, metadata: pq.FileMetaData, found: pa.Schema, schema: pa.Schema, keep: Any
) -> tuple[int, ...]:
    """Return the row groups with rows, without those that ``keep`` excludes."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    kept: Collection[int] = range(metadata.num_row_groups)
    # The statistics of a column stored as another type are of that type too.
    alike = all(found.field(field.name).type == field.type for field in schema if field.name in found.names)
    if keep is not None:
        try:
            if alike and not _needs_floats(keep, schema):
                kept = {group.id for group in fragment.subset(keep, schema=schema).row_groups}
            elif not list(ds.FileSystemDataset([fragment], schema, fragment.format).get_fragments(keep)):
                kept = ()
        except pa.ArrowException:
            """An expression that cannot be compared excludes no row group."""
    return tuple(group for group in sorted(kept) if metadata.row_group(group).num_rows)


def _needs_floats(keep: Any, schema: pa.Schema) -> bool:
    """Return whether ``keep`` uses columns with floats, whose statistics omit NaN."""
    import pyarrow as pa

    others = [field for field in schema if not contains(field.type, _is_float)]
    return len(others) < len(schema) and why_not_evaluated(keep, pa.schema(others)) is not None


def _is_float(kind: pa.DataType) -> bool:
    return kind_of(kind) is ColumnKind.FLOAT


def why_not_evaluated(keep: Any, schema: pa.Schema) -> str | None:
    """Return why the filter ``keep`` cannot be evaluated for rows of ``schema``; None if it can."""
    import pyarrow as pa

    try:
        schema.empty_table().filter(keep)
    except pa.ArrowException as error:
        return next(iter(text_of(error).splitlines()), type(error).__name__)
    return None


def constant(value: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return the text of a partition value as a scalar of type ``kind``. pyarrow.ArrowException: the cast fails."""
    import pyarrow as pa

    if value is None or pa.types.is_string(kind):
        return pa.scalar(value, kind)
    return pa.scalar(value, pa.string()).cast(kind)


def needed_columns(keep: Any, names: Sequence[str], schema: pa.Schema) -> pa.Schema:
    """Return the columns ``names`` of ``schema`` in its order, and those that the filter ``keep`` uses.

    SourceError: it cannot be evaluated.
    """
    import pyarrow as pa

    used: set[str] = set()
    if keep is not None:
        wrong = why_not_evaluated(keep, schema)
        if wrong is not None:
            raise SourceError(f"the filter {keep} cannot be evaluated: {wrong}")
        without = {name: pa.schema([one for one in schema if one.name != name]) for name in schema.names}
        used = {name for name in schema.names if why_not_evaluated(keep, without[name]) is not None}
    return pa.schema([one for one in schema if one.name in {*names, *used}])


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
        why = "it may be another format, empty or cut off. Replace it"
        raise SourceError(f"it is not a whole Parquet file: {why}") from None
