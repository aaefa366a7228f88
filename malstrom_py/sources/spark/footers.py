"""What the footers of Parquet files say of them when they are pinned: their row groups, and whether Arrow reads of them
what Spark would.

Rule: files are read as they are only where that is certain; else Spark reads them, and writes down what it has read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.schema import plain_type, stored_type
from malstrom_py.errors import SourceError
from malstrom_py.sources.files.options import adapted
from malstrom_py.sources.spark.pin import PinnedFile, constant, is_told_by_text, partition_values

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_AT_ONCE: Final = 16
_FORMER_CALENDAR: Final = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_FIRST_OF_ONE_CALENDAR: Final = (3, 1)


class ReadOtherwiseError(Exception):
    """Spark would, or might, read something else of a file than Arrow does."""


@dataclass(frozen=True, slots=True)
class Looked:
    """A file, and how many rows there are in it, those of row groups that are left out included."""

    file: PinnedFile
    rows: int


def look_at(
    paths: Sequence[str],
    schema: pa.Schema,
    *,
    keep: Any = None,
    told: Collection[str] = (),
    is_case_sensitive: bool = False,
) -> list[Looked]:
    """Pin ``paths`` for the columns of ``schema``, without the row groups that hold nothing ``keep`` would be true for.

    ``told``: columns that names of folders may tell. ``is_case_sensitive``: whether Spark tells ``a`` from ``A``.

    Raises:
        ReadOtherwiseError: files that are not to be read as they are.
        SourceError: one cannot be read, or is no Parquet file.
    """
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="malstrom-footers") as threads:
        return list(threads.map(lambda path: _look(path, schema, keep, told, is_case_sensitive), paths))


def _look(path: str, schema: pa.Schema, keep: Any, told: Collection[str], is_case_sensitive: bool) -> Looked:
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.fs as fs

    values = partition_values(path, told)
    told_here = _told_of(path, values, schema)
    reading = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
    try:
        status = Path(path).stat()
        fragment = ds.ParquetFileFormat(read_options=reading).make_fragment(
            path, filesystem=fs.LocalFileSystem(), partition_expression=told_here
        )
        metadata, found = fragment.metadata, adapted(fragment.physical_schema)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise SourceError(f"{path} cannot be read: {error.strerror}") from error
        raise SourceError(f"{path} is no whole Parquet file: replace it") from error
    _check(path, metadata, found, schema, values, str if is_case_sensitive else str.lower)
    groups = _groups(fragment, metadata, found, schema, keep)
    return Looked(PinnedFile(path, status.st_size, status.st_mtime_ns, groups, values), metadata.num_rows)


def _told_of(path: str, values: Mapping[str, str | None], schema: pa.Schema) -> Any:
    """What is true of all rows of the file ``path``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    told: Any = pc.scalar(True)
    for name, value in values.items():
        if name in schema.names:
            column: Any = pc.field(name)
            try:
                known = constant(value, schema.field(name).type)
            except pa.ArrowException:
                raise ReadOtherwiseError(f"{path}: its folders tell of column {name!r} in a way of Spark's") from None
            told = told & (column.is_null() if value is None else column == known)
    return told


def _groups(
    fragment: Any, metadata: pq.FileMetaData, found: pa.Schema, schema: pa.Schema, keep: Any
) -> tuple[int, ...]:
    """The row groups that have rows, and may have some that ``keep`` is true for."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    kept: Collection[int] = range(metadata.num_row_groups)
    # Of a column that is stored as another type the statistics are of that type too.
    alike = all(found.field(field.name).type == field.type for field in schema if field.name in found.names)
    if keep is not None:
        try:
            if alike and not _tells_of_floats(keep, schema):
                kept = {group.id for group in fragment.subset(keep, schema=schema).row_groups}
            elif not list(ds.FileSystemDataset([fragment], schema, fragment.format).get_fragments(keep)):
                kept = ()
        except pa.ArrowException:
            """What cannot be compared leaves nothing out."""
    return tuple(group for group in sorted(kept) if metadata.row_group(group).num_rows)


def _tells_of_floats(keep: Any, schema: pa.Schema) -> bool:
    """Whether ``keep`` asks for columns with floating numbers, of whose NaN statistics say nothing."""
    import pyarrow as pa

    others = [field for field in schema if not _has_floats(field.type)]
    if len(others) == len(schema):
        return False
    try:
        pa.schema(others).empty_table().filter(keep)
    except pa.ArrowException:
        return True
    return False


def _has_floats(kind: pa.DataType) -> bool:
    import pyarrow as pa

    inside = (kind.field(index).type for index in range(kind.num_fields))
    return pa.types.is_floating(kind) or any(map(_has_floats, inside))


def _check(
    path: str,
    metadata: pq.FileMetaData,
    found: pa.Schema,
    schema: pa.Schema,
    values: Mapping[str, str | None],
    known_as: Callable[[str], str],
) -> None:
    """`ReadOtherwiseError` unless Arrow reads of this file what Spark would."""
    if _is_of_former_calendar(metadata):
        raise ReadOtherwiseError(f"{path} may hold days of the former calendar")
    names = found.names
    known = [known_as(name) for name in names]
    if len(set(known)) < len(known):
        raise ReadOtherwiseError(f"{path} has columns whose names are alike")
    for field in schema:
        if field.name in values:
            if known_as(field.name) in known or not is_told_by_text(field.type):
                raise ReadOtherwiseError(f"{path}: its folders tell of column {field.name!r}")
        elif field.name not in names:
            if known_as(field.name) in known:
                raise ReadOtherwiseError(f"{path} writes column {field.name!r} otherwise")
        elif not _fits(found.field(field.name).type, field.type, _has_int96(metadata, field.name)):
            raise ReadOtherwiseError(f"{path} has column {field.name!r} in another type")


def _is_of_former_calendar(metadata: pq.FileMetaData) -> bool:
    """Whether the file may tell days and moments as Spark did before version 3.1, or was told to."""
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
    """Whether values of the type ``found`` become ``wanted`` without a loss, or any other difference from Spark."""
    import pyarrow as pa

    given = stored_type(plain_type(found), times=False)
    held = stored_type(wanted, times=False)
    if int96:
        given = _in_utc(given)
    given, held = _bare(_as_lengths(given, held)), _bare(held)
    if given == held:
        return True
    if pa.types.is_nested(given) or pa.types.is_nested(held):
        return False
    try:
        both = [pa.schema([("", held)]), pa.schema([("", given)])]
        return bool(pa.unify_schemas(both, promote_options="permissive").field(0).type == held)
    except pa.ArrowException:
        return False


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """``kind`` with moments in place of local times: such as are stored in 96 bits are moments."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit, "UTC")
    return _nested(kind, [_in_utc(kind.field(index).type) for index in range(kind.num_fields)])


def _as_lengths(kind: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """``kind`` with lengths of time where these are ``wanted``: Spark stores their microseconds."""
    import pyarrow as pa

    if pa.types.is_duration(wanted) and pa.types.is_int64(kind):
        return wanted
    if kind.id != wanted.id or kind.num_fields != wanted.num_fields:
        return kind
    inside = [_as_lengths(kind.field(index).type, wanted.field(index).type) for index in range(kind.num_fields)]
    return _nested(kind, inside)


def _bare(kind: pa.DataType) -> pa.DataType:
    """``kind`` without what it says of nulls, and without the names that items of lists and maps have in files."""
    return _nested(kind, [_bare(kind.field(index).type) for index in range(kind.num_fields)])


def _nested(kind: pa.DataType, inside: list[pa.DataType]) -> pa.DataType:
    """``kind`` with other types in it, in order."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        names = [kind.field(index).name for index in range(kind.num_fields)]
        return pa.struct(list(zip(names, inside, strict=True)))
    if pa.types.is_map(kind):
        return pa.map_(*(inside[0].field(index).type for index in range(2)))
    return pa.list_(inside[0]) if pa.types.is_list(kind) else kind
