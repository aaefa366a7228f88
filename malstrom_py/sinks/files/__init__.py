"""``Files``: a transactional sink that writes files. Nothing is visible before its commit.

An encoder (`encoding`; `tables`, `json_lines`) encodes batches for each output folder (`partitions`). A writer
(`writer`) buffers them, writes files of limited size, and stages them, hidden (`staging`). The commit makes the files
visible (`publishing`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

from malstrom_py.errors import PlanError
from malstrom_py.local_files import local_path
from malstrom_py.object_stores import checked_options, is_object_url
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.sinks.files.json_lines import JsonEncoder
from malstrom_py.sinks.files.objects import FILE_BYTES_MAX, ObjectFolder, ObjectStaging
from malstrom_py.sinks.files.partitions import checked_columns
from malstrom_py.sinks.files.publishing import discard, hold, publish, staged_files, take_back
from malstrom_py.sinks.files.staging import Staging, remove_leftovers, sink_errors
from malstrom_py.sinks.files.tables import CsvEncoder, ParquetEncoder, schema_of
from malstrom_py.sinks.files.writer import FilesWriter, RollingFiles, Stages
from malstrom_py.sinks.output_record import JobOutput, StepOutput, Target, begin_record, find_record, record_output
from malstrom_py.worker_context import WorkerInfo

_ENCODERS: Final[dict[str, type[CsvEncoder | JsonEncoder | ParquetEncoder]]] = {
    "csv": CsvEncoder,
    "json": JsonEncoder,
    "parquet": ParquetEncoder,
}


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
    Timestamps are not written.

    - ``format="json"`` writes one object per line with its own fields (times as ISO 8601, NaN and infinity as null).
    - **parquet** (default) and **csv** have the columns of the first batch: a field that a later value lacks is None,
      an additional field is a `SinkError`. Types may widen: a column that held only None takes any type (str, if it
      never holds a value), integers become floats. Other types cannot share a column (a `SinkError`), nor can datetimes
      with and without a zone. Datetimes with a zone are written in UTC. The parquet files of one commit and worker
      share one schema.
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
    of all its commits; for parquet also the schema of the last files.

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
    ) -> None:
        if format not in _ENCODERS:
            raise PlanError(f"sinks.Files: format must be one of {', '.join(_ENCODERS)}, got {format!r}")
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

    def __repr__(self) -> str:
        by = f", partition_by={list(self._partition_by)!r}" if self._partition_by else ""
        return f"Files({str(self._objects or self._root)!r}, format={self._format!r}{by})"

    def __getstate__(self) -> dict[str, Any]:
        """Make the path absolute: a copy in another process may have another working directory."""
        return self.__dict__ if self._objects else {**self.__dict__, "_root": self._root.absolute()}

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
        encoder = _ENCODERS[self._format](files, self._partition_by)
        return FilesWriter(str(place), files, encoder, file_bytes_max=self._file_bytes_max)

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        if self._objects is not None:
            self._objects.commit(context, payloads)
            return
        known = self._known(context)
        done = frozenset[str]() if known is None else known.files_of(context.step)
        # A single commit without a result, made by hand, gets no record.
        is_manual = context.result is None and context.final and (known is None or known.final)
        is_manual &= not self._records_all
        record = None if is_manual else partial(self._record, context)
        publish(self._root, context, staged_files(self._root, context, payloads), record=record, done=done, undo=False)

    def _known(self, context: CommitContext) -> JobOutput | None:
        with sink_errors("cannot read the output record in", self._root):
            return find_record(self._root, context.job)

    def _record(self, context: CommitContext, files: list[str]) -> None:
        file = next((path for name in files if (path := self._root / name).exists()), None)
        schema = schema_of(file) if file is not None and self._format == "parquet" else None
        record_output(self._root, context, StepOutput(self._format, files, schema))

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        if self._objects is not None:
            self._objects.abort(context, payloads)
            return
        known = self._known(context)
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
            return
        remove_leftovers(self._root, context, committed)
        with sink_errors("cannot write to", self._root):
            begin_record(self._root, context.job, committed, before=context.snapshot)
