"""Publication through Spark: tables, formats that Spark writes, and functions that get a DataFrame.

Rules:
- With mode "error" a table is created with a property that identifies its commit. A table without that property belongs
  to another program and is never changed.
- Rows are compared with the schema of an existing table before they are written.
- If Spark returns an error, no new rows are visible. If Spark does not answer, the publication is repeated.
- An overwrite is Spark's own: it removes what is in the folder, or in the partitions that get rows, then writes.
  Publishing again has the same result.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import SinkError, SparkError
from malstrom_py.errors.text import public_text
from malstrom_py.local_files import sync
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.files.schemas import bring_to, in_files, without_nulls
from malstrom_py.sinks.files.target_columns import TargetColumns, length_limits, required_places
from malstrom_py.sinks.output_record import BY_SPARK, StepOutput, record_output
from malstrom_py.sinks.spark.schema import schema_of_staged, without
from malstrom_py.sinks.spark.targets import SparkCommitter, SparkTarget
from malstrom_py.sinks.staged.folder import FolderPlace
from malstrom_py.sinks.staged.payloads import StagedFile
from malstrom_py.sinks.staged.problems import sink_errors
from malstrom_py.spark.failures import describe_failure, spark_errors
from malstrom_py.spark.names import quoted
from malstrom_py.spark.session import existing_session, spark_session
from malstrom_py.spark.types import arrow_schema, spark_schema

if TYPE_CHECKING:
    import pyarrow as pa

PROPERTY: Final = "malstrom.commit"

PARTITIONS: Final = "overwrite-partitions"
"""The mode that replaces only the partitions that get rows."""

_MICROSECONDS: Final = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""By default Spark writes timestamps in 96 bits, which readers take for timestamps without a zone."""


def check_folder(target: Path, *, replace: bool) -> None:
    """Raise `SinkError` if ``target`` cannot be replaced, or is not empty although ``replace`` is false."""
    if target.is_symlink():
        raise SinkError(f"{target} is a symbolic link, which cannot be replaced: give the folder that it points to")
    if not replace and target.is_dir() and any(target.iterdir()):
        raise SinkError(f"{target} is not empty, and mode is 'error': remove it, or use another mode")
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(target)
    if os.path.ismount(target):
        raise SinkError(f"{target} is a mount point, which cannot be replaced: give a folder in it")


def is_created(session: Any, frame: Any, table: str, context: CommitContext) -> bool:
    """Return whether ``context`` has created ``table`` from ``frame``; drop a table that was created but not filled.

    Raises:
        SinkError: the table exists, and ``context`` has not created it.
    """
    if not session.catalog.tableExists(table):
        return False
    found = {row.key: row.value for row in session.sql(f"show tblproperties {table}").collect()}
    if found.get(PROPERTY) == _named(context):
        if frame.isEmpty() or not session.table(table).isEmpty():
            return True
        session.sql(f"drop table {table}")
        return False
    raise SinkError(
        f"another program has created table {table!r} (its property {PROPERTY!r} is not {_named(context)!r}), and mode "
        f"'error' does not change it: rename or drop it, so that this job can create it"
    )


def _named(context: CommitContext) -> str:
    return f"{context.job}/{context.step}/{context.snapshot}"


_WIDER: Final = {
    "tinyint": ("smallint", "int", "bigint", "float", "double"),
    "smallint": ("int", "bigint", "float", "double"),
    "int": ("bigint", "double"),
    "bigint": (),
    "float": ("double",),
}


def check_table(session: Any, table: str, mode: str, partition_by: Sequence[str], schema: pa.Schema | None) -> None:
    """Raise `SinkError` if ``table`` must not exist but does, or rows of ``schema`` (None: unknown) do not fit it."""
    if mode == "overwrite" or not session.catalog.tableExists(table):
        return
    if mode == "error":
        raise SinkError(f"table {table!r} exists already, and mode is 'error': drop it, or use another mode")
    if partition_by or mode == PARTITIONS:
        found = [column.name for column in session.catalog.listColumns(table) if column.isPartition]
        if not found and mode == PARTITIONS:
            raise SinkError(f"table {table!r} has no partitions, which mode {mode!r} replaces: use mode 'overwrite'")
        if partition_by and found != list(partition_by):
            raise SinkError(
                f"table {table!r} is partitioned by {found}, and partition_by is {list(partition_by)}: give the same, "
                f"or leave it out"
            )
    if schema is not None:
        _targets(session, table, schema)


def conformed(session: Any, frame: Any, table: str, schema: pa.Schema) -> Any:
    """Cast ``frame``, which has rows of ``schema``, to the columns and types of ``table``, in their order."""
    from pyspark.sql.functions import col

    return frame.select(
        *(col(quoted(name)).cast(field.dataType).alias(field.name) for name, field in _targets(session, table, schema))
    )


def _targets(session: Any, table: str, schema: pa.Schema) -> list[tuple[str, Any]]:
    """Pair the columns of ``schema`` with the fields of ``table``, in the order of the table."""
    fields = {field.name.lower(): field for field in session.table(table).schema}
    mine = {field.name.lower(): field for field in schema}
    wrong = [f"{field.name!r} (only in the table)" for name, field in fields.items() if name not in mine]
    wrong += [f"{field.name!r} (not in the table)" for name, field in mine.items() if name not in fields]
    for name, field in fields.items():
        if name in mine and (misfit := _misfit(mine[name], field.dataType.simpleString())):
            wrong.append(f"{field.name!r} ({misfit})")
    if wrong:
        raise SinkError(
            f"the columns do not fit table {table!r}: {', '.join(wrong)}. Convert them in a map step, or write another "
            f"table"
        )
    return [(mine[name].name, field) for name, field in fields.items()]


def _misfit(field: pa.Field, in_table: str) -> str:
    import pyarrow as pa

    if pa.types.is_null(field.type):
        return ""
    (found,) = spark_schema(pa.schema([(field.name, without_nulls(field.type))]))
    kind = found.dataType.simpleString()
    if kind == in_table or in_table in _WIDER.get(kind, ()):
        return ""
    return f"{in_table} in the table, {kind} now"


@dataclass
class ThroughSpark(SparkTarget):
    """Publishes to one of ``path``, ``table`` and ``function`` with ``session``, in the program that starts the job."""

    table: str | None
    options: Mapping[str, str]
    function: Callable[[Any, str], object] | None
    given_session: Any
    program_session: Any = None
    """The program's session at the start of the run, if none is given: the committing thread may have another."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy to another process without session and function: the copy does not publish."""
        where = (self.path, self.staging, self.format, self.mode, self.partition_by, self.given)
        return type(self), (*where, self.table, self.options, None, None)

    @property
    def description(self) -> Mapping[str, Any]:
        if self.path is None and self.table is None:
            return {"foreach_snapshot": True}
        described = {"path": None, "table": self.table} | dict(super().description)
        return described | {"options": dict(self.options)}

    @property
    def writer_partition_by(self) -> tuple[str, ...]:
        return ()  # Spark partitions

    def start(self) -> None:
        """Find the session of this run, before anything else. A later run may have another one."""
        self.program_session = existing_session() if self.given_session is None else None

    @property
    def session(self) -> Any:
        """The session to publish with; None for a new one."""
        return self.program_session if self.given_session is None else self.given_session

    def columns_of_table(self, *, only_existing: bool) -> TargetColumns | None:
        if self.table is None or self.mode not in ("append", PARTITIONS):
            return None
        if only_existing and self.given_session is None and existing_session() is None:
            return None
        with spark_session(self.session) as session, spark_errors(f"table {self.table!r}", SinkError):
            if not session.catalog.tableExists(self.table):
                return None
            fields = session.table(self.table).schema
            schema, required = arrow_schema(fields, error=SinkError), required_places(fields)
            return TargetColumns(schema, required, self.table, length_limits(fields))

    def check(self) -> None:
        self.check_for(self.given)

    def check_for(self, schema: pa.Schema | None) -> None:
        """Raise `SinkError` if the target cannot take rows of ``schema``."""
        if self.path is not None and self.mode != "append":
            check_folder(self.path, replace=self.mode in ("overwrite", PARTITIONS))
        if self.table is not None:
            with spark_session(self.session) as session, spark_errors(f"table {self.table!r}", SinkError):
                check_table(session, self.table, self.mode, self.partition_by, schema)

    def writer(self, frame: Any) -> Any:
        """Return Spark's writer of ``frame``, with all options."""
        options = self.options
        if self.path is not None and self.format == "parquet":
            options = _MICROSECONDS | dict(options)
        mode = "overwrite" if self.mode == PARTITIONS else self.mode
        writer = frame.write.format(self.format).mode(mode).options(**options)
        return writer.partitionBy(*self.partition_by) if self.partition_by else writer

    def output(self, files: list[str], schema: pa.Schema | None) -> StepOutput:
        """Return what the output record has of ``files``. A prefix marks those whose reading depends on options."""
        form = self.format if self.format == "parquet" else f"{BY_SPARK}{self.format}"
        if schema is None:
            return StepOutput(form, files)
        return StepOutput(form, files, in_files(without(schema, self.partition_by)).serialize().to_pybytes())

    def committer(self, context: CommitContext) -> ThroughSparkCommitter:
        return ThroughSparkCommitter(self, context)


class ThroughSparkCommitter(SparkCommitter):
    """One commit of rows that Spark writes, or a function."""

    takes_back = False

    def __init__(self, target: ThroughSpark, context: CommitContext) -> None:
        super().__init__(target, context)
        self._to = target
        self._is_repeated = False

    def moves(self, files: Sequence[StagedFile]) -> list[tuple[StagedFile, str]]:
        return []  # Spark writes other files

    def is_done(self, files: Sequence[StagedFile]) -> bool:
        return self.has_published([self.context.snapshot])

    def agreed(self, files: Sequence[StagedFile], *, is_begun: bool) -> pa.Schema | None:
        self._is_repeated, schema = is_begun, schema_of_staged(files)
        check_staged(self._to.staging, files)
        if schema is not None:
            bring_to(self.place, schema, files)
        if not is_begun:
            self._to.check_for(schema)
        return schema

    def note(self, files: Sequence[StagedFile], paths: Sequence[str]) -> None:
        """Publish ``files`` with Spark. If it refuses, no new rows are visible; if it does not answer, some may be."""
        is_published = False
        try:
            with spark_session(self._to.session) as session:
                output = self._publish(_for_partitions(session) if self._to.mode == PARTITIONS else session, files)
            is_published = True
            self._record(output)
        except Exception as error:
            failure = describe_failure(error)
            is_gone = isinstance(error, SparkError) or (failure is not None and failure.is_gone)
            if not is_published and not is_gone:
                if not self._is_repeated:  # else an earlier attempt may have published
                    self.journal.end()
                raise
            why = f"Spark has ended or the connection is lost: {failure.message}" if failure else public_text(error)
            which = "all rows are visible, and not recorded" if is_published else "it is unknown which rows are visible"
            raise SinkError(
                f"{why}: {which}. The next start of this job finishes the publication that is recorded in "
                f"{self.journal.path}"
            ) from error
        with contextlib.suppress(SinkError):  # The next start clears them.
            self.place.discard(files)

    def _record(self, output: StepOutput | None) -> None:
        """Record what is published: the ``output`` of a folder, unless the folder has come with its record."""
        if self._to.path is not None:
            sync(self._to.path.parent)
            if output is not None:
                record_output(self._to.path, self.context, output)
        if not (self.context.final and self.has_own_record([self.context.snapshot])):
            self.journal.mark_published()

    def _publish(self, session: Any, files: Sequence[StagedFile]) -> StepOutput | None:
        """Publish, and return what is to be recorded."""
        to, schema = self._to, self.schema if self.schema is not None else self._to.given
        if schema is None and to.table is not None and to.mode == "overwrite" and session.catalog.tableExists(to.table):
            schema = arrow_schema(session.table(to.table).schema, error=SinkError)
        if schema is None:
            return None if to.path is None else self._publish_nothing(to.path)
        frame = _frame(session, [str(self._to.staging / file.name) for file in files], schema)
        if to.function is not None:
            to.function(frame, self.context.snapshot)
        elif to.table is not None:
            with spark_errors(f"table {to.table!r}", SinkError):
                self._write_table(session, frame, schema, to.table)
        elif to.path is not None:
            with spark_errors(f"folder {str(to.path)!r}", SinkError):
                return self._write_folder(frame, schema, to.path)
        return None

    def _write_table(self, session: Any, frame: Any, schema: pa.Schema, table: str) -> None:
        mode = self._to.mode
        if mode == "error":
            if not self._is_repeated or not is_created(session, frame, table, self.context):
                self._create_table(frame, table)
        elif mode in ("append", PARTITIONS) and session.catalog.tableExists(table):
            conformed(session, frame, table, schema).write.insertInto(table, overwrite=mode == PARTITIONS)
        else:
            self._to.writer(frame).saveAsTable(table)

    def _create_table(self, frame: Any, table: str) -> None:
        """Create ``table`` from ``frame``, marked with the commit; Spark raises if it exists."""
        from pyspark.sql.functions import col

        writer = frame.writeTo(table).using(self._to.format).options(**self._to.options)
        writer = writer.tableProperty(PROPERTY, _named(self.context))
        if self._to.partition_by:
            writer = writer.partitionedBy(*(col(quoted(name)) for name in self._to.partition_by))
        writer.create()

    def _write_folder(self, frame: Any, schema: pa.Schema, path: Path) -> StepOutput | None:
        if self._to.mode != "error":
            before = set(_files(path))
            self._to.writer(frame).save(f"file:{path}")
            return self._to.output([name for name in _files(path) if name not in before], schema)
        # Next to its place, in a folder of this attempt: Spark may still be writing for an earlier one.
        written = self.journal.work / f"by-spark-{secrets.token_hex(4)}"
        self._to.writer(frame).save(f"file:{written}")
        self._rename(written, path, self._to.output(list(_files(written)), schema))
        return None

    def _publish_nothing(self, path: Path) -> StepOutput | None:
        """Publish no rows, without a known schema."""
        nothing = self._to.output([], None)
        with sink_errors("cannot write to", path):
            if self._to.mode == "error":
                empty = self.journal.work / "empty"
                empty.mkdir(exist_ok=True)
                self._rename(empty, path, nothing)
                return None
            if self._to.mode == "overwrite":
                for found in path.iterdir() if path.exists() else ():
                    shutil.rmtree(found) if found.is_dir() and not found.is_symlink() else found.unlink()
            path.mkdir(exist_ok=True)
        return nothing

    def _rename(self, folder: Path, target: Path, output: StepOutput) -> None:
        """Record ``output`` in ``folder``, and make it ``target``, which must be empty or missing."""
        with sink_errors("cannot write to", target):
            record_output(folder, self.context, output)
            check_folder(target, replace=False)
            if target.exists():
                shutil.copymode(target, folder)
            folder.rename(target)


def _for_partitions(session: Any) -> Any:
    """Return a session like ``session`` whose overwrites replace partitions: Spark's setting is not one of a writer."""
    own = session.newSession()
    own.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    own.catalog.setCurrentCatalog(session.catalog.currentCatalog())
    own.catalog.setCurrentDatabase(session.catalog.currentDatabase())
    return own


def check_staged(root: Path, staged: Sequence[StagedFile]) -> None:
    """Raise `SinkError` unless all ``staged`` files exist on this machine."""
    lost = next((path for path in FolderPlace(root).paths(staged) if not path.exists()), None)
    if lost is not None:
        raise SinkError(
            f"the staged file {lost} does not exist on this machine: it was removed, or a worker on another machine "
            f"wrote it. Give staging= a folder that all workers, this program and Spark share"
        )


def _frame(session: Any, files: Sequence[str], schema: pa.Schema) -> Any:
    fields = spark_schema(in_files(schema))
    if not files:
        return session.createDataFrame([], fields)
    # The paths are not patterns.
    return session.read.schema(fields).option("__globPaths__", "false").parquet(*(f"file:{file}" for file in files))


def _files(folder: Path) -> Iterator[str]:
    """Iterate over the files that readers see, relative to ``folder``."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(part.startswith(("_", ".")) and "=" not in part for part in parts):
            yield path.relative_to(folder).as_posix()
