"""``Files``: a transactional sink that writes files. Nothing is visible before its commit.

An encoder (`tables`, `json_lines`) encodes batches for each output folder (`partitions`). How they are staged and
published is in `sinks.staged`; `renaming` has the names of files, and records of commits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from malstrom_py.errors import PlanError
from malstrom_py.local_files import local_path
from malstrom_py.object_stores import checked_options, is_object_url
from malstrom_py.sinks.base import CommitContext, SnapshotId, Target, has_no_results
from malstrom_py.sinks.files.encoding import BatchConverter
from malstrom_py.sinks.files.given_columns import GivenColumns
from malstrom_py.sinks.files.json_lines import JsonEncoder
from malstrom_py.sinks.files.partitions import checked_columns
from malstrom_py.sinks.files.renaming import FolderRecords, ObjectRecords, RenameCommitter
from malstrom_py.sinks.files.schemas import Visible, given_schema
from malstrom_py.sinks.files.tables import CsvEncoder, ParquetEncoder
from malstrom_py.sinks.files.target_columns import TargetColumns, required_places
from malstrom_py.sinks.staged import StagedSink
from malstrom_py.sinks.staged.objects import FILE_BYTES_MAX, ObjectPlace
from malstrom_py.sinks.staged.writing import Encoder, RollingFiles, StagedWriter
from malstrom_py.validation import checked_whole
from malstrom_py.worker_context import WorkerInfo

if TYPE_CHECKING:
    import pyarrow as pa

_FORMATS: Final = ("csv", "json", "parquet")


class Files(StagedSink):
    """Writes files named ``<step>-<snapshot>-<number>.<format>`` into the folder ``uri``, exactly once.

    ``uri``: a path, ``file://…``, or a folder of an object store. ``format``: ``"parquet"``, ``"csv"`` or ``"json"``
    (an object per line). ``partition_by``: columns whose values name folders, ``<uri>/day=2013-01-01/…``, and are not
    written into the files. ``schema``: the columns of Parquet and csv, to which values are cast if they fit.
    ``docs/files.md`` has all other arguments and rules.

    Files appear complete and under their final names when the job commits: at each snapshot and at its end. Until
    then they are in ``_staging`` in that folder, which readers skip. The record ``_malstrom/<job>.json`` there has the
    counts of the run and the files of all its commits. Files of earlier runs stay.

    The items of a dict and the fields of a dataclass or namedtuple become columns; any other value becomes the column
    ``value``; the key of a keyed stream is the first column, unless values have a field ``key``. All Parquet files of
    the step have one schema: types may widen before the first commit, which decides.

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

    notes_nothing = True
    _notes_all = False
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
        checked_whole(file_bytes_max, "sinks.Files: file_bytes_max")
        # JSON is written row by row: it gets batches small enough to be converted to rows.
        self.takes_columns = format != "json"
        self._records: FolderRecords | ObjectRecords
        if isinstance(uri, str) and is_object_url(uri):
            if file_bytes_max > FILE_BYTES_MAX:
                raise PlanError(f"sinks.Files: file_bytes_max is at most {FILE_BYTES_MAX} in an object store")
            place = ObjectPlace(uri, checked_options(store_options, "sinks.Files"))
            place.bucket.require_extra()
            self._records = ObjectRecords(place)
        elif store_options is not None:
            raise PlanError(f"sinks.Files: store_options are for object stores, and {os.fspath(uri)!r} is a folder")
        else:
            self._records = FolderRecords(local_path(uri, "sinks.Files"), notes_all=self._notes_all)
        into = self._records.place
        self.target = Target(into.url if isinstance(into, ObjectPlace) else into.root, replaces=False)
        self._format = format
        self._partition_by = checked_columns(partition_by)
        self._file_bytes_max = file_bytes_max
        self._given = None if schema is None else self._target_columns(schema)

    def __repr__(self) -> str:
        by = f", partition_by={list(self._partition_by)!r}" if self._partition_by else ""
        return f"Files({str(self._records.place)!r}, format={self._format!r}{by})"

    def _target_columns(self, schema: pa.Schema) -> TargetColumns:
        if self._format == "json":
            raise PlanError("sinks.Files: a line of json has its own types: leave out schema=, or use parquet or csv")
        given = given_schema(schema, "sinks.Files")
        if missing := [name for name in self._partition_by if name not in given.names]:
            raise PlanError(f"sinks.Files: schema lacks the partition columns {', '.join(map(repr, missing))}")
        return TargetColumns(given, required_places(schema))

    def open(self, worker: WorkerInfo) -> StagedWriter:
        place = self._records.place
        stage = place.stage(worker.job, worker.step)
        files = RollingFiles(lambda: stage, self._format, file_bytes_max=self._file_bytes_max)
        files.open()
        encoder = self._encoder(files, partial(self._records.visible, worker.job, worker.step))
        return StagedWriter(place.__str__, files, encoder)

    def takes_flat(self, worker: WorkerInfo) -> bool:
        """Return whether results of windows become flat columns: not where the schema, or files, have others."""
        if self._given is not None:
            return has_no_results(self._given.schema.names)
        visible = self._records.visible(worker.job, worker.step) if self._format == "parquet" else None
        return has_no_results(None if visible is None else visible.schema.names)

    def _encoder(self, files: RollingFiles, find_visible: Callable[[], Visible | None]) -> Encoder[Any]:
        if self._format == "json":
            return JsonEncoder(files, self._partition_by)
        rows = None if self._given is None else GivenColumns(self._given)
        if self._format == "csv":
            return CsvEncoder(files, BatchConverter(self._partition_by, rows))
        if rows is not None:
            return ParquetEncoder(files, self._partition_by, rows)
        return ParquetEncoder(files, self._partition_by, find_visible=find_visible)

    def committer(self, context: CommitContext) -> RenameCommitter:
        return RenameCommitter(self._records, context, self._format, self._schema_in_files())

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        super().recover(context, committed)
        self._check_given(context)

    def _schema_in_files(self) -> pa.Schema | None:
        """Return the columns of ``schema=`` that files have."""
        import pyarrow as pa

        if self._given is None:
            return None
        return pa.schema([field for field in self._given.schema if field.name not in self._partition_by])

    def _check_given(self, context: CommitContext) -> None:
        """Raise `SinkError` if the files that are visible have another schema than ``schema=``."""
        given = self._schema_in_files()
        if given is None or self._format != "parquet":
            return
        visible = self._records.visible(context.job, context.step)
        if visible is None or given.equals(visible.schema):
            return
        for field in given:
            index = visible.schema.get_field_index(field.name)
            there = "no such column" if index < 0 else visible.schema.field(index).type
            if there != field.type:
                raise visible.error(f"schema= says {field.type} for column {field.name!r}")
        raise visible.error("schema= lacks columns, or has another order")
