"""``Spark``: a transactional sink for data that Spark reads: Parquet folders, tables, other formats, or a function.

Writers stage Parquet files as `sinks.Files` does, in Spark's types (`encoding`). The commit converts all files to one
schema (`schema`), records its intent (`publication`), and publishes: in the file system (`folders`) or through Spark
(`through_spark`). `publication` also keeps the log of snapshots that are published or deferred.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from malstrom_py.errors import PlanError, SinkError, SparkError
from malstrom_py.local_files import local_path
from malstrom_py.sinks.base import BaseTransactionalSink, CommitContext, SnapshotId, Target, has_no_results
from malstrom_py.sinks.files.partitions import checked_columns
from malstrom_py.sinks.files.target_columns import TargetColumns, length_limits, required_places
from malstrom_py.sinks.output_record import begin_record
from malstrom_py.sinks.spark.encoding import SparkEncoder
from malstrom_py.sinks.spark.folders import OutcomeUnknown, ParquetFolder
from malstrom_py.sinks.spark.publication import (
    Intent,
    Publication,
    PublicationLog,
    check_pending,
    folder_of,
    is_begun,
    locked_publication,
    publications,
    remove_work,
)
from malstrom_py.sinks.spark.schema import given_schema
from malstrom_py.sinks.spark.through_spark import ThroughSpark, check_staged
from malstrom_py.sinks.staged.payloads import StagedFile, unpack
from malstrom_py.sinks.staged.problems import sink_errors
from malstrom_py.sinks.staged.writing import RollingFiles, StagedWriter
from malstrom_py.spark.names import check_table_name
from malstrom_py.spark.session import default_staging_folder, make_default_staging
from malstrom_py.worker_context import WorkerInfo

if TYPE_CHECKING:
    import pyarrow as pa

_MODES: Final = ("append", "overwrite", "error")
_FILE_BYTES_MAX: Final = 256 << 20


class Spark(BaseTransactionalSink):
    """Writes data for Spark: Parquet files in a folder, a Spark table, another format, or calls of a function.

    One of:

    - ``path``: a folder, or ``file://…``, that all workers (and Spark) share.
    - ``table``: the name of a Spark table.
    - ``foreach_snapshot``: a function that is called with a DataFrame of all rows and the id of the commit.

    Options:

    - ``format``: "parquet", or any format that Spark writes.
    - ``mode``: "append", "overwrite", or "error" (fail if the target exists and is not empty).
    - ``partition_by``: columns that name folders, or by which Spark partitions a table.
    - ``options``: for Spark's writer.
    - ``schema``: a ``pyarrow.Schema`` or a ``StructType``; None is refused where it is not nullable. By default the
      columns of the table that is appended to, else those of the first batch.
    - ``session``: the session to publish with; by default the program's, else a new one.
    - ``staging``: a folder that all workers and Spark share, where rows for a table or a function wait for the commit;
      by default a folder in the temporary directory of this machine.

    **Types.** Rows become columns as in `sinks.Files`, in Spark's types; a type that Spark lacks (time, timedelta) is a
    SinkError. A column keeps its type, except that a column of None takes any type later, and a float column takes
    ints. If workers have different types (one only ints, another floats), the commit fails and publishes nothing: give
    ``schema``. The same holds if the target has another schema; this is checked at the start if the schema is known.

    **Guarantees** after a failure of the job or the machine at any point:

    - A Parquet ``path`` with "append" or "error": exactly once, without Spark. Files named
      ``<job>-<step>-<commit>-<number>`` are renamed into the folder one by one, so a reader may see a part of a commit.
    - A ``path`` with "overwrite", in any format: Spark's own overwrite. It removes everything in the folder, including
      what other jobs stage there, then writes the rows. A reader finds an empty folder, or a part of the rows, until
      Spark has finished, and after a failure until the next start of the job, which overwrites the folder again. In
      the end the rows are there exactly once.
    - ``foreach_snapshot``: exactly once if the function stores the id in the same transaction as the rows, and does
      nothing if the id is already stored; otherwise at least once. If it raises, it must have stored nothing.
    - A ``table``, or another format: at least once with "append": the rows are published again after a failure between
      Spark's commit and the sink's own. With "overwrite", publishing again changes nothing. With "error": exactly once;
      the table property ``malstrom.commit`` identifies a table that the job has created, and a folder is written next
      to its place and renamed. What another program has created there in the meantime is never changed.

    **Snapshots.** "append" and ``foreach_snapshot`` publish at each snapshot, with the guarantees above. "overwrite"
    and "error" need a job that ends: rows stay staged, and the last commit publishes all of them. A column that holds
    only None becomes str at the first snapshot: give ``schema`` if it may get another type. Choose a ``staging`` folder
    that is not temporary.

    **Publication.** The intent is first written to ``_staging/<job>/<commit>.<step>/commit.json``. The next start of
    the job finishes an interrupted publication before anything else. A publication that fails with an error is undone.
    The program that starts the job publishes what Spark writes, and calls functions, so it must run until the end. A
    ``path`` gets an output record in ``_malstrom``, as with `sinks.Files`. Without rows, the result is an empty folder
    or, with a ``schema``, an empty table; ``foreach_snapshot`` is called only with a ``schema``.

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

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        table: str | None = None,
        format: str = "parquet",
        mode: Literal["append", "overwrite", "error"] = "append",
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
        by = checked_columns(partition_by, "sinks.Spark")
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
        self._target: ParquetFolder | ThroughSpark
        if folder is not None and format == "parquet" and mode != "overwrite":
            if written:
                raise PlanError(
                    "sinks.Spark: options are for Spark's writer, which writes Parquet at a path only with mode "
                    "'overwrite'"
                )
            self._target = ParquetFolder(folder, mode, by, given)
        else:
            self._target = ThroughSpark(
                folder, table, format, mode, by, written, given, foreach_snapshot, session, elsewhere
            )
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
                self._of_table = self._learned(only_existing=True)
        return self.__dict__

    def __repr__(self) -> str:
        return f"Spark({_readable(self._target.description)})"

    def open(self, worker: WorkerInfo) -> StagedWriter:
        place = self._target.place
        stage = place.stage(worker.job, worker.step)
        files = RollingFiles(lambda: stage, "parquet", file_bytes_max=_FILE_BYTES_MAX)
        files.open()
        encoder = SparkEncoder(files, self._target.writer_partition_by, self._columns())
        return StagedWriter(place.__str__, files, encoder)

    def takes_flat(self, worker: WorkerInfo) -> bool:
        """Return whether results of windows become flat columns: not where the schema, or the target, has others."""
        columns = self._columns()
        return has_no_results(self._target.names_there() if columns is None else columns.schema.names)

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        log, replaces = PublicationLog(self._root, context), self._target.mode != "append"
        if self._is_done(log, context, payloads):
            if context.final:
                log.clear_deferred()
            return
        if replaces and not context.final:
            check_staged(self._target.place, _staged(context, payloads))
            log.defer(context.snapshot, payloads)
            return
        if replaces:
            waiting = log.deferred()
            waiting[context.snapshot] = list(payloads)
            payloads = [payload for snapshot in sorted(waiting) for payload in waiting[snapshot]]
        staged = _staged(context, payloads)
        with locked_publication(self._root, context) as publication:
            intent = publication.intent()
            if intent is None:
                try:
                    schema = self._target.prepare(staged)
                except BaseException:
                    publication.withdraw()
                    raise
                publication.begin(self._intent(context, payloads, schema))
            else:
                schema = _schema(intent)
            try:
                self._publish(publication, context, staged, schema, again=intent is not None)
            except OutcomeUnknown as error:
                raise SinkError(
                    f"{error}: it is unknown which rows are visible. The next start of this job finishes the "
                    f"publication that is recorded in {publication.path}"
                ) from error
            except Exception:
                publication.withdraw()
                raise
        with contextlib.suppress(SinkError):  # The deferred payloads are not used again.
            log.clear_deferred()

    def _is_done(self, log: PublicationLog, context: CommitContext, payloads: Sequence[bytes]) -> bool:
        staged = _staged(context, payloads)
        return context.snapshot in log.published() or self._target.is_done(context, staged)

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        if is_begun(self._root, context):
            return  # A part may be visible: the next start finishes the publication.
        with sink_errors("cannot remove uncommitted files in", self._root):
            remove_work(folder_of(self._root, context))
        self._target.place.discard(_staged(context, payloads))

    def hold(self, context: CommitContext, payloads: Sequence[bytes]) -> Callable[[], None]:
        """Protect the staged files from other runs: see `TransactionalSink`."""
        return self._target.place.hold(_staged(context, payloads))

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        self._target.start()
        if self._stages_in_own:
            make_default_staging(self._root, SinkError)
        log = PublicationLog(self._root, context)
        keep: list[str] = list(committed)
        for snapshot, publication in publications(self._root, context):
            if publication is None or snapshot >= context.snapshot:
                keep.append(snapshot)  # Another run publishes it, or a later start will.
            elif (intent := publication.intent()) is None:
                publication.clear()
            else:
                self._finish(publication, intent, log)
        log.recover(context.snapshot, committed)
        self._target.place.clear(context, [*keep, *log.deferred()])
        if self.target is not None:
            check_pending(self.target)
        # Spark's overwrite removes the record, too, and a new folder contains its own.
        if self._target.path is not None and (self._target.mode == "append" or not committed):
            with sink_errors("cannot write to", self._target.path):
                begin_record(self._target.path, context.job, committed, before=context.snapshot)
        # A target that this job has published itself, at its last commit, passes.
        own = (replace(context, snapshot=snapshot) for snapshot in committed)
        if self._target.mode == "append" or not any(self._is_done(log, one, []) for one in own):
            self._target.check()
        self._of_table = self._learned()

    def _columns(self) -> TargetColumns | None:
        """Return the columns into which rows are converted; None for those of the first batch."""
        if self._given is None or self._of_table is None:
            return self._given or self._of_table
        return replace(self._given, lengths={**self._of_table.lengths, **self._given.lengths})

    def _learned(self, *, only_existing: bool = False) -> TargetColumns | None:
        """Return the columns of the table that is appended to; None if there is none.

        ``only_existing``: only if the program has a session.
        """
        if not isinstance(self._target, ThroughSpark):
            return None
        return self._target.columns_of_table(only_existing=only_existing)

    def _finish(self, publication: Publication, intent: Intent, log: PublicationLog) -> None:
        """Finish the interrupted publication of an earlier run of the job."""
        if _given_in(intent.target) != _given_in(self._target.description):
            raise SinkError(
                f"an earlier run was interrupted while publishing to {_readable(intent.target)}: start the job once "
                f"with that target, which finishes it. {_how_to_abandon(publication)}"
            )
        context = intent.context
        if self._is_done(log, context, intent.payload_bytes):
            publication.end()
            return
        try:
            staged = _staged(context, intent.payload_bytes)
            self._publish(publication, context, staged, _schema(intent), again=True)
        except (SinkError, OutcomeUnknown) as error:
            raise SinkError(
                f"the interrupted publication of an earlier run cannot be finished: {error}. Fix the cause, and start "
                f"again. {_how_to_abandon(publication)}"
            ) from error

    def _publish(
        self,
        publication: Publication,
        context: CommitContext,
        staged: Sequence[StagedFile],
        schema: pa.Schema | None,
        *,
        again: bool,
    ) -> None:
        self._target.publish(publication.folder, context, staged, schema, again=again)
        try:
            if isinstance(self._target, ThroughSpark) and not (context.final and self._target.path):
                PublicationLog(self._root, context).mark_published(context.snapshot)
            publication.end()
        except SinkError as error:
            raise OutcomeUnknown(f"all rows are visible, but that could not be recorded: {error}") from error
        with contextlib.suppress(SinkError):  # The next start clears it.
            self._target.place.discard(staged)

    def _intent(self, context: CommitContext, payloads: Sequence[bytes], schema: pa.Schema | None) -> Intent:
        return Intent(
            job=context.job,
            step=context.step,
            snapshot=context.snapshot,
            incarnation=context.incarnation,
            result=context.result,
            target=self._target.description,
            final=context.final,
            payloads=[payload.decode() for payload in payloads],
            schema=None if schema is None else base64.b64encode(schema.serialize().to_pybytes()).decode(),
        )

    @property
    def _root(self) -> Path:
        return self._target.staging


def _how_to_abandon(publication: Publication) -> str:
    return f"Or remove {publication.path}: the next start then abandons the rows of that run that are not visible yet"


def _readable(target: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in _given_in(target).items())


def _given_in(target: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in target.items() if value not in (None, [], {})}


def _staged(context: CommitContext, payloads: Sequence[bytes]) -> list[StagedFile]:
    return unpack(context, payloads, together=True)


def _schema(intent: Intent) -> pa.Schema | None:
    if intent.schema is None:
        return None
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(intent.schema)))


def _check_text(**texts: object) -> None:
    for name, text in texts.items():
        if text is not None and (not isinstance(text, str) or not text):
            raise PlanError(f"sinks.Spark: {name} must be a str, got {text!r}")


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
