"""The files that one step of a job has left, as Spark is to read them: their columns, and the portions of its tasks.

Rule: exactly the files that the job's record names are read; what is pinned when a query is planned is what it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from malstrom_py.errors import SourceError
from malstrom_py.local_path import local_path
from malstrom_py.sinks.output_record import BY_SPARK, JobOutput, StepOutput, jobs_in, read_output
from malstrom_py.spark.file_kinds import FILE_KINDS, FileKind
from malstrom_py.spark.partition_columns import partition_schema, partition_texts, partition_value

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Portion:
    """What one task reads: the records of ``file`` from ``start`` to ``stop``, in units of its format."""

    root: Path
    file: str
    format: str
    size: int
    mtime_ns: int
    start: int
    stop: int


def output_of(path: str, job: str | None) -> tuple[Path, JobOutput]:
    """What ``job``, which may be left out if it is the only one, has left in the folder ``path``."""
    root = local_path(path, 'spark.read.format("malstrom")')
    if job is None:
        jobs = jobs_in(root)
        if not jobs:
            raise SourceError(f"no job has left a record in {root}: give the folder that a sink with a path wrote to")
        if len(jobs) > 1:
            raise SourceError(f"several jobs have written to {root}: say which by option job: {', '.join(jobs)}")
        job = jobs[0]
    return root, read_output(root, job)


def step_of(output: JobOutput, step: str | None) -> StepOutput:
    """What ``step``, which may be left out if it is the only one, has left."""
    steps = sorted(output.outputs)
    if step is None and len(steps) == 1:
        step = steps[0]
    if step is None:
        raise SourceError(f"job {output.job!r} has written by several steps: say which by option step: {_all(steps)}")
    if step not in output.outputs:
        raise SourceError(f"no step {step!r} of job {output.job!r} has written here: those that have are {_all(steps)}")
    return output.outputs[step]


class OutputFiles:
    """The files of one step in ``root``."""

    def __init__(self, root: Path, output: StepOutput) -> None:
        if output.format.startswith(BY_SPARK):
            raise SourceError(
                f"Spark has written this output, with options of its own: read it by "
                f"spark.read.format({output.format.removeprefix(BY_SPARK)!r})"
            )
        if output.format not in FILE_KINDS:
            raise SourceError(
                f"the output is {output.format}, and known here are {_all(sorted(FILE_KINDS))}: "
                f"read it by spark.read.format({output.format!r})"
            )
        self._root = root
        self._format = output.format
        self._kind: FileKind = FILE_KINDS[output.format]
        self._files = list(output.files)
        self._texts = [_texts_of(file) for file in self._files]
        for file in self._files:
            _stat(root, file)

    def schema(self) -> pa.Schema:
        """The columns in the files, then those of the partitions."""
        import pyarrow as pa

        if not self._files:
            raise SourceError("the job has written no rows, so nothing tells the columns: give a schema")
        inside = self._kind.schema([self._root / file for file in self._files])
        return pa.schema([*inside, *partition_schema(self._texts)])

    def portions(self) -> list[Portion]:
        """What the tasks are to read."""
        return list(self._portions())

    def _portions(self) -> Iterator[Portion]:
        for file in self._files:
            size, mtime_ns = _stat(self._root, file)
            for start, stop in self._kind.ranges(self._root / file):
                yield Portion(self._root, file, self._format, size, mtime_ns, start, stop)


def batches_of(portion: Portion, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of ``portion`` in the columns of ``schema``."""
    import pyarrow as pa

    if _stat(portion.root, portion.file) != (portion.size, portion.mtime_ns):
        raise SourceError(f"{portion.root / portion.file} has changed while it was read: read it again")
    texts = partition_texts(portion.file)
    inside = pa.schema([field for field in schema if field.name not in texts])
    kind = FILE_KINDS[portion.format]
    path = portion.root / portion.file
    for batch in kind.batches(path, portion.start, portion.stop, inside, _BATCH_ROWS):
        yield _with_partitions(batch, texts, schema)


def check_readable(files: Mapping[str, pa.DataType], asked: pa.Schema) -> None:
    """`SourceError` if a column that is ``asked`` for is not there, or can never be of the type that is asked for."""
    import pyarrow as pa

    missing = [field.name for field in asked if field.name not in files]
    if missing:
        raise SourceError(f"the output has no column {_all(missing)}: its columns are {_all(list(files))}")
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
        raise SourceError(f"the record names a file outside of its folder ({file!r}): it is damaged")
    return partition_texts(file)


def _stat(root: Path, file: str) -> tuple[int, int]:
    path = root / file
    try:
        if path.resolve(strict=True) != root.resolve() / file:
            raise SourceError(f"{path} is behind a symbolic link: what a job writes is not")
        found = path.stat()
    except OSError as error:
        raise SourceError(
            f"{path}, which the job has written, cannot be read ({error.strerror}): run the job again"
        ) from None
    return found.st_size, found.st_mtime_ns


def _all(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
