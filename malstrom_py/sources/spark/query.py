"""The arguments of `sources.Spark`, checked at the call, and the bound up to which rows of a growing column are read.

Rule: a run reads the rows above the largest value of the last run, up to the largest value at the time of pinning.
Spark computes and compares bounds; here a bound is text that Spark casts to the type of the column.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from malstrom_py.errors import PlanError, SourceError, lasting
from malstrom_py.errors.text import instead_of
from malstrom_py.local_files import local_path
from malstrom_py.spark.failures import spark_errors
from malstrom_py.spark.names import check_table_name, quoted
from malstrom_py.validation import checked_flag

BATCH_ID: Final = "batch id"
"""What orders the rows of a streaming DataFrame, as a growing column does others."""

_CONNECT: Final = "pyspark.sql.connect."


@dataclass(slots=True)
class SparkQuery:
    """The arguments of `sources.Spark`; `PlanError` for the first that is invalid.

    One of ``df``, ``table``, ``sql``, or ``format`` with ``paths`` or ``options``. Spark evaluates ``filter``, workers
    evaluate ``keep`` (of Arrow).
    """

    df: Any
    table: str | None
    sql: str | None
    path: Any
    format: str | None
    options: Any
    columns: Any
    filter: Any
    staging: Any
    keep_staging: bool
    session: Any
    since: str | None
    follow: bool = False
    paths: tuple[str, ...] = ()
    keep: Any = None
    is_stream: bool = False

    def __post_init__(self) -> None:
        df, session = self.df, self.session
        _check_one(df=df, table=self.table, sql=self.sql, path=self.path, format=self.format)
        if df is not None and not _is_of_spark(df, "DataFrame"):
            raise PlanError(
                f"sources.Spark: df must be a DataFrame of Spark, got {type(df).__module__}.{type(df).__name__}"
            )
        if session is not None and df is not None:
            raise PlanError("sources.Spark: a DataFrame has its session, so leave out session=")
        if session is not None and not _is_of_spark(session, "SparkSession"):
            raise PlanError(f"sources.Spark: session must be a SparkSession, got {type(session).__name__}")
        texts: dict[str, object] = {"table": self.table, "sql": self.sql, "format": self.format, "since": self.since}
        for name, text in texts.items():
            if text is not None and not (isinstance(text, str) and text.strip()):
                raise PlanError(f"sources.Spark: {name} must be a str that is not empty, got {text!r}")
        if self.table is not None:
            check_table_name(self.table, "sources.Spark")
        is_read = df is self.sql is None
        if self.format is not None and not (is_read and self.table is None):
            raise PlanError("sources.Spark: format is for path=, or for options= alone: leave it out")
        self.paths, self.options = _paths(self.path), _options(self.options, allowed=is_read)
        self.columns = _columns(self.columns)
        if type(self.filter).__name__ == "Expression" and type(self.filter).__module__.startswith("pyarrow."):
            self.keep, self.filter = self.filter, None
        _check_filter(self.filter)
        self.staging = None if self.staging is None else local_path(self.staging, "sources.Spark(staging=)")
        checked_flag(self.keep_staging, "sources.Spark: keep_staging")
        self.is_stream = _is_stream(df, staging=self.staging, since=self.since)
        if checked_flag(self.follow, "sources.Spark: follow") and not self.is_stream:
            raise PlanError(
                "sources.Spark: follow=True is for a streaming DataFrame of a classic session, from spark.readStream: "
                "leave it out"
            )

    def __str__(self) -> str:
        return self._what() + ("" if self.since is None else f", since={self.since!r}")

    def _what(self) -> str:
        if self.df is not None:
            return "a streaming DataFrame" if self.is_stream else "a DataFrame"
        if self.table is not None:
            return f"table={self.table!r}"
        if self.sql is not None:
            return "sql=…"  # the text may hold secrets
        what = [f"path={path!r}" for path in self.paths[:3]]
        return ", ".join([*what, *([] if self.format is None else [f"format={self.format!r}"])])

    def frame(self, session: Any) -> Any:
        """Return the DataFrame, not evaluated."""
        if self.df is not None:
            return self.df
        if self.sql is not None:
            return session.sql(self.sql)
        reader = session.read.format(self.format or "parquet")
        for name, value in self.options.items():
            reader = reader.option(name, value)
        if self.table is not None:
            return reader.table(self.table)
        return reader.load(list(self.paths)) if self.paths else reader.load()


def _check_one(**given: object) -> None:
    format = given.pop("format")
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise PlanError(f"sources.Spark takes one of df, table=, sql= and path=, not {' and '.join(named)} together")
    if not named and format is None:
        raise PlanError("sources.Spark takes a DataFrame, or one of table=, sql= and path=: nothing was given")


def _is_stream(df: Any, *, staging: object, since: object) -> bool:
    if df is None or type(df).__module__.startswith(_CONNECT) or not df.isStreaming:
        return False
    if since is not None:
        raise PlanError("sources.Spark: a streaming DataFrame knows what is new by itself, so leave out since=")
    if staging is None:
        raise PlanError(
            "sources.Spark: a streaming DataFrame needs staging=, a folder that lasts: its batches and the checkpoint "
            "of its query stay there from run to run"
        )
    return True


def _paths(path: object) -> tuple[str, ...]:
    if path is None:
        return ()
    given = list(path) if isinstance(path, Iterable) and not isinstance(path, str | os.PathLike | bytes) else [path]
    texts = [os.fspath(one) if isinstance(one, str | os.PathLike) else None for one in given]
    paths = [text for text in texts if isinstance(text, str) and text]
    if not paths or len(paths) < len(given):
        raise PlanError(f"sources.Spark: path must be a path or URI that Spark reads, or a list of them, got {path!r}")
    # Spark's own working directory is where its JVM was started.
    return tuple(one if re.match(r"/|[A-Za-z][A-Za-z0-9+.-]*:", one) else str(Path.cwd() / one) for one in paths)


def _options(options: object, *, allowed: bool) -> Mapping[str, Any]:
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise PlanError(f"sources.Spark: options must be those of Spark's reader, name -> value, got {options!r}")
    if not allowed:
        raise PlanError("sources.Spark: options are for path=, table= or format=: leave them out")
    return dict(options)


def _columns(columns: object) -> tuple[str, ...] | None:
    if columns is None:
        return None
    names = list(columns) if isinstance(columns, Iterable) and not isinstance(columns, str) else [None]
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise PlanError(
            f"sources.Spark: columns must be a list of names, each once, for instance ['carrier'], got {columns!r}"
        )
    return tuple(str(name) for name in names)


def _check_filter(filter: object) -> None:
    if filter is None or (isinstance(filter, str) and filter.strip()) or _is_of_spark(filter, "Column"):
        return
    raise PlanError(
        f"sources.Spark: filter must be SQL text or a Column, for Spark to evaluate, or an expression of "
        f"pyarrow.compute, for the workers; got {filter!r}"
    )


def _is_of_spark(thing: object, kind: str) -> bool:
    """Return whether ``thing`` is of that pyspark class, classic or Connect; does not import pyspark."""
    return any(base.__name__ == kind and base.__module__.startswith("pyspark.sql") for base in type(thing).__mro__)


_KINDS: Final = {
    "ByteType": "int",
    "ShortType": "int",
    "IntegerType": "int",
    "LongType": "int",
    "DecimalType": "decimal",
    "StringType": "string",
    "DateType": "date",
    "TimestampType": "timestamp",
    "TimestampNTZType": "timestamp_ntz",
}
"""Spark types whose values have an order -> the kind in a bound."""


@dataclass(frozen=True, slots=True)
class Bound:
    """All rows up to the value ``upto`` of ``column`` are read or pinned; None if there were no rows.

    ``upto`` is text, for timestamps the microseconds since 1970 in UTC; ``kind``: the kind of the column's values.
    """

    column: str
    kind: str
    upto: str | None

    def record(self) -> dict[str, Any]:
        """Return the bound as plain JSON, for `bound_of`."""
        return asdict(self)


def bound_of(record: Mapping[str, Any], column: str) -> Bound:
    """Return the bound in the ``record`` of an earlier run; `SourceError` if it has none of ``column``."""
    kept = record.get("since")
    if not isinstance(kept, Mapping) or kept.get("column") != column:
        raise lasting(
            SourceError(
                f"the run to resume has no record of how far it read column {column!r}: start the job from the "
                f'beginning with resume="none", or give the former since='
            )
        )
    return Bound(column, str(kept["kind"]), kept["upto"])


def bounded(frame: Any, found: Any, column: str, after: Bound | None) -> tuple[Any, Bound]:
    """Return the rows of ``frame``, of schema ``found``, after the bound ``after``, and their bound.

    Raises:
        SourceError: there is no such column, its type has no order, or a row has no value in it.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    if column not in found.names:
        known = instead_of(column, found.names)
        raise lasting(SourceError(f"the query has no column {column!r}, which since= names{known}"))
    kind = _KINDS.get(type(found[column].dataType).__name__)
    if kind is None:
        raise lasting(
            SourceError(
                f"column {column!r} is of type {found[column].dataType.simpleString()}, whose values since= cannot "
                f"order: give it a column of whole numbers, decimals, text, days or moments"
            )
        )
    if after is not None and after.kind != kind:
        raise lasting(
            SourceError(
                f"column {column!r} was of kind {after.kind} in the run to resume, and is of kind {kind} now: cast "
                f'it, or start the job from the beginning with resume="none"'
            )
        )
    values = F.col(quoted(column))
    with spark_errors(f"Spark does not find the largest value of column {column!r}", SourceError):
        largest = F.max(values)
        as_text = F.unix_micros(largest) if kind == "timestamp" else largest
        nulls = F.count(F.when(values.isNull(), F.lit(1)))
        upto, without = frame.agg(as_text.cast("string"), nulls).first()
    if without:
        raise lasting(
            SourceError(
                f"{without} rows have no value in column {column!r}, so since= cannot order them: fill the column, or "
                f"exclude such rows with filter="
            )
        )
    kind_now = found[column].dataType

    def literal(text: str) -> Any:
        return F.timestamp_micros(F.lit(int(text))) if kind == "timestamp" else F.lit(text).cast(kind_now)

    if upto is None:  # there are no rows
        return frame, Bound(column, kind, None if after is None else after.upto)
    new = values <= literal(upto)
    if after is not None and after.upto is not None:
        new = (values > literal(after.upto)) & new
        with spark_errors(f"Spark does not compare the values of column {column!r}", SourceError):
            is_grown = frame.sparkSession.range(1).select(literal(upto) > literal(after.upto)).first()[0]
        upto = upto if is_grown else after.upto
    return frame.filter(new), Bound(column, kind, upto)
