"""``RayDataset``: a sink whose committed rows are a dataset of Ray Data: Parquet files, as `sinks.Files` makes them."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import PlanError, SinkError, SourceError, lasting, pip_command
from malstrom_py.errors.text import describe_error
from malstrom_py.local_files import local_path
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.sinks.files import Files
from malstrom_py.sinks.output_record import RECORDS, jobs_in, read_output

if TYPE_CHECKING:
    import pyarrow as pa
    import ray.data

_TASKS_MAX: Final = 1000
_ROWS_MAX: Final = 1 << 16


class RayDataset(Files):
    """Writes rows for Ray Data: `dataset` returns what was committed, exactly once, as a ``ray.data.Dataset``.

    Rows are staged as Parquet in ``folder``, and become visible when the job commits, at each snapshot and at its end,
    with the guarantees of `sinks.Files`: any worker, node or the coordinator may die at any point. Rows of Ray's own
    object store end with the process or node that has made them, so no commit could promise them. Columns and types are
    those of `sinks.Files` too, with its ``schema``.

    ``folder``: a path that all workers and this program share; use it for one sink. By default a temporary folder of
    this machine, which is removed when the program ends: enough for one machine. A job that another program resumes
    needs a ``folder``, and gets a `SinkError` without one; a detached job gets a `PlanError`.

    PlanError: the path is not local. SinkError: as `sinks.Files`.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job, out = mp.Job("docs"), RayDataset()
    >>> job.source("words", sources.Memory([{"word": "ant"}, {"word": "bee"}])).sink("out", out)
    >>> _ = mp.run(job)
    >>> [name.split("-")[0] for name in out.files()]
    ['out']
    """

    _notes_all = True

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        file_bytes_max: int = 256 << 20,
        schema: pa.Schema | None = None,
    ) -> None:
        self.ends_with_program = folder is None
        if folder is None:
            path = Path(tempfile.gettempdir()).absolute() / f"malstrom-ray-data-{secrets.token_hex(8)}"
            atexit.register(shutil.rmtree, path, ignore_errors=True)
        else:
            path = local_path(folder, "sinks.RayDataset")
        super().__init__(path, file_bytes_max=file_bytes_max, schema=schema)
        self._root = path

    def __repr__(self) -> str:
        return f"RayDataset({'' if self.ends_with_program else repr(str(self._root))})"

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        if self.ends_with_program and committed and not (self._root / RECORDS).exists():
            raise lasting(
                SinkError(
                    f"the job resumes from a snapshot, and what step {context.step!r} had committed before was in a "
                    f"temporary folder of another program: give sinks.RayDataset a folder, and start from the "
                    f"beginning under another job name"
                )
            )
        super().recover(context, committed)
        (self._root / RECORDS).mkdir(parents=True, exist_ok=True)

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        try:
            super().commit(context, payloads)
        except SinkError as error:
            if self.ends_with_program:
                error.add_note(f"With workers on several machines, give {self!r} a folder that all of them share.")
            raise

    def files(self) -> list[str]:
        """Return the names of the committed files. SinkError: nothing was written here, or a record is damaged."""
        try:
            return self._files_recorded()
        except SourceError as error:
            raise SinkError(str(error)) from error

    def _files_recorded(self) -> list[str]:
        jobs = jobs_in(self._root)
        if not jobs:
            raise SinkError(
                f"no job has committed to {self._root}: run a job with this sink first; and give it a folder that all "
                f"machines share if the job runs on others"
            )
        outputs = (output for job in jobs for output in read_output(self._root, job).outputs.values())
        return [name for output in outputs for name in output.files]

    def dataset(self) -> ray.data.Dataset:
        """Return the committed rows of the last run of each job that writes here, as a lazy dataset.

        While a job runs, these are the rows up to its last snapshot. Columns that only some rows have are None in the
        others, and integers become floats where others are. Ray Data returns rows in order only with
        ``ray.data.DataContext.get_current().execution_options.preserve_order = True``. The files must stay as long as
        the dataset is used.

        Raises:
            PlanError: Ray Data is not installed.
            SinkError: nothing was committed, or files have types that do not fit one column.
        """
        try:
            import ray.data
        except ImportError as error:
            raise PlanError(f"sinks.RayDataset needs Ray Data: {pip_command('ray[data]')}") from error
        files = [str(self._root / name) for name in self.files()]
        if not files:
            return ray.data.from_items([])
        # Not read_parquet: its threads fail at random where fsspec is installed without aiohttp.
        named = ray.data.from_items([{"file": file} for file in files], override_num_blocks=min(len(files), _TASKS_MAX))
        read: Any = partial(rows_of, schema=_schema_of(files))
        return named.map_batches(read, batch_size=1, batch_format="pyarrow")


def rows_of(named: pa.Table, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of the files that ``named`` names, with the columns of ``schema``. Runs in a task of Ray."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name in named["file"].to_pylist():
        with pq.ParquetFile(name) as file:
            for batch in file.iter_batches(_ROWS_MAX):
                found = dict(zip(batch.schema.names, batch.columns, strict=True))
                nothing = pa.nulls(len(batch))
                yield pa.table([_cast(found.get(field.name, nothing), field) for field in schema], schema=schema)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return ``column`` in the type of ``field``; one of None alone has any type (see `_schema_in`)."""
    import pyarrow as pa

    if column.null_count == len(column):
        return pa.nulls(len(column), field.type)
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise SinkError(
            f"column {field.name!r} holds {column.type} in a committed file and {field.type} in another, and the "
            f"values do not fit ({type(error).__name__}): map them to one type before the sink"
        ) from error


def _schema_of(files: Sequence[str]) -> Any:
    """Return the schema that all ``files`` fit."""
    import pyarrow as pa

    try:
        schemas = [_schema_in(file) for file in files]
    except (OSError, pa.ArrowException) as error:
        raise SinkError(f"a committed file cannot be read: {describe_error(error)}. Run the job again") from error
    try:
        found = pa.unify_schemas(schemas, promote_options="permissive")
        return pa.schema([(one.name, pa.string() if pa.types.is_null(one.type) else one.type) for one in found])
    except pa.ArrowException as error:
        raise SinkError(
            f"the committed files have columns of different types ({describe_error(error)}): map the values "
            f"to one type before the sink"
        ) from error


def _schema_in(file: str) -> pa.Schema:
    """Return the schema of ``file``, where columns of None alone are null: `sinks.Files` writes them as text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as content:
        metadata, schema = content.metadata, content.schema_arrow
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    # Deeper levels are columns inside structs, whose paths may be the names of others.
    empty = {one.path for n, one in enumerate(columns) if one.max_definition_level <= 1 and _is_empty(groups, n)}
    return pa.schema(
        [
            field.with_type(pa.null()) if pa.types.is_string(field.type) and field.name in empty else field
            for field in schema
        ]
    )


def _is_empty(groups: Sequence[Any], leaf: int) -> bool:
    """Return whether all values of a column are null, as far as the statistics of its row groups show."""
    found = [(group.num_rows, group.column(leaf).statistics) for group in groups]
    return all(known is not None and known.has_null_count and known.null_count == rows for rows, known in found)
