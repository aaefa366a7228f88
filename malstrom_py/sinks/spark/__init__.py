"""``Spark``: a transactional sink whose output Spark reads, or writes itself: Parquet folders, tables, other formats.

Writers stage Parquet files, as those of `sinks.Files` do, in types that Spark knows (`types`, `encoding`,
`given_columns`). The commit brings all to one schema (`unifying`), writes down what it is about to do (`publication`),
and does it: in the file system (`folders`, `swapping`), or through Spark (`through_spark`, `tables`, `new_tables`).
What is to be known from snapshot to snapshot stands in `over_snapshots`.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from malstrom_py.errors import PlanError, SinkError
from malstrom_py.local_files import local_path
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.sinks.files.partitions import checked_columns
from malstrom_py.sinks.files.publishing import StagedFile, discard, hold, staged_files
from malstrom_py.sinks.files.staging import Staging, remove_leftovers, sink_errors
from malstrom_py.sinks.files.writer import FilesWriter, RollingFiles
from malstrom_py.sinks.output_record import Target, begin_record
from malstrom_py.sinks.spark.encoding import SparkEncoder, SparkWriter
from malstrom_py.sinks.spark.folders import OutcomeUnknown, ParquetFolder, remove_work
from malstrom_py.sinks.spark.publication import (
    Intent,
    Publication,
    PublicationLog,
    folder_of,
    is_begun,
    locked_publication,
    publications,
    settle_pending,
)
from malstrom_py.sinks.spark.schema import given_schema
from malstrom_py.sinks.spark.through_spark import ThroughSpark, check_staged
from malstrom_py.spark.session import default_staging_folder, make_default_staging
from malstrom_py.worker_context import WorkerInfo

if TYPE_CHECKING:
    import pyarrow as pa

_MODES: Final = ("append", "overwrite", "error")
_FILE_BYTES_MAX: Final = 256 << 20


class Spark:
    """Writes what Spark is to read: Parquet into a folder, a table, another format, or what a function makes of it.

    ``path``: a folder, or ``file://…``, that all workers (and Spark) have. ``table``: the name of a table of Spark.
    ``foreach_snapshot``: a function in place of both, called with a DataFrame of all rows and the id of the commit.
    ``format``: "parquet", or any that Spark writes. ``mode``: "append", "overwrite", or "error" if something is there
    already. ``partition_by``: columns that name folders, or by which Spark partitions a table. ``options``: for Spark's
    writer. ``schema``: a ``pyarrow.Schema`` or a ``StructType``; without one, columns are those of the first batch.
    ``session``: the session to publish with, else that of the program, else one of its own.
    ``staging``: where rows wait for the commit of a table or a function, a folder that all workers and Spark have; by
    default one in the temporary directory of this machine.

    Rows become columns as in `sinks.Files`, in types of Spark; a type that it lacks (time, timedelta) is a SinkError.
    A column keeps its type: only one of None takes another later, and ints may go into floats. Workers that differ (one
    has had ints alone, another floats) are told at the commit, and nothing is published: give ``schema``. So is a
    target of another schema, at the start where it is known.

    What is promised, when the job or the machine dies at any point:

    - a Parquet ``path``: exactly once. Needs no Spark. With "append", files named ``<job>-<step>-<commit>-<number>``
      are renamed into place one by one, and a reader may see some before the others. With "overwrite" and "error" the
      folder is filled beside its place, in the folder above, and swapped in by two renames: for a moment there is none,
      and all that it held goes, also what others stage there.
    - ``foreach_snapshot``: exactly once where the function stores the id in the same transaction as the rows, and does
      nothing if it is there already; else at least once. What it raises means that it has stored nothing.
    - a ``table``, or another format: at least once with "append": it is published again if all dies between Spark's
      commit and ours. With "overwrite" that changes nothing. With "error" it is exactly once: a table is made with a
      property ``malstrom.commit``, by which it is known again, and Spark fills a folder beside, which is swapped in.
      Neither is touched if somebody else made it meanwhile.

    With snapshots "append" and ``foreach_snapshot`` publish at each, and the promises are those above for each. What
    replaces a target, "overwrite" and "error", needs a job that ends: rows stay staged over the snapshots, and are
    published at the last commit, all at once. A column of None only is one of str from the first snapshot on: give a
    ``schema`` if it may get another type. Give a ``staging`` that outlives this machine's temporary directory.

    What is to be published is written to ``_staging/<job>/<commit>.<step>/commit.json`` before. A publication that was
    interrupted is finished by the next start of the job, before it begins. One that is refused, is taken back.
    Tables, other formats and functions are published in the program that starts the job, which must live until then.
    A ``path`` gets a record of the job's output in ``_malstrom``, as that of `sinks.Files` does. No rows make an empty
    folder or, with a ``schema``, an empty table; ``foreach_snapshot`` is then called with a ``schema`` only.

    PlanError: arguments that do not go together. SinkError: a folder cannot be written, or Spark refuses to.
    SparkError, as the cause of a SinkError: Spark cannot be started, or has gone away.

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
            raise PlanError(f"sinks.Spark: mode is one of {', '.join(_MODES)}, got {mode!r}")
        _check_text(table=table, format=format)
        by = checked_columns(partition_by, "sinks.Spark")
        written = _checked_options(options)
        given = None if schema is None else given_schema(schema)
        if given is not None and (missing := [name for name in by if name not in given.names]):
            raise PlanError(f"sinks.Spark: schema lacks the partition columns {', '.join(map(repr, missing))}")
        folder = None if path is None else local_path(path, "sinks.Spark")
        if foreach_snapshot is not None:
            _check_function(foreach_snapshot, alone=format == "parquet" and mode == "append" and not by and not written)
        if folder is not None and staging is not None:
            raise PlanError("sinks.Spark: rows for a path are staged there, so it takes no staging=")
        elsewhere = default_staging_folder() if staging is None else local_path(staging, "sinks.Spark(staging=)")
        self._stages_in_own = folder is None and staging is None
        self._target: ParquetFolder | ThroughSpark
        if folder is not None and format == "parquet":
            if written:
                raise PlanError("sinks.Spark: options are for Spark's writer, and Parquet at a path is written without")
            self._target = ParquetFolder(folder, mode, by, given)
        else:
            self._target = ThroughSpark(
                folder, table, format, mode, by, written, given, foreach_snapshot, session, elsewhere
            )
        self._given = given

    def __repr__(self) -> str:
        told = (f"{name}={value!r}" for name, value in self._target.described.items() if value not in (None, [], {}))
        return f"Spark({', '.join(told)})"

    @property
    def target(self) -> Target | None:
        """What it writes to; None for a function."""
        place = self._target.path or (self._target.table if isinstance(self._target, ThroughSpark) else None)
        return None if place is None else Target(place, replaces=self._target.mode != "append")

    @property
    def commits_in_driver(self) -> bool:
        """Whether Spark is needed to publish: that is done in the program that started the job."""
        return isinstance(self._target, ThroughSpark)

    def open(self, worker: WorkerInfo) -> SparkWriter:
        staging = Staging(self._root, worker.job, worker.step)
        files = RollingFiles(staging, "parquet", file_bytes_max=_FILE_BYTES_MAX)
        encoder = SparkEncoder(files, self._target.encoded_by, self._given)
        return SparkWriter(FilesWriter(str(self._root), files, encoder, file_bytes_max=_FILE_BYTES_MAX), encoder)

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        memory, replaces = PublicationLog(self._root, context), self._target.mode != "append"
        if self._is_done(memory, context, payloads):
            if context.final:
                memory.shown()
            return
        if replaces and not context.final:
            check_staged(staged_files(self._root, context, payloads))
            memory.wait(context.snapshot, payloads)
            return
        if replaces:
            waiting = memory.waiting()
            waiting[context.snapshot] = list(payloads)
            payloads = [payload for snapshot in sorted(waiting) for payload in waiting[snapshot]]
        staged = staged_files(self._root, context, payloads)
        with locked_publication(self._root, context) as publication:
            intent = publication.intent()
            if intent is None:
                try:
                    schema = self._target.prepare(staged, payloads)
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
                    f"{error}: nobody knows what of it is visible. The next start of this job finishes it, as "
                    f"{publication.path} says"
                ) from error
            except Exception:
                publication.withdraw()
                raise
        with contextlib.suppress(SinkError):  # Nobody looks at it any more.
            memory.shown()

    def _is_done(self, memory: PublicationLog, context: CommitContext, payloads: Sequence[bytes]) -> bool:
        staged = staged_files(self._root, context, payloads)
        return context.snapshot in memory.noted() or self._target.is_done(context, staged)

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        if is_begun(self._root, context):
            return  # It may be visible in part: the next start finishes it.
        with sink_errors("cannot remove uncommitted files in", self._root):
            remove_work(folder_of(self._root, context))
        discard(self._root, staged_files(self._root, context, payloads))

    def hold(self, context: CommitContext, payloads: Sequence[bytes]) -> Callable[[], None]:
        """See `TransactionalSink`."""
        return hold(staged_files(self._root, context, payloads))

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        self._target.start()
        if self._stages_in_own:
            make_default_staging(self._root, SinkError)
        memory = PublicationLog(self._root, context)
        keep: list[str] = list(committed)
        for snapshot, publication in publications(self._root, context):
            if publication is None:
                keep.append(snapshot)
            elif (intent := publication.intent()) is None:
                publication.clear()
            else:
                self._finish(publication, intent, memory)
        memory.recover(committed)
        remove_leftovers(self._root, context, [*keep, *memory.waiting()])
        if self.target is not None:
            settle_pending(self.target)
        # What is put in place of a folder brings a record along.
        if self._target.path is not None and (self._target.mode == "append" or not committed):
            with sink_errors("cannot write to", self._target.path):
                begin_record(self._target.path, context.job, committed)
        # What the job itself has put there, at its last commit, is not in its way.
        ours = (replace(context, snapshot=snapshot) for snapshot in committed)
        if self._target.mode == "append" or not any(self._is_done(memory, one, []) for one in ours):
            self._target.check()

    def _finish(self, publication: Publication, intent: Intent, memory: PublicationLog) -> None:
        """Finish what an earlier run of the job was about to publish."""
        if dict(intent.target) != dict(self._target.described):
            raise SinkError(
                f"an earlier run was publishing to {dict(intent.target)}, and was interrupted: start the job once with "
                f"that, which finishes it. {_give_up(publication)}"
            )
        context = intent.context
        if self._is_done(memory, context, intent.given):
            publication.end()
            return
        try:
            staged = staged_files(self._root, context, intent.given)
            self._publish(publication, context, staged, _schema(intent), again=True)
        except (SinkError, OutcomeUnknown) as error:
            raise SinkError(
                f"what an earlier run was publishing, and which was interrupted, cannot be finished: {error}. See to "
                f"that, and start again. {_give_up(publication)}"
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
                PublicationLog(self._root, context).note(context.snapshot)
            publication.end()
        except SinkError as error:
            raise OutcomeUnknown(f"all is visible, but that could not be noted: {error}") from error
        with contextlib.suppress(SinkError):  # The next start clears it.
            discard(self._root, staged)

    def _intent(self, context: CommitContext, payloads: Sequence[bytes], schema: pa.Schema | None) -> Intent:
        return Intent(
            job=context.job,
            step=context.step,
            snapshot=context.snapshot,
            incarnation=context.incarnation,
            result=context.result,
            target=self._target.described,
            final=context.final,
            payloads=[payload.decode() for payload in payloads],
            schema=None if schema is None else base64.b64encode(schema.serialize().to_pybytes()).decode(),
        )

    @property
    def _root(self) -> Path:
        return self._target.staging


def _give_up(publication: Publication) -> str:
    return (
        f"Or remove {publication.path}: then the next start gives up what that run wrote, which is not visible yet or "
        f"in part, and puts back what a target held that was being overwritten"
    )


def _schema(intent: Intent) -> pa.Schema | None:
    if intent.schema is None:
        return None
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(intent.schema)))


def _check_text(**texts: object) -> None:
    for name, text in texts.items():
        if text is not None and (not isinstance(text, str) or not text):
            raise PlanError(f"sinks.Spark: {name} is a text, got {text!r}")


def _checked_options(options: Mapping[str, object] | None) -> dict[str, str]:
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise PlanError("sinks.Spark: options maps names to values, as for Spark's writer")
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


def _check_function(function: object, *, alone: bool) -> None:
    if not callable(function):
        raise PlanError("sinks.Spark: foreach_snapshot is a function of a DataFrame and an id")
    if not alone:
        raise PlanError(
            "sinks.Spark: with foreach_snapshot the function decides about format, mode, partition_by and options"
        )
