"""Publishing through Spark: tables, formats that it writes itself, and functions that are given a DataFrame.

Tables that must not be there before: made with a property that tells, after a crash, whose they are.

Rule: a table without that property is somebody else's, and is never touched.

What is to go into a table of Spark's, compared with the table.

Rule: what Spark answered with an error, nobody will see; what it did not answer at all, is done again.
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
from malstrom_py.sinks.base import CommitContext
from malstrom_py.sinks.files.publishing import StagedFile
from malstrom_py.sinks.output_record import BY_SPARK, StepOutput, find_record, record_output
from malstrom_py.sinks.spark.folders import OutcomeUnknown, check_folder, swap
from malstrom_py.sinks.spark.schema import bring_to, schema_of_payloads, without_nulls
from malstrom_py.spark.failures import describe_failure, spark_errors
from malstrom_py.spark.session import existing_session, spark_session
from malstrom_py.spark.types import arrow_schema, spark_schema

if TYPE_CHECKING:
    import pyarrow as pa

PROPERTY: Final = "malstrom.commit"


def create_table(
    frame: Any,
    table: str,
    context: CommitContext,
    *,
    format: str,
    partition_by: Sequence[str],
    options: Mapping[str, str],
) -> None:
    """Make ``table`` of ``frame``, as ``context``'s; Spark refuses that if it is there."""
    from pyspark.sql.functions import col

    writer = frame.writeTo(table).using(format).options(**options).tableProperty(PROPERTY, _named(context))
    if partition_by:
        writer = writer.partitionedBy(*(col(f"`{name.replace('`', '``')}`") for name in partition_by))
    writer.create()


def is_created(session: Any, frame: Any, table: str, context: CommitContext) -> bool:
    """Whether ``context`` has made ``table`` of ``frame`` already. One that Spark made and never filled is dropped.

    Raises:
        SinkError: it is there, and not by ``context``.
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
        f"table {table!r} is there, and another program made it (its property {PROPERTY!r} is not "
        f"{_named(context)!r}), so mode 'error' leaves it as it is: rename or drop it, to have this "
        f"job's rows in a table of that name"
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
    """`SinkError` if ``table`` is there and is not to be, or rows of ``schema`` (None: unknown) do not go into it."""
    if mode == "overwrite" or not session.catalog.tableExists(table):
        return
    if mode == "error":
        raise SinkError(f"table {table!r} is there already, and mode is 'error': drop it, or use another mode")
    if partition_by:
        there = [column.name for column in session.catalog.listColumns(table) if column.isPartition]
        if there != list(partition_by):
            raise SinkError(
                f"table {table!r} is partitioned by {there}, and partition_by is {list(partition_by)}: give the same, "
                f"or leave it out"
            )
    if schema is not None:
        _targets(session, table, schema)


def conformed(session: Any, frame: Any, table: str, schema: pa.Schema) -> Any:
    """``frame``, which holds rows of ``schema``, with the columns of ``table`` in their order and types."""
    from pyspark.sql.functions import col

    return frame.select(
        *(
            col(f"`{name.replace('`', '``')}`").cast(field.dataType).alias(field.name)
            for name, field in _targets(session, table, schema)
        )
    )


def _targets(session: Any, table: str, schema: pa.Schema) -> list[tuple[str, Any]]:
    """The columns of ``schema`` and those of ``table`` that they go to, in the order of the table."""
    there = {field.name.lower(): field for field in session.table(table).schema}
    mine = {field.name.lower(): field for field in schema}
    wrong = [f"{field.name!r} (only in the table)" for name, field in there.items() if name not in mine]
    wrong += [f"{field.name!r} (not in the table)" for name, field in mine.items() if name not in there]
    for name, field in there.items():
        if name in mine and (told := _misfit(mine[name], field.dataType.simpleString())):
            wrong.append(f"{field.name!r} ({told})")
    if wrong:
        raise SinkError(
            f"the columns do not go into table {table!r}: {', '.join(wrong)}. Make them alike in a map step, or write "
            f"another table"
        )
    return [(mine[name].name, field) for name, field in there.items()]


def _misfit(field: pa.Field, there: str) -> str:
    import pyarrow as pa

    if pa.types.is_null(field.type):
        return ""
    (found,) = spark_schema(pa.schema([(field.name, without_nulls(field.type))]))
    kind = found.dataType.simpleString()
    if kind == there or there in _WIDER.get(kind, ()):
        return ""
    return f"{there} there, {kind} now"


@dataclass(slots=True)
class ThroughSpark:
    """One of ``path``, ``table`` and ``function``. ``session`` is used in the program that started the job alone."""

    path: Path | None
    table: str | None
    format: str
    mode: str
    partition_by: tuple[str, ...]
    options: Mapping[str, str]
    given: pa.Schema | None
    function: Callable[[Any, str], object] | None
    session: Any
    elsewhere: Path
    found: Any = None
    """The session of the program where this run began, if none is given: a thread that commits may have another."""

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process publishes nothing: it takes no session along, and no function."""
        where = (self.path, self.table, self.format, self.mode, self.partition_by, self.options, self.given)
        return type(self), (*where, None, None, self.elsewhere)

    @property
    def described(self) -> Mapping[str, Any]:
        """Where and how, in plain types."""
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
        """What `_staging` stands in: beside a folder that Spark makes, or empties."""
        if self.path is None:
            return self.elsewhere
        return self.path if self.mode == "append" else self.path.parent

    @property
    def encoded_by(self) -> tuple[str, ...]:
        """What the writers partition by: Spark does that."""
        return ()

    @property
    def _noted(self) -> str:
        """How the record calls the format: as Spark's options have it, which is not always as ours would."""
        return f"{BY_SPARK}{self.format}"

    def start(self) -> None:
        """At the start of a run, before all else: find the session of this run. A later run may have another."""
        self.found = existing_session() if self.session is None else None

    def check(self) -> None:
        """At the start of the job: `SinkError` for what is known to be impossible."""
        if self.path is not None and self.mode != "append":
            check_folder(self.path, replace=self.mode == "overwrite")
        if self.table is not None:
            with spark_session(self._session) as session, spark_errors(f"table {self.table!r}", SinkError):
                check_table(session, self.table, self.mode, self.partition_by, self.given)

    @property
    def _session(self) -> Any:
        return self.found if self.session is None else self.session

    def is_done(self, context: CommitContext, staged: Sequence[StagedFile]) -> bool:
        """Whether the record says that it is published already. Without one nobody knows."""
        known = None if self.path is None else find_record(self.path, context.job)
        return known is not None and known.snapshot == context.snapshot and context.step in known.outputs

    def prepare(self, staged: Sequence[StagedFile], payloads: Sequence[bytes]) -> pa.Schema | None:
        """Bring all to one schema, which is returned; `SinkError` if there is none, or the table is of another."""
        schema = schema_of_payloads(payloads)
        check_staged(staged)
        if schema is not None:
            bring_to(schema, staged)
        if self.path is not None and self.mode != "append":
            check_folder(self.path, replace=self.mode == "overwrite")
        if self.table is not None:
            with spark_session(self._session) as session, spark_errors(f"table {self.table!r}", SinkError):
                check_table(session, self.table, self.mode, self.partition_by, schema)
        return schema

    def publish(
        self, work: Path, context: CommitContext, staged: Sequence[StagedFile], schema: pa.Schema | None, *, again: bool
    ) -> None:
        """Have Spark publish ``staged``. ``again``: an earlier publication may have done so, in part or whole."""
        schema = schema if schema is not None else self.given
        check_staged(staged)
        with _answered(), spark_session(self._session) as session:
            if schema is None and self.table is not None and self.mode == "overwrite":
                schema = _schema_of_table(session, self.table)
            if schema is None:
                self._publish_nothing(work, context)
                return
            frame = _frame(session, [str(file.path) for file in staged], schema)
            if self.function is not None:
                self.function(frame, context.snapshot)
            elif self.table is not None:
                self._write_table(session, frame, schema, context, again=again)
            elif self.path is not None and self.mode == "error":
                swap(work, self.path, lambda folder: self._fill(folder, frame, schema, context), replace=False)
            else:
                self._write_folder(frame, schema, context)

    def _write_table(self, session: Any, frame: Any, schema: pa.Schema, context: CommitContext, *, again: bool) -> None:
        assert self.table is not None
        with spark_errors(f"table {self.table!r}", SinkError):
            if self.mode == "error":
                if not again or not is_created(session, frame, self.table, context):
                    create_table(
                        frame,
                        self.table,
                        context,
                        format=self.format,
                        partition_by=self.partition_by,
                        options=self.options,
                    )
            elif self.mode == "append" and session.catalog.tableExists(self.table):
                conformed(session, frame, self.table, schema).write.insertInto(self.table)
            else:
                self._writer(frame).saveAsTable(self.table)

    def _write_folder(self, frame: Any, schema: pa.Schema, context: CommitContext) -> None:
        assert self.path is not None
        before = set() if self.mode == "overwrite" else set(_files(self.path))
        with spark_errors(f"folder {str(self.path)!r}", SinkError):
            self._writer(frame).save(f"file:{self.path}")
        files = [name for name in _files(self.path) if name not in before]
        try:
            record_output(self.path, context, self._written(files, schema))
        except OSError as error:
            raise OutcomeUnknown(f"{self.path} is written, but what is in it could not be recorded: {error}") from error

    def _fill(self, folder: Path, frame: Any, schema: pa.Schema, context: CommitContext) -> None:
        """Have Spark write what is to be swapped in. An earlier attempt may still be writing, into its own folder."""
        for left in folder.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        written = folder.with_name(f"by-spark-{secrets.token_hex(4)}")
        with spark_errors(f"folder {str(self.path)!r}", SinkError):
            self._writer(frame).save(f"file:{written}")
        for path in list(written.iterdir()):
            path.rename(folder / path.name)
        record_output(folder, context, self._written(list(_files(folder)), schema))

    def _written(self, files: list[str], schema: pa.Schema) -> StepOutput:
        import pyarrow as pa

        fields = [(field.name, without_nulls(field.type)) for field in schema if field.name not in self.partition_by]
        return StepOutput(self._noted, files, pa.schema(fields).serialize().to_pybytes())

    def _writer(self, frame: Any) -> Any:
        writer = frame.write.format(self.format).mode(self.mode).options(**self.options)
        return writer.partitionBy(*self.partition_by) if self.partition_by else writer

    def _publish_nothing(self, work: Path, context: CommitContext) -> None:
        """Nothing was written, and nobody knows what columns it would have had."""
        if self.path is None:
            return
        nothing = StepOutput(self._noted, [])
        if self.mode == "append":
            record_output(self.path, context, nothing)
        else:
            swap(
                work,
                self.path,
                lambda folder: record_output(folder, context, nothing),
                replace=self.mode == "overwrite",
            )


def check_staged(staged: Sequence[StagedFile]) -> None:
    """`SinkError` unless all ``staged`` files are to be seen here."""
    lost = next((file.path for file in staged if not file.path.exists()), None)
    if lost is not None:
        raise SinkError(
            f"{lost} is not here, where it is to be published: someone removed it, or a worker elsewhere wrote "
            f"it. Give staging= a folder that all workers, this program and Spark share"
        )


def _frame(session: Any, files: Sequence[str], schema: pa.Schema) -> Any:
    import pyarrow as pa

    fields = spark_schema(pa.schema([(field.name, without_nulls(field.type)) for field in schema]))
    if not files:
        return session.createDataFrame([], fields)
    # Names are names, not patterns.
    return session.read.schema(fields).option("__globPaths__", "false").parquet(*(f"file:{file}" for file in files))


def _schema_of_table(session: Any, table: str) -> pa.Schema | None:
    return arrow_schema(session.table(table).schema, error=SinkError) if session.catalog.tableExists(table) else None


def _files(folder: Path) -> Iterator[str]:
    """The files that readers see, relative to ``folder``."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(part.startswith(("_", ".")) and "=" not in part for part in parts):
            yield path.relative_to(folder).as_posix()


@contextmanager
def _answered() -> Iterator[None]:
    """What is raised inside, told apart: `OutcomeUnknown` where Spark did not answer."""
    try:
        yield
    except SparkError as error:
        raise OutcomeUnknown(str(error)) from error
    except Exception as error:
        told = describe_failure(error)
        if told is not None and told.gone:
            raise OutcomeUnknown(f"Spark has gone away: {told.said}") from error
        raise
