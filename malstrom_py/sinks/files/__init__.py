"""``Files``: a transactional sink that writes files. Nothing is visible before its commit.

An encoder (`encoding`; `tables`, `json_lines`) encodes batches for each output folder (`partitions`). A writer
(`writer`) buffers them, writes files of limited size, and stages them, hidden (`staging`). The commit makes the files
visible (`publishing`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from malstrom_py.errors import PlanError, SinkError
from malstrom_py.local_files import local_path, locked
from malstrom_py.object_stores import checked_options, is_object_url
from malstrom_py.sinks.base import CommitContext, SnapshotId, has_no_results
from malstrom_py.sinks.files.encoding import Encoder
from malstrom_py.sinks.files.given_columns import GivenColumns
from malstrom_py.sinks.files.json_lines import JsonEncoder
from malstrom_py.sinks.files.objects import FILE_BYTES_MAX, ObjectFolder, ObjectStaging
from malstrom_py.sinks.files.partitions import checked_columns
from malstrom_py.sinks.files.publishing import StagedFile, discard, hold, publish, staged_files, take_back
from malstrom_py.sinks.files.schemas import (
    Visible,
    agreed_schema,
    bring_to,
    given_schema,
    is_narrow,
    schema_in,
    schemas_of,
    unserialized,
)
from malstrom_py.sinks.files.staging import Staging, remove_leftovers, sink_errors, staging_folder
from malstrom_py.sinks.files.tables import CsvEncoder, ParquetEncoder
from malstrom_py.sinks.files.target_columns import TargetColumns, required_places
from malstrom_py.sinks.files.writer import FilesWriter, RollingFiles, Stages
from malstrom_py.sinks.output_record import JobOutput, StepOutput, Target, begin_record, find_record, record_output
from malstrom_py.worker_context import WorkerInfo

if TYPE_CHECKING:
    import pyarrow as pa

_FORMATS: Final = ("csv", "json", "parquet")


class Files:
    """Writes files named ``<step>-<snapshot>-<number>.<format>`` into the folder ``uri``, exactly once.

    ``uri``: a path, ``file://…``, or a folder of an object store.

    **Commits.** Files appear complete and under their final names when the job commits: at each snapshot and at its
    end. The files of a commit are renamed one after the other; if a rename fails, a job without snapshots removes all
    of them, and one with snapshots finishes the commit when it is started again. Until the commit
    they are in ``_staging`` in that folder, which readers skip because of the ``_``; a job that fails removes them.
    Missing folders are created. A job without rows creates the folder and no file. Files of earlier runs stay. Several
    runs may write into one folder at the same time: each locks its staged files (``flock``) until they are committed. A
    new run removes the staged files of earlier runs that have ended, except those of snapshots that it resumes from. On
    a file system without locks, let only one run of a job write there at a time.

    **Columns.** The items of a dict and the fields of a dataclass or namedtuple become columns; any other value becomes
    the column ``value``. On a keyed stream the first column is ``key``, unless all values have a field of that name.
    Timestamps are not written. Results of windows become the columns of ``flat``: the key by its name, their times, and
    the aggregates; but those of `WindowResult` where ``schema``, or files of the job, have these.

    - ``format="json"`` writes one object per line with its own fields (times as ISO 8601, NaN and infinity as null).
    - **parquet** (default) and **csv** have the columns of the first batch: a field that a later value lacks is None,
      an additional field is a `SinkError`. Types may widen: a column that held only None takes any type (str, if it
      never holds a value), integers become floats. Other types cannot share a column (a `SinkError`), nor can datetimes
      with and without a zone. Datetimes with a zone are written in UTC.
    - **parquet**: all files of this step of the job have one schema. What the workers have written is converted to one
      at each commit, if no value changes: a missing column is None, ints become floats that hold them; the first commit
      decides. A later value of another type is a `SinkError` before its snapshot. Decimals of rows have 38 digits.
    - ``schema`` (a ``pyarrow.Schema`` with all columns, for parquet and csv) decides instead: values are cast to it if
      they fit, and None is refused where it is not nullable. The key is left out if there is no column ``key``.
    - csv holds plain values only: text in quotes, None as an empty field (in a file of one column that is an empty
      line, which some programs skip).

    Batches of columns are written without conversion to rows, except as json.

    ``partition_by`` names one or several columns whose values name folders, as Hive, Spark, Polars, DuckDB and
    ``pyarrow.dataset`` read them: ``<uri>/day=2013-01-01/to=a%2Fb/…``. They hold str, int, bool, date or None
    (``__HIVE_DEFAULT_PARTITION__``), and are not written into the files; ``key`` may be the stream's key. A missing
    column, a value of another type, an empty string, or a folder name of more than 255 bytes is a `SinkError`. Each
    worker writes its own files and has at most 64 open: a partition may have many files.

    A file of ``file_bytes_max`` bytes or more is finished, and the next one begins.

    **Object stores.** ``uri`` may be ``s3://bucket/folder``, ``gs://…`` or ``az://…``, with ``store_options`` as
    `Snapshots` takes ``options`` (needs the extra ``objects``). Files are written in the local folder for temporary
    files, uploaded at each snapshot, and copied to their names at the commit, which creates the object
    ``_malstrom/<job>/<step>/<snapshot>.json`` with their names. Let one run of a job write there at a time. A store
    without conditional writes is a SinkError at the start. See ``docs/connectors/object-stores.md``.

    The output record ``_malstrom/<job>.json`` in that folder, hidden as well, has the counts of the run and the files
    of all its commits; for parquet also their schema.

    PlanError: unknown format or scheme, invalid size or column. SinkError: the folder cannot be created or written,
    the disk is full, values do not fit one column.

    >>> import tempfile
    >>> from malstrom_py.data.batch import Batch
    >>> from malstrom_py.sinks import CommitContext, SnapshotId, WorkerId, WorkerInfo
    >>> folder = tempfile.mkdtemp()
    >>> sink = Files(folder, format="csv")
    >>> writer = sink.open(WorkerInfo("docs", "out", WorkerId(0)))
    >>> writer.write(Batch([{"carrier": "UA", "delay": 2}]))
    >>> context = CommitContext("docs", "out", SnapshotId("s1"), incarnation=1)
    >>> payload = writer.pre_commit(context)
    >>> os.listdir(folder)
    ['_staging']
    >>> sink.commit(context, [payload])
    >>> writer.close()
    >>> os.listdir(folder)
    ['out-s1-00000.csv']

    Partitioned, the same record is written to ``carrier=UA/out-s1-00000.csv``, with one column:

    >>> folder = tempfile.mkdtemp()
    >>> sink = Files(folder, format="csv", partition_by="carrier")
    >>> writer = sink.open(WorkerInfo("docs", "out", WorkerId(0)))
    >>> writer.write(Batch([{"carrier": "UA", "delay": 2}]))
    >>> sink.commit(context, [writer.pre_commit(context)])
    >>> writer.close()
    >>> os.listdir(folder), os.listdir(f"{folder}/carrier=UA")
    (['carrier=UA'], ['out-s1-00000.csv'])
    """

    _records_all = False
    """Whether commits that are made by hand are recorded too."""

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        format: Literal["csv", "json", "parquet"] = "parquet",
        partition_by: str | Sequence[str] | None = None,
        file_bytes_max: int = 256 << 20,
        store_options: Mapping[str, str] | None = None,
        schema: pa.Schema | None = None,
    ) -> None:
        if format not in _FORMATS:
            raise PlanError(f"sinks.Files: format must be one of {', '.join(_FORMATS)}, got {format!r}")
        if type(file_bytes_max) is not int or file_bytes_max < 1:
            raise PlanError("sinks.Files: file_bytes_max must be a number of bytes of at least 1")
        # JSON is written row by row: it gets batches small enough to be converted to rows.
        self.takes_columns = format != "json"
        self._objects = None
        if isinstance(uri, str) and is_object_url(uri):
            if file_bytes_max > FILE_BYTES_MAX:
                raise PlanError(f"sinks.Files: file_bytes_max is at most {FILE_BYTES_MAX} in an object store")
            self._objects = ObjectFolder(uri, checked_options(store_options, "sinks.Files"))
            self._objects.bucket.require_extra()
        elif store_options is not None:
            raise PlanError(f"sinks.Files: store_options are for object stores, and {os.fspath(uri)!r} is a folder")
        else:
            self._root = local_path(uri, "sinks.Files")
        self._format = format
        self._partition_by = checked_columns(partition_by)
        self._file_bytes_max = file_bytes_max
        self._given = None if schema is None else self._target_columns(schema)

    def __repr__(self) -> str:
        by = f", partition_by={list(self._partition_by)!r}" if self._partition_by else ""
        return f"Files({str(self._objects or self._root)!r}, format={self._format!r}{by})"

    def __getstate__(self) -> dict[str, Any]:
        """Make the path absolute: a copy in another process may have another working directory."""
        return self.__dict__ if self._objects else {**self.__dict__, "_root": self._root.absolute()}

    def _target_columns(self, schema: pa.Schema) -> TargetColumns:
        if self._format == "json":
            raise PlanError("sinks.Files: a line of json has its own types: leave out schema=, or use parquet or csv")
        given = given_schema(schema, "sinks.Files")
        if missing := [name for name in self._partition_by if name not in given.names]:
            raise PlanError(f"sinks.Files: schema lacks the partition columns {', '.join(map(repr, missing))}")
        return TargetColumns(given, required_places(schema))

    @property
    def target(self) -> Target:
        """The folder, which the sink appends to."""
        if self._objects is not None:
            return Target(self._objects.url, replaces=False)
        return Target(self._root, replaces=False)

    def open(self, worker: WorkerInfo) -> FilesWriter:
        place = self._objects or self._root
        staging: Stages = (
            Staging(self._root, worker.job, worker.step)
            if self._objects is None
            else ObjectStaging(self._objects, worker.job, worker.step)
        )
        files = RollingFiles(staging, self._format, file_bytes_max=self._file_bytes_max)
        encoder = self._encoder(files, partial(self._visible, worker.job, worker.step))
        return FilesWriter(str(place), files, encoder, file_bytes_max=self._file_bytes_max)

    def takes_flat(self, worker: WorkerInfo) -> bool:
        """Return whether results of windows become flat columns: not where the schema, or files, have others."""
        if self._given is not None:
            return has_no_results(self._given.schema.names)
        visible = self._visible(worker.job, worker.step) if self._format == "parquet" else None
        return has_no_results(None if visible is None else visible.schema.names)

    def _encoder(self, files: RollingFiles, find_visible: Callable[[], Visible | None]) -> Encoder[Any]:
        if self._format == "json":
            return JsonEncoder(files, self._partition_by)
        rows = None if self._given is None else GivenColumns(self._given)
        if self._format == "csv":
            return CsvEncoder(files, self._partition_by, rows)
        if rows is not None:
            return ParquetEncoder(files, self._partition_by, rows)
        return ParquetEncoder(files, self._partition_by, find_visible=find_visible)

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        if self._objects is not None:
            self._objects.commit(context, payloads, self._agreed if self._format == "parquet" else None)
            return
        known = self._known(context.job)
        done = frozenset[str]() if known is None else known.files_of(context.step)
        # A single commit without a result, made by hand, gets no record.
        is_manual = context.result is None and context.final and (known is None or known.final)
        is_manual &= not self._records_all
        staged = staged_files(self._root, context, payloads)
        schema = None
        if self._format == "parquet" and any(file.path.exists() for file in staged):
            schema = self._agreed(payloads, self._visible(context.job, context.step))
        if schema is not None:
            self._bring_to(schema, context, staged)
        record = None if is_manual else partial(self._record, context, schema)
        publish(self._root, context, staged, record=record, done=done, undo=False)

    def _agreed(self, payloads: Sequence[bytes], visible: Visible | None) -> pa.Schema | None:
        """Return the one schema of the files that are committed, as in files; None if no payload says any."""
        return agreed_schema(schemas_of(payloads), given=self._schema_in_files(), visible=visible)

    def _bring_to(self, schema: pa.Schema, context: CommitContext, staged: Sequence[StagedFile]) -> None:
        if not is_narrow(schema, staged):
            return
        # Without the lock, a file could be put back that another process has moved in the meantime.
        with locked(staging_folder(self._root, context.job, context.step)) as is_alone:
            if not is_alone:
                raise SinkError(
                    f"another process commits step {context.step!r} to {self._root} at this moment: let one run of a "
                    f"job write there at a time"
                )
            bring_to(schema, staged)

    def _schema_in_files(self) -> pa.Schema | None:
        """Return the columns of ``schema=`` that files have."""
        import pyarrow as pa

        if self._given is None:
            return None
        return pa.schema([field for field in self._given.schema if field.name not in self._partition_by])

    def _visible(self, job: str, step: str) -> Visible | None:
        """Return the schema that the visible files of ``step`` have; None if it is unknown, or there is no file."""
        if self._objects is not None:
            return self._objects.visible(job, step)
        known = self._known(job)
        output = None if known is None else known.outputs.get(step)
        if output is None or output.schema is None or output.format != "parquet":
            return None
        file = next((name for name in output.files if (self._root / name).exists()), None)
        return None if file is None else Visible(unserialized(output.schema), file)

    def _known(self, job: str) -> JobOutput | None:
        with sink_errors("cannot read the output record in", self._root):
            return find_record(self._root, job)

    def _record(self, context: CommitContext, schema: pa.Schema | None, files: list[str]) -> None:
        if schema is None and self._format == "parquet":
            # A commit that is repeated, or one of files that an earlier version has staged.
            file = next((path for name in files if (path := self._root / name).exists()), None)
            schema = None if file is None else schema_in(file)
        written = None if schema is None else schema.serialize().to_pybytes()
        record_output(self._root, context, StepOutput(self._format, files, written))

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        if self._objects is not None:
            self._objects.abort(context, payloads)
            return
        known = self._known(context.job)
        staged = staged_files(self._root, context, payloads)
        take_back(self._root, context, staged, done=() if known is None else known.files_of(context.step))
        discard(self._root, staged)

    def hold(self, context: CommitContext, payloads: Sequence[bytes]) -> Callable[[], None]:
        """Protect the staged files from other runs of this job, until the returned function is called."""
        if self._objects is not None:
            return lambda: None  # A store has no locks: a start discards what is staged under earlier snapshots only.
        return hold(staged_files(self._root, context, payloads))

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        if self._objects is not None:
            self._objects.recover(context, committed)
            self._check_given(context)
            return
        remove_leftovers(self._root, context, committed)
        with sink_errors("cannot write to", self._root):
            begin_record(self._root, context.job, committed, before=context.snapshot)
        self._check_given(context)

    def _check_given(self, context: CommitContext) -> None:
        """Raise `SinkError` if the files that are visible have another schema than ``schema=``."""
        given = self._schema_in_files()
        visible = None if given is None or self._format != "parquet" else self._visible(context.job, context.step)
        if given is None or visible is None or given.equals(visible.schema):
            return
        for field in given:
            index = visible.schema.get_field_index(field.name)
            there = "no such column" if index < 0 else visible.schema.field(index).type
            if there != field.type:
                raise visible.error(f"schema= says {field.type} for column {field.name!r}")
        raise visible.error("schema= lacks columns, or has another order")
