"""Inspects the footers of Parquet files at pinning: their row groups, and whether Arrow reads them as Spark would.

Rule: files are read directly only if that is certain; otherwise Spark reads them and stages the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.schema import (
    ColumnKind,
    inside,
    kind_of,
    map_inside,
    plain_type,
    stored_type,
    widens_to,
    with_inside,
)
from malstrom_py.errors import SourceError
from malstrom_py.sinks.files.partitions import parse_folder
from malstrom_py.sources.files.footers import constant, kept_groups
from malstrom_py.sources.files.options import adapted
from malstrom_py.sources.pinned.row_groups import PinnedFile

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_THREADS: Final = 16
_FORMER_CALENDAR: Final = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_FIRST_OF_ONE_CALENDAR: Final = (3, 1)


class ReadOtherwiseError(Exception):
    """Spark reads, or may read, other values from a file than Arrow."""


@dataclass(frozen=True, slots=True)
class InspectedFile:
    """A file and the number of its rows, including those of skipped row groups."""

    file: PinnedFile
    rows: int


def partition_values(path: str, names: Collection[str]) -> dict[str, str | None]:
    """Return the values of the columns ``names`` in the folder names of ``path``, None for null.

    >>> partition_values("/t/year=2013/carrier=U%2FA/__x=1/part-0.parquet", {"year", "carrier"})
    {'year': '2013', 'carrier': 'U/A'}
    """
    values = map(parse_folder, PurePath(path).parts[:-1])
    return {column: text for column, text in filter(None, values) if column in names}


def is_exact_as_text(kind: pa.DataType) -> bool:
    """Return whether Spark and Arrow read the same value of ``kind`` from a folder name."""
    import pyarrow as pa

    types = pa.types
    return bool(types.is_string(kind) or types.is_signed_integer(kind) or types.is_date32(kind))


def inspect_files(
    paths: Sequence[str],
    schema: pa.Schema,
    *,
    keep: Any = None,
    partitioned: Collection[str] = (),
    is_case_sensitive: bool = False,
) -> list[InspectedFile]:
    """Inspect ``paths`` for the columns of ``schema``, without the row groups whose statistics exclude ``keep``.

    ``partitioned``: columns that folder names may hold. ``is_case_sensitive``: whether ``a`` and ``A`` are two columns
    to Spark.

    Raises:
        ReadOtherwiseError: Arrow would read a file differently from Spark.
        SourceError: a file cannot be read, or is not a Parquet file.
    """
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="malstrom-footers") as threads:
        return list(threads.map(lambda path: _inspect(path, schema, keep, partitioned, is_case_sensitive), paths))


def _inspect(
    path: str, schema: pa.Schema, keep: Any, partitioned: Collection[str], is_case_sensitive: bool
) -> InspectedFile:
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.fs as fs

    values = partition_values(path, partitioned)
    known_here = _known_of(path, values, schema)
    reading = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
    try:
        status = Path(path).stat()
        fragment = ds.ParquetFileFormat(read_options=reading).make_fragment(
            path, filesystem=fs.LocalFileSystem(), partition_expression=known_here
        )
        metadata, found = fragment.metadata, adapted(fragment.physical_schema)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise SourceError(f"{path} cannot be read: {error.strerror}") from error
        raise SourceError(f"{path} is not a whole Parquet file: replace it") from error
    _check(path, metadata, found, schema, values, str if is_case_sensitive else str.lower)
    groups = kept_groups(fragment, metadata, found, schema, keep)
    return InspectedFile(PinnedFile(path, status.st_size, status.st_mtime_ns, groups, values), metadata.num_rows)


def _known_of(path: str, values: Mapping[str, str | None], schema: pa.Schema) -> Any:
    """Return the expression of partition values that is true for all rows of ``path``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    expression: Any = pc.scalar(True)
    for name, value in values.items():
        if name in schema.names:
            column: Any = pc.field(name)
            try:
                known = constant(value, schema.field(name).type)
            except pa.ArrowException:
                raise ReadOtherwiseError(f"{path}: only Spark reads column {name!r} from folder names") from None
            expression = expression & (column.is_null() if value is None else column == known)
    return expression


def _check(
    path: str,
    metadata: pq.FileMetaData,
    found: pa.Schema,
    schema: pa.Schema,
    values: Mapping[str, str | None],
    known_as: Callable[[str], str],
) -> None:
    """Raise `ReadOtherwiseError` unless Arrow reads this file as Spark would."""
    if _is_of_former_calendar(metadata):
        raise ReadOtherwiseError(f"{path} may hold dates of the former calendar")
    names = found.names
    known = [known_as(name) for name in names]
    if len(set(known)) < len(known):
        raise ReadOtherwiseError(f"{path} has columns with equal names")
    for field in schema:
        if field.name in values:
            if known_as(field.name) in known or not is_exact_as_text(field.type):
                raise ReadOtherwiseError(f"{path}: its folder names hold column {field.name!r}")
        elif field.name not in names:
            if known_as(field.name) in known:
                raise ReadOtherwiseError(f"{path} spells column {field.name!r} differently")
        elif not _fits(found.field(field.name).type, field.type, _has_int96(metadata, field.name)):
            raise ReadOtherwiseError(f"{path} has column {field.name!r} in another type")


def _is_of_former_calendar(metadata: pq.FileMetaData) -> bool:
    """Return whether dates and timestamps may be in the calendar that Spark used before version 3.1."""
    noted = metadata.metadata or {}
    if any(key in noted for key in _FORMER_CALENDAR):
        return True
    version = noted.get(b"org.apache.spark.version")
    if version is None:
        return False
    numbers = version.decode(errors="replace").split(".")[:2]
    return not all(map(str.isdigit, numbers)) or tuple(map(int, numbers)) < _FIRST_OF_ONE_CALENDAR


def _has_int96(metadata: pq.FileMetaData, name: str) -> bool:
    columns = (metadata.schema.column(index) for index in range(metadata.num_columns))
    return any(
        column.physical_type == "INT96"
        for column in columns
        if column.path.split(".")[0] == name.split(".", maxsplit=1)[0]
    )


def _fits(found: pa.DataType, wanted: pa.DataType, int96: bool) -> bool:
    """Return whether values of ``found`` become ``wanted`` without a loss or any other difference from Spark."""
    given, held = stored_type(plain_type(found), times=False), stored_type(wanted, times=False)
    given = _as_durations(_in_utc(given) if int96 else given, held)
    return given == held or (not inside(given) and not inside(held) and widens_to(given, held))


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """Return ``kind`` with zoned timestamps in place of naive ones: timestamps stored in 96 bits are instants."""
    import pyarrow as pa

    return pa.timestamp(kind.unit, "UTC") if kind_of(kind) is ColumnKind.NAIVE else map_inside(kind, _in_utc)


def _as_durations(kind: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """Return ``kind`` with durations in place of int64 where ``wanted`` has them: Spark stores their microseconds."""
    import pyarrow as pa

    if kind_of(wanted) is ColumnKind.DURATION and kind == pa.int64():
        return wanted
    mine, theirs = inside(kind), inside(wanted)
    if kind.id != wanted.id or len(mine) != len(theirs):
        return kind
    pairs = zip(mine, theirs, strict=True)
    return with_inside(kind, [_as_durations(inner, other) for (_, inner), (_, other) in pairs])
