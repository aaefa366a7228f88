"""Publication through Spark: tables, formats that Spark writes, and functions that get a DataFrame.

Rules:
- With mode "error" a table is created with a property that identifies its commit. A table without that property belongs
  to another program and is never changed.
- Rows are compared with the schema of an existing table before they are written.
- If Spark returns an error, no new rows are visible. If Spark does not answer, the publication is repeated.
- An overwrite is Spark's own: it removes what is in the folder, then writes. Publishing again has the same result.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import SinkError, SparkError
from malstrom_py.errors.text import describe_error
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.files.schemas import bring_to, without_nulls
from malstrom_py.sinks.files.target_columns import TargetColumns, length_limits, required_places
from malstrom_py.sinks.output_record import BY_SPARK, StepOutput, find_record, record_output
from malstrom_py.sinks.spark.folders import OutcomeUnknown, check_folder
from malstrom_py.sinks.spark.schema import schema_of_staged
from malstrom_py.sinks.staged.folder import FolderPlace, sync
from malstrom_py.sinks.staged.payloads import StagedFile
from malstrom_py.sinks.staged.problems import sink_errors
from malstrom_py.spark.failures import describe_failure, spark_errors
from malstrom_py.spark.session import existing_session, spark_session
from malstrom_py.spark.types import arrow_schema, spark_schema

if TYPE_CHECKING:
    import pyarrow as pa

PROPERTY: Final = "malstrom.commit"

_MICROSECONDS: Final = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""By default Spark writes timestamps in 96 bits, which readers take for timestamps without a zone."""


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
    if partition_by:
        found = [column.name for column in session.catalog.listColumns(table) if column.isPartition]
        if found != list(partition_by):
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
        *(
            col(f"`{name.replace('`', '``')}`").cast(field.dataType).alias(field.name)
            for name, field in _targets(session, table, schema)
        )
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


@dataclass(slots=True)
class ThroughSpark:
    """Publishes to one of ``path``, ``table`` and ``function`` with ``session``, in the program that starts the job."""

    path: Path | None
    table: str | None
    format: str
    mode: str
    partition_by: tuple[str, ...]
    options: Mapping[str, str]
    given: pa.Schema | None
    function: Callable[[Any, str], object] | None
    session: Any
    staging_root: Path
    program_session: Any = None
    """The program's session at the start of the run, if none is given: the committing thread may have another."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy to another process without session and function: the copy does not publish."""
        where = (self.path, self.table, self.format, self.mode, self.partition_by, self.options, self.given)
        return type(self), (*where, None, None, self.staging_root)

    @property
    def description(self) -> Mapping[str, Any]:
        """The target and its options, in plain types."""
        if self.path is None and self.table is None:
            return {"foreach_snapshot": True}
        return {
            "path": None if self.path is None else str(self.path),
            "table": self.table,
            "mode": self.mode,
            "format": self.format,
            "partition_by": list(self.partition_by),
            "options": dict(self.options),
        }

    @property
    def staging(self) -> Path:
        """The folder that contains ``_staging``: next to a folder that Spark creates or empties."""
        if self.path is None:
            return self.staging_root
        return self.path if self.mode == "append" else self.path.parent

    @property
    def place(self) -> FolderPlace:
        """Where the files are staged."""
        return FolderPlace(self.staging)

    @property
    def writer_partition_by(self) -> tuple[str, ...]:
        """The columns by which the writers partition: none, because Spark does."""
        return ()

    @property
    def _recorded_format(self) -> str:
        """The format in the output record; the prefix marks files whose reading depends on Spark's options."""
        return self.format if self.format == "parquet" else f"{BY_SPARK}{self.format}"

    def columns_of_table(self, *, only_existing: bool) -> TargetColumns | None:
        """Return the columns of the table that is appended to; None without one.

        ``only_existing``: start no session.
        """
        if self.table is None or self.mode != "append":
            return None
        if only_existing and self.session is None and existing_session() is None:
            return None
        with spark_session(self._session) as session, spark_errors(f"table {self.table!r}", SinkError):
            if not session.catalog.tableExists(self.table):
                return None
            fields = session.table(self.table).schema
            schema, required = arrow_schema(fields, error=SinkError), required_places(fields)
            return TargetColumns(schema, required, self.table, length_limits(fields))

    def start(self) -> None:
        """Find the session of this run, before anything else. A later run may have another one."""
        self.program_session = existing_session() if self.session is None else None

    def names_there(self) -> None:
        """The columns of the target are not known here, but for those of a table (`columns_of_table`)."""

    def check(self) -> None:
        """Raise `SinkError` at the start of the job if the target cannot take the rows."""
        self._check(self.given)

    def _check(self, schema: pa.Schema | None) -> None:
        if self.path is not None and self.mode != "append":
            check_folder(self.path, replace=self.mode == "overwrite")
        if self.table is not None:
            with spark_session(self._session) as session, spark_errors(f"table {self.table!r}", SinkError):
                check_table(session, self.table, self.mode, self.partition_by, schema)

    @property
    def _session(self) -> Any:
        return self.program_session if self.session is None else self.session

    def is_done(self, context: CommitContext, staged: Sequence[StagedFile]) -> bool:
        """Return whether the output record contains the commit; False without a record."""
        known = None if self.path is None else find_record(self.path, context.job)
        return known is not None and known.snapshot == context.snapshot and context.step in known.outputs

    def prepare(self, staged: Sequence[StagedFile]) -> pa.Schema | None:
        """Convert the staged files to one schema and return it; `SinkError` if no schema fits all, or not the table."""
        schema = schema_of_staged(staged)
        check_staged(self.place, staged)
        if schema is not None:
            bring_to(self.place, schema, staged)
        self._check(schema)
        return schema

    def publish(
        self, work: Path, context: CommitContext, staged: Sequence[StagedFile], schema: pa.Schema | None, *, again: bool
    ) -> None:
        """Publish the ``staged`` files with Spark. ``again``: an earlier attempt may have published some or all."""
        schema = schema if schema is not None else self.given
        check_staged(self.place, staged)
        with _unknown_if_gone(), spark_session(self._session) as session:
            if schema is None and self.table is not None and self.mode == "overwrite":
                schema = _schema_of_table(session, self.table)
            if schema is None:
                self._publish_nothing(work, context)
                return
            frame = _frame(session, list(map(str, self.place.paths(staged))), schema)
            if self.function is not None:
                self.function(frame, context.snapshot)
            elif self.table is not None:
                self._write_table(session, frame, schema, context, again=again)
            elif self.path is not None and self.mode == "error":
                self._write_new_folder(work, self.path, frame, schema, context)
            else:
                self._write_folder(frame, schema, context)

    def _write_table(self, session: Any, frame: Any, schema: pa.Schema, context: CommitContext, *, again: bool) -> None:
        assert self.table is not None
        with spark_errors(f"table {self.table!r}", SinkError):
            if self.mode == "error":
                if not again or not is_created(session, frame, self.table, context):
                    self._create_table(frame, self.table, context)
            elif self.mode == "append" and session.catalog.tableExists(self.table):
                conformed(session, frame, self.table, schema).write.insertInto(self.table)
            else:
                self._writer(frame).saveAsTable(self.table)

    def _create_table(self, frame: Any, table: str, context: CommitContext) -> None:
        """Create ``table`` from ``frame``, marked with ``context``; Spark raises if it exists."""
        from pyspark.sql.functions import col

        writer = frame.writeTo(table).using(self.format).options(**self.options)
        writer = writer.tableProperty(PROPERTY, _named(context))
        if self.partition_by:
            writer = writer.partitionedBy(*(col(f"`{name.replace('`', '``')}`") for name in self.partition_by))
        writer.create()

    def _write_folder(self, frame: Any, schema: pa.Schema, context: CommitContext) -> None:
        assert self.path is not None
        before = set(_files(self.path))
        with spark_errors(f"folder {str(self.path)!r}", SinkError):
            self._writer(frame).save(f"file:{self.path}")
        files = [name for name in _files(self.path) if name not in before]
        try:
            record_output(self.path, context, self._written(files, schema))
        except OSError as error:
            raise OutcomeUnknown(
                f"{self.path} is written, but its output could not be recorded: {describe_error(error)}"
            ) from error

    def _write_new_folder(
        self, work: Path, target: Path, frame: Any, schema: pa.Schema, context: CommitContext
    ) -> None:
        """Write ``target`` next to its place, then rename it, which fails if another program has filled ``target``."""
        written = _new_folder_in(work)
        with spark_errors(f"folder {str(target)!r}", SinkError):
            self._writer(frame).save(f"file:{written}")
        _rename(written, target, context, self._written(list(_files(written)), schema))

    def _written(self, files: list[str], schema: pa.Schema) -> StepOutput:
        import pyarrow as pa

        fields = [(field.name, without_nulls(field.type)) for field in schema if field.name not in self.partition_by]
        return StepOutput(self._recorded_format, files, pa.schema(fields).serialize().to_pybytes())

    def _writer(self, frame: Any) -> Any:
        options = self.options
        if self.path is not None and self.format == "parquet":
            options = _MICROSECONDS | dict(options)
        writer = frame.write.format(self.format).mode(self.mode).options(**options)
        return writer.partitionBy(*self.partition_by) if self.partition_by else writer

    def _publish_nothing(self, work: Path, context: CommitContext) -> None:
        """Publish no rows, without a known schema."""
        if self.path is None:
            return
        nothing = StepOutput(self._recorded_format, [])
        with sink_errors("cannot write to", self.path):
            if self.mode == "error":
                empty = _new_folder_in(work)
                empty.mkdir()
                _rename(empty, self.path, context, nothing)
                return
            if self.mode == "overwrite":
                for path in self.path.iterdir() if self.path.exists() else ():
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            self.path.mkdir(exist_ok=True)
            record_output(self.path, context, nothing)


def _new_folder_in(work: Path) -> Path:
    """Return the path of a folder of this attempt: Spark may still be writing for an earlier one."""
    return work / f"by-spark-{secrets.token_hex(4)}"


def _rename(folder: Path, target: Path, context: CommitContext, output: StepOutput) -> None:
    """Record ``output`` in ``folder``, and make it ``target``, which must be empty or missing."""
    with sink_errors("cannot write to", target):
        record_output(folder, context, output)
        check_folder(target, replace=False)
        if target.exists():
            shutil.copymode(target, folder)
        folder.rename(target)
    try:
        sync(target.parent)
    except OSError as error:
        raise OutcomeUnknown(f"{target} is written, but may not be durable ({error.strerror})") from error


def check_staged(place: FolderPlace, staged: Sequence[StagedFile]) -> None:
    """Raise `SinkError` unless all ``staged`` files exist on this machine."""
    lost = next((path for path in place.paths(staged) if not path.exists()), None)
    if lost is not None:
        raise SinkError(
            f"the staged file {lost} does not exist on this machine: it was removed, or a worker on another machine "
            f"wrote it. Give staging= a folder that all workers, this program and Spark share"
        )


def _frame(session: Any, files: Sequence[str], schema: pa.Schema) -> Any:
    import pyarrow as pa

    fields = spark_schema(pa.schema([(field.name, without_nulls(field.type)) for field in schema]))
    if not files:
        return session.createDataFrame([], fields)
    # The paths are not patterns.
    return session.read.schema(fields).option("__globPaths__", "false").parquet(*(f"file:{file}" for file in files))


def _schema_of_table(session: Any, table: str) -> pa.Schema | None:
    return arrow_schema(session.table(table).schema, error=SinkError) if session.catalog.tableExists(table) else None


def _files(folder: Path) -> Iterator[str]:
    """Iterate over the files that readers see, relative to ``folder``."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(part.startswith(("_", ".")) and "=" not in part for part in parts):
            yield path.relative_to(folder).as_posix()


@contextmanager
def _unknown_if_gone() -> Iterator[None]:
    """Raise `OutcomeUnknown` if the connection to Spark is lost inside."""
    try:
        yield
    except SparkError as error:
        raise OutcomeUnknown(str(error)) from error
    except Exception as error:
        failure = describe_failure(error)
        if failure is not None and failure.is_gone:
            raise OutcomeUnknown(f"Spark has ended or the connection is lost: {failure.message}") from error
        raise
