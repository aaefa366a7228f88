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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, cast

from malstrom_py.data.schema import ColumnKind, kind_of
from malstrom_py.errors import MalformedRecord, SourceError
from malstrom_py.errors.text import describe_error, instead_of
from malstrom_py.local_files import local_path
from malstrom_py.sinks.files.partitions import parse_folder
from malstrom_py.sinks.output_record import BY_SPARK, JobOutput, StepOutput, jobs_in, read_output

if TYPE_CHECKING:
    import pyarrow as pa

    from malstrom_py.sources import Files
    from malstrom_py.sources.base import Part
    from malstrom_py.sources.files.csv import ColumnType


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


def _type(texts: Sequence[str | None]) -> pa.DataType:
    """Return the first type that has each of ``texts`` as the text of a value."""
    import pyarrow as pa

    known = pa.array([text for text in texts if text is not None], pa.string())
    if not len(known):
        return pa.null()
    for kind in (pa.int64(), pa.date32(), pa.bool_()):
        with suppress(pa.ArrowException):
            if known.cast(kind).cast(pa.string()).equals(known):
                return kind
    return pa.string()


ASKED_BY: Final = 'format "malstrom"'
"""What reads the output, for errors."""

_FORMATS: Final = ("csv", "json", "parquet")
_SPLIT_BYTES: Final = 128 << 20
_BATCH_ROWS: Final = 1 << 16
_TASK_COST: Final = 32 << 20
_FILE_COST: Final = _TASK_COST >> 6
"""A task of Spark takes about 70 ms, and a small file a few: a task reads 32 MiB, or 63 files."""


def _schema_of(paths: Sequence[Path], format: str) -> pa.Schema:
    """Return the columns of files, which may differ, in types that hold the values of all."""
    from malstrom_py.sources.files.options import unpack_schema

    if format == "json":
        return _schema_of_lines(paths)
    source = _source(format, paths)
    part = source.build_part(source.list_parts()[0], None)
    try:
        if part.snapshot()["schema"] is None:
            part.poll(1)  # raises why there is none
        return unpack_schema(part.snapshot()["schema"])
    finally:
        part.close()


def _schema_of_lines(paths: Sequence[Path]) -> pa.Schema:
    """Return the columns of all lines, because their fields may differ."""
    import pyarrow as pa

    found = pa.schema([])
    for path in paths:
        for rows in _polled(None, _source("json", [path]), ()):
            names = dict.fromkeys(name for row in rows for name in row)
            here = pa.schema([(name, _array(path, name, rows, None).type) for name in names])
            try:
                found = pa.unify_schemas([found, here], promote_options="permissive")
            except pa.ArrowException as error:
                raise SourceError(
                    f"{path}: the types of its lines differ: {describe_error(error)}. Give a schema"
                ) from None
    return found


def _source(format: str, paths: Sequence[Path], schema: pa.Schema | None = None) -> Files[Any]:
    """Return the source of files; csv is read in the types of ``schema``."""
    from malstrom_py.sources import Files

    in_csv = schema if format == "csv" and schema is not None else ()
    types: dict[str, ColumnType] = {field.name: _csv_type(field.type) for field in in_csv}
    patterns = [glob.escape(str(path)) for path in paths]
    return Files(patterns, format=cast(Any, format), types=types or None, split_bytes=_SPLIT_BYTES)


def _polled(part: Part | None, source: Files[Any], names: Sequence[str]) -> Iterator[Any]:
    """Read the columns ``names`` of a part, or of all parts, as batches of columns or lists of rows."""
    for one in source.list_parts() if part is None else [part]:
        opened = source.build_narrow_part(one, None, names) if names else source.build_part(one, None)
        try:
            while not opened.is_finished():
                rows: Any = opened.poll(_BATCH_ROWS)
                if rows is not None and len(rows):
                    yield rows
        except MalformedRecord as error:
            raise SourceError(f"{error}; give a schema if the types are wrong") from error
        finally:
            opened.close()


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


@dataclass(frozen=True, slots=True)
class FileSplit:
    """A ``part`` of a file, which is one ``of_file`` parts."""

    root: Path
    file: str
    format: str
    size: int
    mtime_ns: int
    part: Part
    of_file: int


def output_of(path: str, job: str | None) -> tuple[Path, JobOutput]:
    """Read the output record of ``job`` in the folder ``path``; None selects the only job that has one."""
    root = local_path(path, ASKED_BY)
    if job is None:
        jobs = jobs_in(root)
        if not jobs:
            raise SourceError(
                f"no job has written a record in {root}: give the folder that a sink with a path wrote to, or wait for "
                f"the first commit. A stream can begin before it if schema(…) gives its columns"
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
        if output.format not in _FORMATS:
            raise SourceError(
                f"the output is {output.format}, and this data source reads {_all(_FORMATS)}: "
                f"read it with spark.read.format({output.format!r})"
            )
        self._root = root
        self._format = output.format
        self._files = list(output.files)
        self._texts = [_texts_of(file) for file in self._files]
        for file in self._files:
            _stat(root, file)

    def schema(self) -> pa.Schema:
        """Return the columns of the files, then the partition columns."""
        import pyarrow as pa

        if not self._files:
            raise SourceError("the job has written no rows, so its columns are unknown: give a schema")
        inside = _schema_of([self._root / file for file in self._files], self._format)
        return pa.schema([*inside, *partition_schema(self._texts)])

    def tasks(self) -> list[list[FileSplit]]:
        """Return the splits that each of Spark's tasks reads: many small files are one task."""
        tasks: list[list[FileSplit]] = []
        cost = _TASK_COST
        for split in self.splits():
            cost += split.size // split.of_file + _FILE_COST
            if cost > _TASK_COST:
                tasks.append([])
                cost = split.size // split.of_file + _FILE_COST
            tasks[-1].append(split)
        return tasks

    def splits(self) -> list[FileSplit]:
        """Return all files, large ones in several splits."""
        splits = []
        for file in self._files:
            size, mtime_ns = _stat(self._root, file)
            parts = _source(self._format, [self._root / file]).list_parts()
            splits += [FileSplit(self._root, file, self._format, size, mtime_ns, part, len(parts)) for part in parts]
        return splits


def batches_of(split: FileSplit, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read the rows of ``split`` in the columns of ``schema``."""
    import pyarrow as pa

    from malstrom_py.sources.files.footers import constant

    if _stat(split.root, split.file) != (split.size, split.mtime_ns):
        raise SourceError(f"{split.root / split.file} has changed while it was read: read it again")
    texts = partition_texts(split.file)
    inside = pa.schema([field for field in schema if field.name not in texts])
    named = {name: constant(text, _type([text])) for name, text in texts.items()}
    path = split.root / split.file
    for rows in _polled(split.part, _source(split.format, [path], inside), inside.names):
        if isinstance(rows, pa.RecordBatch):
            columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        else:
            columns = {field.name: _array(path, field.name, rows, field.type) for field in inside}
        columns |= {name: pa.repeat(value, len(rows)) for name, value in named.items()}
        yield _cast(path, columns, len(rows), schema)


def batches_of_all(splits: Sequence[FileSplit], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read the rows of ``splits``, in their order, in the columns of ``schema``."""
    for split in splits:
        yield from batches_of(split, schema)


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
