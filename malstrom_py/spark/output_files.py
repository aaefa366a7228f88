"""The output files of one step as Spark reads them: schema, splits for Spark's tasks, and record batches.

Rules:
- A query reads exactly the files that the job's output record names. It records size and modification time of each file
  when it is planned, and fails if a file has changed since.
- A partition column (``column=value`` in folder names) is of integers, dates or booleans if all its values are, else of
  strings: the folder names are the only source of its type.
- A value is converted without loss or not at all: the error names the column, never the value.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Protocol

from malstrom_py.data.schema import ColumnKind, kind_of
from malstrom_py.errors import MalformedRecord, SourceError
from malstrom_py.errors.text import describe_error, instead_of
from malstrom_py.local_files import local_path
from malstrom_py.sinks.files.partitions import parse_folder
from malstrom_py.sinks.output_record import BY_SPARK, JobOutput, StepOutput, jobs_in, read_output

if TYPE_CHECKING:
    import pyarrow as pa

    from malstrom_py.sources.files.csv import ColumnType

_WHOLE: Final = re.compile(r"-?(0|[1-9]\d{0,17})")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_TRUTHS: Final = {"true": True, "false": False}


def partition_texts(file: str) -> dict[str, str | None]:
    """Parse the folders of ``file`` (relative to the output folder) into column -> text; a null partition is None."""
    texts: dict[str, str | None] = {}
    for folder in file.split("/")[:-1]:
        parsed = parse_folder(folder)
        if parsed is None:
            raise SourceError(f"the file {file!r} is not in a partition folder: it is not the output of a job")
        texts[parsed[0]] = parsed[1]
    return texts


def partition_schema(files: Sequence[Mapping[str, str | None]]) -> pa.Schema:
    """Return the partition columns, given the folder texts of each file."""
    import pyarrow as pa

    names = list(files[0]) if files else []
    if any(list(file) != names for file in files):
        raise SourceError("the files are not partitioned by the same columns: they are not the output of one job")
    return pa.schema([(name, _type([file[name] for file in files])) for name in names])


def partition_value(text: str | None, kind: pa.DataType) -> Any:
    """Parse the folder text of a partition column of type ``kind``."""
    if text is None:
        return None
    match kind_of(kind):
        case ColumnKind.DATE:
            return date.fromisoformat(text)
        case ColumnKind.BOOL:
            return _TRUTHS[text]
        case ColumnKind.INT:
            return int(text)
    return text


def _type(texts: Sequence[str | None]) -> pa.DataType:
    import pyarrow as pa

    known = [text for text in texts if text is not None]
    if not known:
        return pa.null()
    if all(map(_WHOLE.fullmatch, known)) and "-0" not in known:
        return pa.int64()
    if all(map(_is_date, known)):
        return pa.date32()
    return pa.bool_() if all(text in _TRUTHS for text in known) else pa.string()


def _is_date(text: str) -> bool:
    try:
        return _DATE.fullmatch(text) is not None and date.fromisoformat(text) is not None
    except ValueError:
        return False


_SPLIT_BYTES: Final = 128 << 20


class FileFormat(Protocol):
    """Reads the files of one format."""

    def schema(self, paths: Sequence[Path]) -> pa.Schema:
        """Return one schema for all the files."""
        ...

    def ranges(self, path: Path) -> list[tuple[int, int]]:
        """Return the ranges of a file that can be read independently."""
        ...

    def batches(self, path: Path, start: int, stop: int, schema: pa.Schema, rows_max: int) -> Iterator[pa.RecordBatch]:
        """Read the rows of one range, in the columns of ``schema``."""
        ...


class ParquetFiles:
    """Reads row groups; the files may differ in the width of their types."""

    def schema(self, paths: Sequence[Path]) -> pa.Schema:
        import pyarrow as pa

        schemas = []
        for path in paths:
            with _opened(path) as file:
                schemas.append(file.schema_arrow.remove_metadata())
        try:
            return pa.unify_schemas(schemas, promote_options="permissive")
        except pa.ArrowException as error:
            raise SourceError(f"the output files do not have one schema: {describe_error(error)}") from None

    def ranges(self, path: Path) -> list[tuple[int, int]]:
        from malstrom_py.sources.files.footers import row_group_runs

        with _opened(path) as file:
            return row_group_runs(file.metadata, _SPLIT_BYTES)

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
    """Infers the types from the first rows, as `sources.Files` does, unless a schema is given."""

    def schema(self, paths: Sequence[Path]) -> pa.Schema:
        from malstrom_py.sources import Files
        from malstrom_py.sources.files.options import unpack_schema

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
    """Reads all lines to find the columns, because their fields may differ, unless a schema is given."""

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
                    raise SourceError(
                        f"{path}: the types of its lines differ: {describe_error(error)}. Give a schema"
                    ) from None
        return found

    def ranges(self, path: Path) -> list[tuple[int, int]]:
        return [(0, 0)]

    def batches(self, path: Path, start: int, stop: int, schema: pa.Schema, rows_max: int) -> Iterator[pa.RecordBatch]:
        for rows in _polled(path, "json", rows_max, None):
            columns = {field.name: _array(path, field.name, rows, field.type) for field in schema}
            yield _cast(path, columns, len(rows), schema)


FILE_FORMATS: Final[Mapping[str, FileFormat]] = {"csv": CsvFiles(), "json": JsonFiles(), "parquet": ParquetFiles()}


def _opened(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise SourceError(
            f"{path} is not a complete Parquet file ({type(error).__name__}): run the job again"
        ) from error


def _polled(path: Path, format: str, rows_max: int, types: Mapping[str, ColumnType] | None) -> Iterator[Any]:
    """Read one file with `sources.Files`."""
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
        raise SourceError(f"{error}; give a schema if the types are wrong") from error
    finally:
        part.close()


def _csv_type(kind: pa.DataType) -> ColumnType:
    """Return the csv type in which a column of ``kind`` is read: text, then cast, where csv has no such type."""
    from malstrom_py.sources.files.csv import COLUMN_TYPES

    found = kind_of(kind)
    names: list[ColumnType] = [name for name, one in COLUMN_TYPES.items() if one is found is not ColumnKind.TIME]
    return names[0] if names else "str"


def _array(path: Path, name: str, rows: Sequence[Mapping[str, Any]], kind: pa.DataType | None) -> pa.Array:
    """Build the column ``name`` of ``rows``, with type ``kind`` if the values have that type already."""
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
            f"{path}: the values of column {name!r} do not fit into one column ({type(error).__name__})"
        ) from None


def _cast(path: Path, columns: Mapping[str, Any], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """Cast ``columns`` to ``schema``; missing columns are null."""
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


_BATCH_ROWS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class FileSplit:
    """The part of a file that one task reads: from ``start`` to ``stop`` in units of the format (row groups)."""

    root: Path
    file: str
    format: str
    size: int
    mtime_ns: int
    start: int
    stop: int


def output_of(path: str, job: str | None) -> tuple[Path, JobOutput]:
    """Read the output record of ``job`` in the folder ``path``; None selects the only job that has one."""
    root = local_path(path, 'spark.read.format("malstrom")')
    if job is None:
        jobs = jobs_in(root)
        if not jobs:
            raise SourceError(
                f"no job has written a record in {root}: give the folder that a sink with a path wrote to"
            )
        if len(jobs) > 1:
            raise SourceError(f"several jobs have written to {root}: choose one with option job: {', '.join(jobs)}")
        job = jobs[0]
    return root, read_output(root, job)


def step_of(output: JobOutput, step: str | None) -> StepOutput:
    """Return the output of ``step``; None selects the only step that has some."""
    steps = sorted(output.outputs)
    if step is None and len(steps) == 1:
        step = steps[0]
    if step is None:
        raise SourceError(
            f"several steps of job {output.job!r} have written here: choose one with option step: {_all(steps)}"
        )
    if step not in output.outputs:
        raise SourceError(f"no step {step!r} of job {output.job!r} has written here; the steps are {_all(steps)}")
    return output.outputs[step]


class OutputFiles:
    """The output files of one step in ``root``."""

    def __init__(self, root: Path, output: StepOutput) -> None:
        if output.format.startswith(BY_SPARK):
            raise SourceError(
                f"Spark has written this output, with its own options: read it with "
                f"spark.read.format({output.format.removeprefix(BY_SPARK)!r})"
            )
        if output.format not in FILE_FORMATS:
            raise SourceError(
                f"the output is {output.format}, and this data source reads {_all(sorted(FILE_FORMATS))}: "
                f"read it with spark.read.format({output.format!r})"
            )
        self._root = root
        self._format = output.format
        self._kind: FileFormat = FILE_FORMATS[output.format]
        self._files = list(output.files)
        self._texts = [_texts_of(file) for file in self._files]
        for file in self._files:
            _stat(root, file)

    def schema(self) -> pa.Schema:
        """Return the columns of the files, then the partition columns."""
        import pyarrow as pa

        if not self._files:
            raise SourceError("the job has written no rows, so its columns are unknown: give a schema")
        inside = self._kind.schema([self._root / file for file in self._files])
        return pa.schema([*inside, *partition_schema(self._texts)])

    def splits(self) -> list[FileSplit]:
        """Return the splits that Spark's tasks read."""
        splits = []
        for file in self._files:
            size, mtime_ns = _stat(self._root, file)
            for start, stop in self._kind.ranges(self._root / file):
                splits.append(FileSplit(self._root, file, self._format, size, mtime_ns, start, stop))
        return splits


def batches_of(split: FileSplit, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read the rows of ``split`` in the columns of ``schema``."""
    import pyarrow as pa

    if _stat(split.root, split.file) != (split.size, split.mtime_ns):
        raise SourceError(f"{split.root / split.file} has changed while it was read: read it again")
    texts = partition_texts(split.file)
    inside = pa.schema([field for field in schema if field.name not in texts])
    kind = FILE_FORMATS[split.format]
    path = split.root / split.file
    for batch in kind.batches(path, split.start, split.stop, inside, _BATCH_ROWS):
        yield _with_partitions(batch, texts, schema)


def check_readable(files: Mapping[str, pa.DataType], asked: pa.Schema) -> None:
    """Raise `SourceError` if a requested column does not exist, or cannot be cast to the requested type."""
    import pyarrow as pa

    missing = [field.name for field in asked if field.name not in files]
    if missing:
        raise SourceError(f"the output has no column {_all(missing)}{instead_of(missing[0], list(files))}")
    for field in asked:
        there = files[field.name]
        try:
            pa.nulls(0, there).cast(field.type)
        except pa.ArrowException:
            raise SourceError(f"column {field.name!r} is {there}, and cannot be read as {field.type}") from None


def _with_partitions(batch: pa.RecordBatch, texts: Mapping[str, str | None], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns = {field.name: batch.column(field.name) for field in batch.schema}
    for name, text in texts.items():
        if name in schema.names:
            kind = schema.field(name).type
            plain = partition_schema([{name: text}]).field(0).type
            columns[name] = pa.repeat(pa.scalar(partition_value(text, plain), plain), batch.num_rows).cast(kind)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _texts_of(file: str) -> Mapping[str, str | None]:
    parts = PurePosixPath(file).parts
    if not parts or file.startswith("/") or ".." in parts or "\0" in file:
        raise SourceError(f"the record names a file outside of its folder ({file!r}): the record is damaged")
    return partition_texts(file)


def _stat(root: Path, file: str) -> tuple[int, int]:
    path = root / file
    try:
        if path.resolve(strict=True) != root.resolve() / file:
            raise SourceError(f"{path} is reached through a symbolic link: a job writes none, remove the link")
        found = path.stat()
    except OSError as error:
        raise SourceError(
            f"{path}, which the job has written, cannot be read ({error.strerror}): run the job again"
        ) from None
    return found.st_size, found.st_mtime_ns


def _all(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
