"""The formats of files that jobs write, as columns of the types that are asked for.

Rule: a value is never bent: what does not go into its type without loss is an error that says which column, not which
value.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from malstrom_py.errors import MalformedRecord, SourceError

if TYPE_CHECKING:
    import pyarrow as pa

    from malstrom_py.sources.files.csv_types import ColumnType

_PORTION_BYTES: Final = 128 << 20


class FileKind(Protocol):
    """How files of one format are read."""

    def schema(self, paths: Sequence[Path]) -> pa.Schema:
        """The columns of all the files together."""
        ...

    def ranges(self, path: Path) -> list[tuple[int, int]]:
        """The portions of a file that are read by themselves."""
        ...

    def batches(self, path: Path, start: int, stop: int, schema: pa.Schema, rows_max: int) -> Iterator[pa.RecordBatch]:
        """The rows of one portion, in the columns of ``schema``."""
        ...


class ParquetFiles:
    """Read by row groups; files may differ in how wide their types are."""

    def schema(self, paths: Sequence[Path]) -> pa.Schema:
        import pyarrow as pa

        schemas = []
        for path in paths:
            with _opened(path) as file:
                schemas.append(file.schema_arrow.remove_metadata())
        try:
            return pa.unify_schemas(schemas, promote_options="permissive")
        except pa.ArrowException as error:
            raise SourceError(f"the files of the output have other columns or types each: {error}") from None

    def ranges(self, path: Path) -> list[tuple[int, int]]:
        from malstrom_py.sources.files.footers import row_group_runs

        with _opened(path) as file:
            return row_group_runs(file.metadata, _PORTION_BYTES)

    def batches(self, path: Path, start: int, stop: int, schema: pa.Schema, rows_max: int) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        with _opened(path) as file:
            there = [name for name in schema.names if name in file.schema_arrow.names]
            try:
                for batch in file.iter_batches(rows_max, row_groups=range(start, stop), columns=there):
                    yield _cast(path, dict(zip(batch.schema.names, batch.columns, strict=True)), batch.num_rows, schema)
            except (OSError, pa.ArrowException) as error:
                raise SourceError(f"{path} is damaged or cannot be read ({type(error).__name__})") from error


class CsvFiles:
    """The types are found by the first rows, as `sources.Files` finds them, unless a schema is given."""

    def schema(self, paths: Sequence[Path]) -> pa.Schema:
        from malstrom_py.sources import Files
        from malstrom_py.sources.files.schema import unpack_schema

        source: Files[Any] = Files([glob.escape(str(path)) for path in paths], format="csv", split_bytes=None)
        position = source.build_part(source.list_parts()[0], None).snapshot()
        return unpack_schema(position["schema"])

    def ranges(self, path: Path) -> list[tuple[int, int]]:
        return [(0, 0)]

    def batches(self, path: Path, start: int, stop: int, schema: pa.Schema, rows_max: int) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        types: dict[str, ColumnType] = {field.name: _csv_type(field.type) for field in schema}
        for polled in _polled(path, "csv", rows_max, types):
            batch = polled if isinstance(polled, pa.RecordBatch) else pa.RecordBatch.from_pylist(polled)
            yield _cast(path, dict(zip(batch.schema.names, batch.columns, strict=True)), batch.num_rows, schema)


class JsonFiles:
    """Lines may differ in their fields: all of them are read to find the columns, unless a schema is given."""

    def schema(self, paths: Sequence[Path]) -> pa.Schema:
        import pyarrow as pa

        found = pa.schema([])
        for path in paths:
            for rows in _polled(path, "json", 1 << 16, None):
                names = dict.fromkeys(name for row in rows for name in row)
                here = pa.schema([(name, _array(path, name, rows, None).type) for name in names])
                try:
                    found = pa.unify_schemas([found, here], promote_options="permissive")
                except pa.ArrowException as error:
                    raise SourceError(f"{path}: give a schema, for lines differ in types: {error}") from None
        return found

    def ranges(self, path: Path) -> list[tuple[int, int]]:
        return [(0, 0)]

    def batches(self, path: Path, start: int, stop: int, schema: pa.Schema, rows_max: int) -> Iterator[pa.RecordBatch]:
        for rows in _polled(path, "json", rows_max, None):
            columns = {field.name: _array(path, field.name, rows, field.type) for field in schema}
            yield _cast(path, columns, len(rows), schema)


FILE_KINDS: Final[Mapping[str, FileKind]] = {"csv": CsvFiles(), "json": JsonFiles(), "parquet": ParquetFiles()}


def _opened(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"{path} is no whole Parquet file ({type(error).__name__}): run the job again") from error


def _polled(path: Path, format: str, rows_max: int, types: Mapping[str, ColumnType] | None) -> Iterator[Any]:
    """What `sources.Files` gives of one file."""
    from malstrom_py.sources import Files

    asked: dict[str, Any] = {"types": types} if types else {}
    source: Files[Any] = Files(glob.escape(str(path)), format=format, split_bytes=None, **asked)  # type: ignore[call-overload]
    part = source.build_part(source.list_parts()[0], None)
    try:
        while not part.is_finished():
            rows: Any = part.poll(rows_max)
            if rows is not None and len(rows):
                yield rows
    except MalformedRecord as error:
        raise SourceError(f"{error}; give a schema if other types are meant") from error
    finally:
        part.close()


def _csv_type(kind: pa.DataType) -> ColumnType:
    """As what a column is read that is to be a ``kind``."""
    import pyarrow as pa

    is_a = pa.types
    if is_a.is_integer(kind):
        return "int64"
    if is_a.is_floating(kind):
        return "float64"
    if is_a.is_boolean(kind):
        return "bool"
    if is_a.is_date(kind):
        return "date"
    if is_a.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamp_utc"
    return "str"


def _array(path: Path, name: str, rows: Sequence[Mapping[str, Any]], kind: pa.DataType | None) -> pa.Array:
    """The column ``name`` of ``rows``, of the type ``kind`` if the values are that already."""
    import pyarrow as pa

    values = [row.get(name) for row in rows]
    try:
        if kind is not None and not pa.types.is_temporal(kind):
            return pa.array(values, type=kind)
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        pass
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SourceError(
            f"{path}: the values of column {name!r} do not go into one column ({type(error).__name__})"
        ) from None


def _cast(path: Path, columns: Mapping[str, Any], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """``columns``, those that are missing as nulls, in the types of ``schema``."""
    import pyarrow as pa

    arrays = []
    for field in schema:
        try:
            column = columns[field.name] if field.name in columns else pa.nulls(rows)
            arrays.append(column.cast(field.type))
        except (pa.ArrowException, ValueError) as error:
            raise SourceError(
                f"{path}: column {field.name!r} holds values that do not go into {field.type} "
                f"({type(error).__name__}): give a schema with another type for it"
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
