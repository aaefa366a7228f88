"""``Spark``: a transactional sink for data that Spark reads: Parquet folders, tables, other formats, or a function.

Writers stage Parquet files as `sinks.Files` does, in Spark's types (`schema`). A commit notes its intent (`journal`),
and publishes: by renames (`targets`) or through Spark (`through_spark`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from malstrom_py.errors import PlanError, SinkError, SparkError
from malstrom_py.local_files import local_path, locked
from malstrom_py.sinks.base import CommitContext, SnapshotId, Target, has_no_results
from malstrom_py.sinks.files.partitions import checked_columns
from malstrom_py.sinks.files.schemas import packed
from malstrom_py.sinks.files.target_columns import TargetColumns, length_limits, required_places
from malstrom_py.sinks.spark.journal import Intent, Journal
from malstrom_py.sinks.spark.schema import SparkEncoder, given_schema
from malstrom_py.sinks.spark.targets import FolderTarget, SparkCommitter, SparkTarget
from malstrom_py.sinks.spark.through_spark import PARTITIONS, ThroughSpark, check_staged
from malstrom_py.sinks.staged import StagedSink
from malstrom_py.sinks.staged.folder import FolderPlace
from malstrom_py.sinks.staged.payloads import StagedFile, pack, unpack
from malstrom_py.sinks.staged.problems import sink_errors
from malstrom_py.sinks.staged.writing import RollingFiles, StagedWriter
from malstrom_py.spark.names import check_table_name
from malstrom_py.spark.session import default_staging_folder, make_default_staging
from malstrom_py.worker_context import WorkerInfo

if TYPE_CHECKING:
    import pyarrow as pa

_MODES: Final = ("append", "overwrite", PARTITIONS, "error")
_FILE_BYTES_MAX: Final = 256 << 20


class Spark(StagedSink):
    """Writes data for Spark: Parquet files in a folder, a Spark table, another format, or calls of a function.

    The target is one of ``path`` (a folder, or ``file://…``, that all workers and Spark share), ``table``, and
    ``foreach_snapshot`` (a function that is called with a DataFrame of all rows and the id of the commit). ``format``:
    "parquet", or any that Spark writes. ``mode``: "append", "overwrite", "overwrite-partitions" (only the partitions
    that get rows), or "error" (fail if the target exists and is not empty). ``partition_by``: columns that name
    folders, or by which Spark partitions a table. ``options``: for Spark's writer. ``schema``: a ``pyarrow.Schema`` or
    a ``StructType``; by default the columns of the table that is appended to, else those of the first batch.
    ``session``: by default the program's, else a new one. ``staging``: a folder that all workers and Spark share, where
    rows for a table or a function wait for the commit; by default a temporary one of this machine.

    Rows become columns as in `sinks.Files`, in Spark's types; time and timedelta are a SinkError. A column keeps its
    type, except that a column of None takes any type later, and a float column takes ints. If workers, or the target,
    have other types, the commit fails and publishes nothing: give ``schema``.

    A Parquet ``path`` with "append" or "error" is published exactly once, without Spark, file by file. All else is
    published by Spark, or the function, in the program that starts the job: at least once with "append", and exactly
    once with other modes, and for a function that stores the id in the transaction of the rows. Other modes than
    "append" publish at the end of the job. An interrupted publication is finished by the next start of the job, and one
    that fails with an error is undone. See ``docs/spark.md``.

    PlanError: arguments that exclude each other. SinkError: a folder cannot be written, or Spark refuses.
    SparkError, as the cause of a SinkError: Spark cannot be started, or the connection is lost.

    >>> import tempfile
    >>> import malstrom_py as mp
    >>> from malstrom_py import sinks, sources
    >>> folder = tempfile.mkdtemp()
    >>> job = mp.Job("docs")
    >>> delays = job.source("delays", sources.Memory([{"carrier": "UA", "delay": 2}]))
    >>> delays.sink("out", sinks.Spark(path=folder, partition_by="carrier"))
    >>> _ = mp.run(job)
    >>> sorted(os.listdir(folder))
    ['_malstrom', 'carrier=UA']
    """

    takes_columns = True
    notes_nothing = True
    publishes_together = True

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        table: str | None = None,
        format: str = "parquet",
        mode: Literal["append", "overwrite", "overwrite-partitions", "error"] = "append",
        partition_by: str | Sequence[str] | None = None,
        options: Mapping[str, object] | None = None,
        schema: pa.Schema | Any = None,
        foreach_snapshot: Callable[[Any, str], object] | None = None,
        session: Any = None,
        staging: str | os.PathLike[str] | None = None,
    ) -> None:
        if sum(one is not None for one in (path, table, foreach_snapshot)) != 1:
            raise PlanError("sinks.Spark takes one of path=, table= and foreach_snapshot=")
        if mode not in _MODES:
            raise PlanError(f"sinks.Spark: mode must be one of {', '.join(_MODES)}, got {mode!r}")
        _check_text(table=table, format=format)
        if table is not None:
            check_table_name(table, "sinks.Spark")
        by = _checked_partitions(partition_by, needs_some=mode == PARTITIONS and table is None)
        written = _checked_options(options)
        given = None if schema is None else given_schema(schema)
        if given is not None and (missing := [name for name in by if name not in given.names]):
            raise PlanError(f"sinks.Spark: schema lacks the partition columns {', '.join(map(repr, missing))}")
        folder = None if path is None else local_path(path, "sinks.Spark")
        if foreach_snapshot is not None:
            _check_function(foreach_snapshot, alone=format == "parquet" and mode == "append" and not by and not written)
        if folder is not None and staging is not None:
            raise PlanError("sinks.Spark: rows for a path are staged in that path: leave out staging=")
        elsewhere = default_staging_folder() if staging is None else local_path(staging, "sinks.Spark(staging=)")
        self._stages_in_own = folder is None and staging is None
        if folder is not None:
            elsewhere = folder if mode == "append" else folder.parent
        self._target: SparkTarget
        where = (folder, elsewhere, format, mode, by, given)
        if folder is not None and format == "parquet" and mode in ("append", "error"):
            if written:
                raise PlanError(
                    "sinks.Spark: options are for Spark's writer, which writes Parquet at a path only with modes "
                    "'overwrite' and 'overwrite-partitions'"
                )
            self._target = FolderTarget(*where)
        else:
            self._target = ThroughSpark(*where, table, written, foreach_snapshot, session)
        self._given = (
            None if given is None else TargetColumns(given, required_places(schema), lengths=length_limits(schema))
        )
        self._of_table: TargetColumns | None = None
        self.commits_in_driver = isinstance(self._target, ThroughSpark)
        place = folder or table
        self.target = None if place is None else Target(place, replaces=mode != "append")

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy for a worker in another process, which has no Spark to ask for the table."""
        if self._of_table is None:
            with contextlib.suppress(SinkError, SparkError):  # `recover` raises it
                self._of_table = self._target.columns_of_table(only_existing=True)
        return self.__dict__

    def __repr__(self) -> str:
        return f"Spark({_readable(self._target.description)})"

    def open(self, worker: WorkerInfo) -> StagedWriter:
        place = FolderPlace(self._target.staging)
        files = self._files(worker.job, worker.step)
        return StagedWriter(
            place.__str__, files, SparkEncoder(files, self._target.writer_partition_by, self._columns())
        )

    def takes_flat(self, worker: WorkerInfo) -> bool:
        """Return whether results of windows become flat columns: not where the schema, or the target, has others."""
        columns = self._columns()
        return has_no_results(self._target.names_present() if columns is None else columns.schema.names)

    def committer(self, context: CommitContext) -> SparkCommitter:
        return self._target.committer(context)

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        journal = Journal(self._target.staging, context)
        if self._target.mode != "append":
            if not context.final:
                check_staged(self._target.staging, unpack(context, payloads))
                journal.wait(payloads)
                return
            waiting = journal.waiting() | {context.snapshot: list(payloads)}
            payloads = [payload for _, some in sorted(waiting.items()) for payload in some]
        with journal.locked():
            intent = journal.intent()
            self._publish(context, payloads if intent is None else intent.payloads)
        with contextlib.suppress(SinkError):  # What has waited is not used again.
            journal.clear_waiting()

    def _publish(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        target, journal = self._target, Journal(self._target.staging, context)
        files = unpack(context, payloads, together=True)
        if not files and isinstance(target, FolderTarget) and target.needs_columns():
            payloads = [self._without_rows(context)]
        super().commit(context, payloads)
        with contextlib.suppress(SinkError):  # The next start finds that all is done.
            journal.end()

    def _without_rows(self, context: CommitContext) -> bytes:
        """Stage a file without rows that has all columns, also those of partitions; return its payload."""
        files, schema = self._files(context.job, context.step), self._target.given
        assert schema is not None
        try:
            with sink_errors("cannot write to", self._target.staging):
                files.parquet("", schema)
                files.finish_all()
                (name,) = files.pre_commit(context.snapshot)
        finally:
            files.discard()
        return pack([StagedFile(name, "", packed(schema))])

    def _files(self, job: str, step: str) -> RollingFiles:
        stage = FolderPlace(self._target.staging).stage(job, step)
        files = RollingFiles(lambda: stage, "parquet", file_bytes_max=_FILE_BYTES_MAX)
        files.open()
        return files

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        journal = Journal(self._target.staging, context)
        intent = journal.intent()
        if intent is None:
            super().abort(context, payloads)
            with sink_errors("cannot remove uncommitted files in", self._target.staging):
                journal.tidy()
        elif not self.commits_in_driver:  # else Spark may have published: the next start finishes the publication
            with journal.locked():
                self._take_back(intent)

    def _take_back(self, intent: Intent) -> None:
        super().abort(intent.context, intent.payloads)
        Journal(self._target.staging, intent.context).end()

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        self._target.start()
        if self._stages_in_own:
            make_default_staging(self._target.staging, SinkError)
        committer = self.committer(context)
        others = self._finish_interrupted(context)
        committer.journal.recover(committed)
        committer.place.clear(context, [*committed, *others, *committer.journal.waiting()])
        committer.begin(committed)
        self._of_table = self._target.columns_of_table(only_existing=False)

    def _finish_interrupted(self, context: CommitContext) -> list[str]:
        """Finish the commits that earlier starts have begun; return the snapshots that are left to others."""
        left: list[str] = []
        for snapshot in Journal(self._target.staging, context).snapshots():
            journal = Journal(self._target.staging, replace(context, snapshot=snapshot))
            with locked(journal.work) as is_free:
                if snapshot >= context.snapshot or not is_free:
                    left.append(snapshot)  # Another run publishes it, or a later start will.
                    continue
                if (intent := journal.intent()) is not None:
                    self._finish(journal, intent)
                journal.tidy()
        return left

    def _finish(self, journal: Journal, intent: Intent) -> None:
        how = f"Or remove {journal.path}: the next start then abandons the rows of that run that are not visible yet"
        if _given_in(intent.target) != _given_in(self._target.description):
            raise SinkError(
                f"an earlier run was interrupted while publishing to {_readable(intent.target)}: start the job once "
                f"with that target, which finishes it. {how}"
            )
        try:
            if intent.is_aborted:
                self._take_back(intent)
            else:
                self._publish(intent.context, intent.payloads)
        except SinkError as error:
            raise SinkError(
                f"the interrupted publication of an earlier run cannot be finished: {error}. Fix the cause, and start "
                f"again. {how}"
            ) from error

    def _columns(self) -> TargetColumns | None:
        """Return the columns into which rows are converted; None for those of the first batch."""
        if self._given is None or self._of_table is None:
            return self._given or self._of_table
        return replace(self._given, lengths={**self._of_table.lengths, **self._given.lengths})


def _readable(target: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in _given_in(target).items())


def _given_in(target: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in target.items() if value not in (None, [], {})}


def _check_text(**texts: object) -> None:
    for name, text in texts.items():
        if text is not None and (not isinstance(text, str) or not text):
            raise PlanError(f"sinks.Spark: {name} must be a str, got {text!r}")


def _checked_partitions(given: str | Sequence[str] | None, *, needs_some: bool) -> tuple[str, ...]:
    if needs_some and given is None:
        raise PlanError(f"sinks.Spark: mode {PARTITIONS!r} replaces partitions of a path: give partition_by=")
    return checked_columns(given, "sinks.Spark")


def _checked_options(options: Mapping[str, object] | None) -> dict[str, str]:
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise PlanError("sinks.Spark: options maps names to values, as for Spark's writer")
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


def _check_function(function: object, *, alone: bool) -> None:
    if not callable(function):
        raise PlanError("sinks.Spark: foreach_snapshot must be a function of a DataFrame and an id")
    if not alone:
        raise PlanError(
            "sinks.Spark: foreach_snapshot excludes format, mode, partition_by and options: the function decides them"
        )
